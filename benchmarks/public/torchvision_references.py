"""torchvision's own training scripts, `references/` of its repository."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from sources import Made, load, pipeline
from torchvision import datasets
from torchvision.transforms import InterpolationMode
from with_targets import repeated

REPOSITORY = "pytorch/vision"


@pipeline(REPOSITORY, "references/classification/train.py")
def torchvision_classification(sources: Path, data: Path, photographs: Path) -> Made:
    """Torchvision's ImageNet recipe as its options are by default: a random crop and a flip."""
    presets = load(sources, REPOSITORY, "presets", "references/classification")
    transform = presets.ClassificationPresetTrain(
        crop_size=224, interpolation=InterpolationMode.BILINEAR, backend="pil", use_v2=False
    )
    return repeated(datasets.ImageFolder(str(photographs), transform)), {"batch_size": 32, "drop_last": True}


def _segmentation(sources: Path, data: Path, **options: Any) -> Made:
    train = load(sources, REPOSITORY, "train", "references/segmentation")
    dataset, _ = train.get_dataset(Namespace(**options), is_train=True)
    utils = load(sources, REPOSITORY, "utils", "references/segmentation")
    return repeated(dataset), {"batch_size": 8, "drop_last": True, "collate_fn": utils.collate_fn}


@pipeline(REPOSITORY, "references/segmentation/train.py")
def torchvision_segmentation(sources: Path, data: Path, photographs: Path) -> Made:
    """Torchvision's segmentation of VOC: its functions for images and masks of Pillow's."""
    return _segmentation(sources, data, data_path=str(data), dataset="voc", backend="PIL", use_v2=False)


@pipeline(REPOSITORY, "references/segmentation/train.py --use-v2 --backend tv_tensor")
def torchvision_segmentation_v2(sources: Path, data: Path, photographs: Path) -> Made:
    """Torchvision's segmentation of COCO: transforms v2 on tensors of images and masks."""
    return _segmentation(sources, data, data_path=str(data / "coco"), dataset="coco", backend="tv_tensor", use_v2=True)


def _detection(sources: Path, data: Path, **options: Any) -> Made:
    presets = load(sources, REPOSITORY, "presets", "references/detection")
    coco = load(sources, REPOSITORY, "coco_utils", "references/detection")
    utils = load(sources, REPOSITORY, "utils", "references/detection")
    dataset = coco.get_coco(
        str(data / "coco"), "train", presets.DetectionPresetTrain(use_v2=True, **options), use_v2=True
    )
    return repeated(dataset), {"batch_size": 2, "drop_last": True, "collate_fn": utils.collate_fn}


@pipeline(REPOSITORY, "references/detection/train.py --use-v2 --backend tv_tensor")
def torchvision_detection_v2(sources: Path, data: Path, photographs: Path) -> Made:
    """Torchvision's detection on COCO: transforms v2 on images and boxes, flipped; images of many sizes."""
    return _detection(sources, data, data_augmentation="hflip", backend="tv_tensor")


@pipeline(REPOSITORY, "references/detection/train.py --use-v2 --data-augmentation multiscale")
def torchvision_detection_multiscale(sources: Path, data: Path, photographs: Path) -> Made:
    """Torchvision's detection on COCO: images of Pillow's and boxes, resized by random factors and flipped."""
    return _detection(sources, data, data_augmentation="multiscale", backend="pil")
