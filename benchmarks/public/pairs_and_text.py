"""Generative models, super-resolution, and images with text."""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from PIL import Image
from sources import HALVES, Made, bare_package, load, normalized, pipeline, stub, train_folder
from torchvision import transforms


@pipeline("pytorch/examples", "super_resolution/main.py")
def super_resolution(sources: Path, data: Path, photographs: Path) -> Made:
    """Brightness of photographs, whole and at a third of the size."""
    made = load(sources, "pytorch/examples", "data", "super_resolution")
    dataset = load(sources, "pytorch/examples", "dataset", "super_resolution")
    size = made.calculate_valid_crop_size(256, 3)
    folder = str(data / "BSDS300/images/train")
    small, large = made.input_transform(size, 3), made.target_transform(size)
    return dataset.DatasetFromFolder(folder, input_transform=small, target_transform=large), {"batch_size": 64}


@pipeline("pytorch/examples", "fast_neural_style/neural_style/neural_style.py")
def fast_neural_style(sources: Path, data: Path, photographs: Path) -> Made:
    """Photographs of 256 × 256 with values to 255, in order, in batches of four."""
    scaled = transforms.Lambda(lambda image: image.mul(255))
    steps = [transforms.Resize(256), transforms.CenterCrop(256), transforms.ToTensor(), scaled]
    return train_folder(data, transforms.Compose(steps)), {"batch_size": 4, "shuffle": False}


@pipeline("pytorch/examples", "dcgan/main.py")
def dcgan(sources: Path, data: Path, photographs: Path) -> Made:
    """Photographs of 64 × 64."""
    steps = [transforms.Resize(64), transforms.CenterCrop(64), *normalized(HALVES, HALVES)]
    return train_folder(data, transforms.Compose(steps)), {"batch_size": 64}


@pipeline("lucidrains/denoising-diffusion-pytorch", "denoising_diffusion_pytorch/denoising_diffusion_pytorch.py")
def denoising_diffusion(sources: Path, data: Path, photographs: Path) -> Made:
    """Photographs of 128 × 128, flipped at random, without targets."""
    stub("einops", "einops.layers", "einops.layers.torch", "scipy", "scipy.optimize", "ema_pytorch")
    name = "denoising_diffusion_pytorch"
    bare_package(sources, "lucidrains/denoising-diffusion-pytorch", name)
    program = load(sources, "lucidrains/denoising-diffusion-pytorch", f"{name}.{name}")
    dataset = program.Dataset(str(data / "flat"), 128, augment_horizontal_flip=True, convert_image_to="RGB")
    return dataset, {"batch_size": 16}


@pipeline("eriklindernoren/PyTorch-GAN", "implementations/cyclegan/cyclegan.py")
def cyclegan(sources: Path, data: Path, photographs: Path) -> Made:
    """CycleGAN: an image of one domain and a random one of the other; batches of one."""
    module = load(sources, "eriklindernoren/PyTorch-GAN", "datasets", "implementations/cyclegan")
    steps = [
        transforms.Resize(int(256 * 1.12), Image.Resampling.BICUBIC),
        transforms.RandomCrop((256, 256)),
        transforms.RandomHorizontalFlip(),
        *normalized(HALVES, HALVES),
    ]
    return module.ImageDataset(str(data / "unpaired"), transforms_=steps, unaligned=True), {"batch_size": 1}


@pipeline("eriklindernoren/PyTorch-GAN", "implementations/pix2pix/pix2pix.py")
def pix2pix(sources: Path, data: Path, photographs: Path) -> Made:
    """pix2pix: both halves of a file; batches of one."""
    module = load(sources, "eriklindernoren/PyTorch-GAN", "datasets", "implementations/pix2pix")
    steps = [transforms.Resize((256, 256), Image.Resampling.BICUBIC), *normalized(HALVES, HALVES)]
    return module.ImageDataset(str(data / "facades"), transforms_=steps), {"batch_size": 1}


def _faces_twice(sources: Path, data: Path, program: str) -> Made:
    module = load(sources, "eriklindernoren/PyTorch-GAN", "datasets", f"implementations/{program}")
    return module.ImageDataset(str(data / "img_align_celeba"), hr_shape=(256, 256)), {"batch_size": 4}


@pipeline("eriklindernoren/PyTorch-GAN", "implementations/srgan/srgan.py")
def srgan(sources: Path, data: Path, photographs: Path) -> Made:
    """SRGAN: faces at 64 and at 256."""
    return _faces_twice(sources, data, "srgan")


