"""Images with masks, boxes or identities."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from sources import MEAN, STD, Made, bare_package, load, normalized, pipeline, stub
from torch.utils.data import ConcatDataset
from torchvision import transforms


def repeated(dataset: Any, times: int = 4) -> ConcatDataset[Any]:
    """The dataset several times over."""
    return ConcatDataset([dataset] * times)


@pipeline("VainF/DeepLabV3Plus-Pytorch", "main.py")
def deeplab_v3_plus(sources: Path, data: Path, photographs: Path) -> Made:
    """DeepLabV3+ on VOC: images and masks scaled, cropped and flipped alike."""
    stub("visdom", "matplotlib", "matplotlib.pyplot")
    steps = load(sources, "VainF/DeepLabV3Plus-Pytorch", "utils.ext_transforms")
    voc = load(sources, "VainF/DeepLabV3Plus-Pytorch", "datasets.voc")
    transform = steps.ExtCompose(
        [
            steps.ExtRandomScale((0.5, 2.0)),
            steps.ExtRandomCrop(size=(513, 513), pad_if_needed=True),
            steps.ExtRandomHorizontalFlip(),
            steps.ExtToTensor(),
            steps.ExtNormalize(mean=list(MEAN), std=list(STD)),
        ]
    )
    dataset = voc.VOCSegmentation(str(data), "2012", "train", transform=transform)
    return repeated(dataset), {"batch_size": 16, "drop_last": True}


@pipeline("jfzhang95/pytorch-deeplab-xception", "train.py")
def deeplab_xception(sources: Path, data: Path, photographs: Path) -> Made:
    """DeepLab on VOC: images and masks in a dictionary, flipped, scaled, cropped, blurred and normalized by NumPy."""
    bare_package(sources, "jfzhang95/pytorch-deeplab-xception", "dataloaders", "dataloaders.datasets")
    pascal = load(sources, "jfzhang95/pytorch-deeplab-xception", "dataloaders.datasets.pascal")
    options = Namespace(base_size=513, crop_size=513)
    dataset = pascal.VOCSegmentation(options, base_dir=str(data / "VOCdevkit/VOC2012"), split="train")
    return repeated(dataset), {"batch_size": 4, "drop_last": True}


@pipeline("zhanghang1989/PyTorch-Encoding", "experiments/segmentation/train_dist.py")
def pytorch_encoding(sources: Path, data: Path, photographs: Path) -> Made:
    """PyTorch-Encoding on VOC: images and masks resized, padded and cropped by Pillow."""
    bare_package(sources, "zhanghang1989/PyTorch-Encoding", "encoding", "encoding.datasets")
    voc = load(sources, "zhanghang1989/PyTorch-Encoding", "encoding.datasets.pascal_voc")
    transform = transforms.Compose(normalized())
    dataset = voc.VOCSegmentation(str(data), "train", "train", transform=transform, base_size=520, crop_size=480)
    return repeated(dataset), {"batch_size": 16, "drop_last": True}


@pipeline("milesial/Pytorch-UNet", "train.py")
def unet(sources: Path, data: Path, photographs: Path) -> Made:
    """U-Net: images and masks at half their size, made into arrays by the dataset; batches of one."""
    loading = load(sources, "milesial/Pytorch-UNet", "utils.data_loading")
    dataset = loading.BasicDataset(str(data / "unet/imgs"), str(data / "unet/masks"), 0.5)
    return repeated(dataset), {"batch_size": 1}


@pipeline("qubvel-org/segmentation_models.pytorch", "segmentation_models_pytorch/datasets/oxford_pet.py")
def oxford_pet(sources: Path, data: Path, photographs: Path) -> Made:
    """Pets: arrays of images and trimaps, resized to 256 by the dataset."""
    name = "segmentation_models_pytorch"
    bare_package(sources, "qubvel-org/segmentation_models.pytorch", name, f"{name}.datasets")
    pets = load(sources, "qubvel-org/segmentation_models.pytorch", f"{name}.datasets.oxford_pet")
    return pets.SimpleOxfordPetDataset(str(data / "oxford-pet"), "train"), {"batch_size": 16}


@pipeline("facebookresearch/detr", "main.py")
def detr(sources: Path, data: Path, photographs: Path) -> Made:
    """DETR on COCO: images of many sizes with their boxes, padded by the collate function."""
    coco = load(sources, "facebookresearch/detr", "datasets.coco")
    misc = load(sources, "facebookresearch/detr", "util.misc")
    dataset = coco.build("train", Namespace(coco_path=str(data / "coco"), masks=False))
    return repeated(dataset), {"batch_size": 2, "drop_last": True, "collate_fn": misc.collate_fn}


# ---- people seen again


def _reid_options() -> Namespace:
    return Namespace(
        INPUT=Namespace(
            SIZE_TRAIN=[256, 128], PROB=0.5, RE_PROB=0.5, PADDING=10, PIXEL_MEAN=list(MEAN), PIXEL_STD=list(STD)
        )
    )


@pipeline("michuanhaohao/reid-strong-baseline", "tools/train.py")
def reid_strong_baseline(sources: Path, data: Path, photographs: Path) -> Made:
    """Persons of Market-1501, four images of each in a batch: flips, padded crops and erasing."""
    package = load(sources, "michuanhaohao/reid-strong-baseline", "data.build")
    market = package.init_dataset("market1501", root=str(data), verbose=False)
    dataset = package.ImageDataset(market.train, package.build_transforms(_reid_options(), is_train=True))
    return dataset, {
        "batch_size": 64,
        "shuffle": False,
        "sampler": package.RandomIdentitySampler(market.train, 64, 4),
        "collate_fn": package.train_collate_fn,
    }


@pipeline("KaiyangZhou/deep-person-reid", "torchreid/data/datamanager.py")
def deep_person_reid(sources: Path, data: Path, photographs: Path) -> Made:
    """Persons of Market-1501: resized, flipped, cropped and erased; dictionaries with file names."""
    stub("scipy", "scipy.io", "gdown", "h5py", "torch.utils.tensorboard", "tensorboard", "yacs", "yacs.config")
    repository = "KaiyangZhou/deep-person-reid"
    bare_package(sources, repository, "torchreid", "torchreid.data")
    steps = load(sources, repository, "torchreid.data.transforms")
    market = load(sources, repository, "torchreid.data.datasets.image.market1501")
    transform, _ = steps.build_transforms(256, 128, transforms=["random_flip", "random_crop", "random_erase"])
    dataset = market.Market1501(root=str(data), transform=transform, mode="train", verbose=False)
    return dataset, {"batch_size": 32, "drop_last": True}


# ---- images made from images
