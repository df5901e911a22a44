"""Self-supervised learning: several views of an image, or a mask over it."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sources import Made, load, normalized, pipeline, stub, train_folder
from torchvision import transforms


def _two_blurred_views(views: Any) -> Any:
    steps = [
        transforms.RandomResizedCrop(224, scale=(0.2, 1.0)),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.RandomApply([views.GaussianBlur([0.1, 2.0])], p=0.5),
        transforms.RandomHorizontalFlip(),
        *normalized(),
    ]
    return views.TwoCropsTransform(transforms.Compose(steps))


@pipeline("facebookresearch/moco", "main_moco.py")
def moco_v2(sources: Path, data: Path, photographs: Path) -> Made:
    """MoCo v2: two jittered, blurred views of each image."""
    views = load(sources, "facebookresearch/moco", "moco.loader")
    return train_folder(data, _two_blurred_views(views)), {"batch_size": 64, "drop_last": True}


@pipeline("facebookresearch/simsiam", "main_simsiam.py")
def simsiam(sources: Path, data: Path, photographs: Path) -> Made:
    """SimSiam: two jittered, blurred views of each image."""
    views = load(sources, "facebookresearch/simsiam", "simsiam.loader")
    return train_folder(data, _two_blurred_views(views)), {"batch_size": 64, "drop_last": True}


@pipeline("facebookresearch/barlowtwins", "main.py")
def barlow_twins(sources: Path, data: Path, photographs: Path) -> Made:
    """Barlow Twins: two views, transformed differently."""
    program = load(sources, "facebookresearch/barlowtwins", "main")
    return train_folder(data, program.Transform()), {"batch_size": 64, "drop_last": True}


@pipeline("facebookresearch/vicreg", "main_vicreg.py")
def vicreg(sources: Path, data: Path, photographs: Path) -> Made:
    """VICReg: two views, transformed differently."""
    augmentations = load(sources, "facebookresearch/vicreg", "augmentations")
    return train_folder(data, augmentations.TrainTransform()), {"batch_size": 64, "drop_last": True}


@pipeline("facebookresearch/swav", "main_swav.py")
def swav(sources: Path, data: Path, photographs: Path) -> Made:
    """SwAV: two large and six small crops of each image."""
    multicrop = load(sources, "facebookresearch/swav", "src.multicropdataset")
    folder = str(data / "imagenet/train")
    dataset = multicrop.MultiCropDataset(folder, [224, 96], [2, 6], [0.14, 0.05], [1.0, 0.14])
    return dataset, {"batch_size": 64, "drop_last": True}


@pipeline("facebookresearch/dino", "main_dino.py")
def dino(sources: Path, data: Path, photographs: Path) -> Made:
    """DINO: two large and eight small crops of each image."""
    program = load(sources, "facebookresearch/dino", "main_dino")
    transform = program.DataAugmentationDINO((0.4, 1.0), (0.05, 0.4), 8)
    return train_folder(data, transform), {"batch_size": 64, "drop_last": True}


@pipeline("facebookresearch/dinov2", "dinov2/train/train.py")
def dinov2(sources: Path, data: Path, photographs: Path) -> Made:
    """DINOv2: two large and eight small crops of each image, and masks of patches from the collate function."""
    stub("omegaconf", "iopath", "fvcore", "submitit")
    package = load(sources, "facebookresearch/dinov2", "dinov2.data")
    extended = load(sources, "facebookresearch/dinov2", "dinov2.data.datasets.extended")
    files = sorted((data / "imagenet/train").glob("*/*"))

    class Folder(extended.ExtendedVisionDataset):  # type: ignore[misc, name-defined]
        """Gives the bytes of files, as the program's own datasets do."""

        def get_image_data(self, index: int) -> bytes:
            return files[index].read_bytes()

        def get_target(self, index: int) -> Any:
            return ()

        def __len__(self) -> int:
            return len(files)

    collate = partial(
        package.collate_data_and_cast,
        mask_ratio_tuple=(0.1, 0.5),
        mask_probability=0.5,
        n_tokens=196,
        mask_generator=package.MaskingGenerator(input_size=(14, 14), max_num_patches=98),
        dtype=torch.half,
    )
    transform = package.DataAugmentationDINO((0.32, 1.0), (0.05, 0.32), 8)
    dataset = Folder(str(data), transform=transform, target_transform=lambda _: ())
    return dataset, {"batch_size": 64, "drop_last": True, "collate_fn": collate}


@pipeline("HobbitLong/SupContrast", "main_supcon.py")
def supcontrast(sources: Path, data: Path, photographs: Path) -> Made:
    """Supervised contrastive learning: two jittered views of each image of a folder."""
    views = load(sources, "HobbitLong/SupContrast", "util")
    steps = [
        transforms.RandomResizedCrop(size=224, scale=(0.2, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
        *normalized(),
    ]
    return train_folder(data, views.TwoCropTransform(transforms.Compose(steps))), {"batch_size": 64}


@pipeline("sthalles/SimCLR", "run.py")
def simclr(sources: Path, data: Path, photographs: Path) -> Made:
    """SimCLR at STL10's size: two views, blurred by a convolution."""
    contrastive = load(sources, "sthalles/SimCLR", "data_aug.contrastive_learning_dataset")
    transform = contrastive.ContrastiveLearningDataset.get_simclr_pipeline_transform(96)
    views = contrastive.ContrastiveLearningViewGenerator(transform, 2)
    return train_folder(data, views), {"batch_size": 64, "drop_last": True}


@pipeline("microsoft/Swin-Transformer", "main_simmim_pt.py")
def simmim(sources: Path, data: Path, photographs: Path) -> Made:
    """SimMIM: a crop of 192 and a mask of patches."""
    stub("yacs", "yacs.config")
    masked = load(sources, "microsoft/Swin-Transformer", "data.data_simmim_pt")
    model = Namespace(TYPE="swin", SWIN=Namespace(PATCH_SIZE=4))
    config = Namespace(DATA=Namespace(IMG_SIZE=192, MASK_PATCH_SIZE=32, MASK_RATIO=0.6), MODEL=model)
    dataset = train_folder(data, masked.SimMIMTransform(config))
    return dataset, {"batch_size": 64, "drop_last": True, "collate_fn": masked.collate_fn}


# ---- segmentation and detection