@pipeline("eriklindernoren/PyTorch-GAN", "implementations/esrgan/esrgan.py")
def esrgan(sources: Path, data: Path, photographs: Path) -> Made:
    """ESRGAN: faces at 64 and at 256."""
    return _faces_twice(sources, data, "esrgan")


@pipeline("taesungp/contrastive-unpaired-translation", "train.py")
def contrastive_translation(sources: Path, data: Path, photographs: Path) -> Made:
    """CUT: an image of one domain and a random one of the other; batches of one."""
    stub("dominate", "dominate.tags", "visdom")
    unaligned = load(sources, "taesungp/contrastive-unpaired-translation", "data.unaligned_dataset")
    options = Namespace(
        dataroot=str(data / "unpaired"), phase="train", max_dataset_size=float("inf"), serial_batches=False
    )
    vars(options).update(isTrain=True, n_epochs=200, load_size=286, crop_size=256)
    vars(options).update(preprocess="resize_and_crop", no_flip=False)
    return unaligned.UnalignedDataset(options), {"batch_size": 1, "drop_last": True}


# ---- images and text


@pipeline("yunjey/pytorch-tutorial", "tutorials/03-advanced/image_captioning/train.py")
def image_captioning(sources: Path, data: Path, photographs: Path) -> Made:
    """Captions of COCO images of 256 × 256, cropped to 224, sorted and padded by the collate function."""
    stub("nltk")
    sys.modules["nltk"].tokenize = Namespace(word_tokenize=str.split)  # type: ignore[attr-defined]
    folder = "tutorials/03-advanced/image_captioning"
    loading = load(sources, "yunjey/pytorch-tutorial", "data_loader", folder)
    vocabulary = load(sources, "yunjey/pytorch-tutorial", "build_vocab", folder)
    steps = [transforms.RandomCrop(224), transforms.RandomHorizontalFlip(), *normalized()]
    annotations = str(data / "coco-captions/annotations/captions_train2014.json")
    words = vocabulary.build_vocab(annotations, 4)
    images = str(data / "coco-captions/resized2014")
    dataset = loading.CocoDataset(images, annotations, words, transforms.Compose(steps))
    return dataset, {"batch_size": 64, "collate_fn": loading.collate_fn}


def _open_clip(sources: Path, module: str) -> ModuleType:
    stub("ftfy")
    sys.modules["ftfy"].fix_text = str  # type: ignore[attr-defined]
    return load(sources, "mlfoundations/open_clip", module, "src")


def _clip_transform(sources: Path) -> Any:
    return _open_clip(sources, "open_clip.transform").image_transform(224, is_train=True)


@pipeline("mlfoundations/open_clip", "src/open_clip_train/data.py")
def open_clip_csv(sources: Path, data: Path, photographs: Path) -> Made:
    """CLIP from a table of files and captions."""
    tokenizer = _open_clip(sources, "open_clip.tokenizer").SimpleTokenizer()
    loading = _open_clip(sources, "open_clip_train.data")
    table = str(data / "captions/train.csv")
    transform = _clip_transform(sources)
    dataset = loading.CsvDataset(table, transform, "filepath", "title", tokenizer=tokenizer)
    return dataset, {"batch_size": 64, "drop_last": True}


@pipeline("mlfoundations/open_clip", "src/open_clip_train/data.py")
def open_clip_shards(sources: Path, data: Path, photographs: Path) -> Made:
    """CLIP from WebDataset shards, batched in the pipeline."""
    tokenizer = _open_clip(sources, "open_clip.tokenizer").SimpleTokenizer()
    loading = _open_clip(sources, "open_clip_train.data")
    # webdataset 1.0 ends each shard with an empty sample, which this program does not know
    loading.tar_file_expander = partial(loading.tar_file_expander, eof_value=None)
    options = Namespace(
        train_data=str(data / "caption-shards/{000000..000003}.tar"),
        train_num_samples=800,
        train_data_upsampling_factors=None,
        dataset_resampled=False,
    )
    vars(options).update(seed=0, workers=2, world_size=1, batch_size=64)
    info = loading.get_wds_dataset(options, _clip_transform(sources), True, tokenizer=tokenizer)
    return _streamed(info.dataloader), {"batch_size": None, "shuffle": False}


def _streamed(loader: Any) -> Any:
    """The dataset of a loader that WebDataset has wrapped."""
    while not isinstance(loader, torch.utils.data.DataLoader):
        loader = loader.pipeline[0]
    return loader.dataset
