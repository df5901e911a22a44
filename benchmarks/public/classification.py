"""Classifiers: what public programs train them with."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps
from sources import Made, load, normalized, pipeline, stub, train_folder
from torchvision import transforms


@pipeline("pytorch/examples", "imagenet/main.py")
def imagenet_example(sources: Path, data: Path, photographs: Path) -> Made:
    """Random crops and flips of ImageNet."""
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *normalized()]
    return train_folder(data, transforms.Compose(steps)), {"batch_size": 64}


def _augmented(color_jitter: float | None = 0.4) -> dict[str, Any]:
    return {
        "input_size": 224,
        "color_jitter": color_jitter,
        "aa": "rand-m9-mstd0.5-inc1",
        "train_interpolation": "bicubic",
        "reprob": 0.25,
        "remode": "pixel",
        "recount": 1,
    }


def _keeping_no_bits() -> None:
    """Lets timm's PosterizeIncreasing ask for 0 bits, which Pillow refuses by now and gave black pixels for before."""
    posterize = ImageOps.posterize
    ImageOps.posterize = lambda image, bits: posterize(image, bits) if bits else Image.new(image.mode, image.size)


@pipeline("facebookresearch/deit", "main.py")
def deit(sources: Path, data: Path, photographs: Path) -> Made:
    """DeiT: timm's RandAugment and random erasing."""
    _keeping_no_bits()
    datasets = load(sources, "facebookresearch/deit", "datasets")
    options = Namespace(data_set="IMNET", data_path=str(data / "imagenet"), **_augmented(0.3))
    return datasets.build_dataset(True, options)[0], {"batch_size": 64, "drop_last": True}


@pipeline("facebookresearch/deit", "augment.py")
def deit_three_augment(sources: Path, data: Path, photographs: Path) -> Made:
    """DeiT III: one of grey, solarized and blurred, then colour jitter."""
    import timm.data.transforms

    if not hasattr(timm.data.transforms, "_pil_interp"):  # renamed since
        timm.data.transforms._pil_interp = timm.data.transforms.str_to_pil_interp
    augment = load(sources, "facebookresearch/deit", "augment")
    transform = augment.new_data_aug_generator(Namespace(input_size=224, src=False, color_jitter=0.3))
    return train_folder(data, transform), {"batch_size": 64, "drop_last": True}


@pipeline("facebookresearch/ConvNeXt", "main.py")
def convnext(sources: Path, data: Path, photographs: Path) -> Made:
    """ConvNeXt: timm's RandAugment and random erasing."""
    _keeping_no_bits()
    datasets = load(sources, "facebookresearch/ConvNeXt", "datasets")
    options = Namespace(data_set="IMNET", data_path=str(data / "imagenet"), **_augmented())
    options.imagenet_default_mean_and_std = True
    return datasets.build_dataset(True, options)[0], {"batch_size": 64, "drop_last": True}


@pipeline("microsoft/Swin-Transformer", "main.py")
def swin(sources: Path, data: Path, photographs: Path) -> Made:
    """Swin: timm's RandAugment and random erasing."""
    _keeping_no_bits()
    stub("yacs", "yacs.config")
    build = load(sources, "microsoft/Swin-Transformer", "data.build")
    location = Namespace(
        IMG_SIZE=224, INTERPOLATION="bicubic", DATASET="imagenet", DATA_PATH=str(data / "imagenet"), ZIP_MODE=False
    )
    policy = Namespace(COLOR_JITTER=0.4, AUTO_AUGMENT="rand-m9-mstd0.5-inc1", REPROB=0.25, REMODE="pixel", RECOUNT=1)
    dataset, _ = build.build_dataset(True, Namespace(DATA=location, AUG=policy))
    return dataset, {"batch_size": 64, "drop_last": True}


@pipeline("facebookresearch/mae", "main_finetune.py")
def mae_finetune(sources: Path, data: Path, photographs: Path) -> Made:
    """MAE's fine-tuning: timm's RandAugment and random erasing."""
    _keeping_no_bits()
    datasets = load(sources, "facebookresearch/mae", "util.datasets")
    options = Namespace(data_path=str(data / "imagenet"), **_augmented(None))
    return datasets.build_dataset(True, options), {"batch_size": 64, "drop_last": True}


# ---- learning without labels


@pipeline("facebookresearch/mae", "main_pretrain.py")
def mae_pretrain(sources: Path, data: Path, photographs: Path) -> Made:
    """MAE's pretraining: random bicubic crops and flips."""
    steps = [
        transforms.RandomResizedCrop(224, scale=(0.2, 1.0), interpolation=transforms.InterpolationMode.BICUBIC),
        transforms.RandomHorizontalFlip(),
        *normalized(),
    ]
    return train_folder(data, transforms.Compose(steps)), {"batch_size": 64, "drop_last": True}
