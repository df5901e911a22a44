"""What people train with: recipes of augmentations against torch's DataLoader and torchvision.

Setup: RandomResizedCrop(224) and flip, the recipe's augmentations, ToTensor and Normalize over FOLDER/CLASS/IMAGE as an
ImageFolder; batches of 64, shuffled; as many threads as worker processes; CPU time of the whole process tree.  Recipes:

- "crop": no augmentation, for comparison;
- "RandAugment", "AutoAugment", "ColorJitter" (0.4, 0.4, 0.4, 0.1): torchvision's; beside RandAugment also NVIDIA DALI's
  of the same two operations and magnitude on the CPU, where it is installed;
- "TrivialAugmentWide": with RandomErasing(0.25) behind Normalize, as in torchvision's reference script;
- "SimCLR": two views of each image with jitter, grey and a blur of 23 pixels, per view;
- "DINO": two global and eight local views of each image, per image;
- "timm": create_transform's rand-m7-mstd0.5-inc1 with erasing (m9 now and then keeps 0 bits, which Pillow 13 refuses),
  "timm AugMix": its augmix-m3-w3 (nor does it keep 0 bits), "timm 3-Augment": its 3a, with its ColorJitter;
- "before the crop": Resize(256), the ColorJitter and RandomCrop(224), so that images of many sizes are augmented;
- "AugMix": torchvision's, and "FiveCrop" of Resize(256), turned into tensors by a function: both called per sample;
- "timm create_loader": timm's own loader of uint8 images, with its class for datasets, rand-m7-mstd0.5-inc1;
- "v2 tensors": ToImage first, as in the guide of torchvision's v2, then crop, flip, ToDtype and Normalize on tensors;
  once more with the ColorJitter, on tensors as well.

All loaders take turns in every round.  Result: benchmarks/results/recipes.json.

    python benchmarks/recipes.py FOLDER
"""

from __future__ import annotations

import argparse
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils.data
from harness import benchmark
from torchvision import datasets, transforms
from torchvision.transforms import InterpolationMode, v2

from fastdata import DataLoader, NotAccelerated
from fastdata.measuring.rounds import compare
from fastdata.system.installed import installed

BATCH = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def recipe(*augmentations: Any, size: int = 224, behind: Any = (), **crop: Any) -> Any:
    """Random crops with some augmentations."""
    begin = [transforms.RandomResizedCrop(size, **crop), transforms.RandomHorizontalFlip()]
    end = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    return transforms.Compose([*begin, *augmentations, *end, *behind])


class Views:
    """Several views of each image, each with a transform of its own."""

    def __init__(self, *each: Any) -> None:
        self.transforms = each

    def __call__(self, image: Any) -> Any:
        """All views."""
        return [transform(image) for transform in self.transforms]


def simclr() -> Any:
    """Two views; source: Chen et al., "A simple framework for contrastive learning", 2020."""
    jitter = transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    blur = transforms.RandomApply([transforms.GaussianBlur(23, (0.1, 2.0))], p=0.5)
    views = [recipe(jitter, transforms.RandomGrayscale(0.2), blur) for _ in range(2)]
    return Views(*views)


def dino() -> Any:
    """Ten views; source: Caron et al., "Emerging properties in self-supervised vision transformers", 2021."""

    def view(size: int, scale: tuple[float, float], blur: float, solarize: float) -> Any:
        steps = [
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            transforms.RandomGrayscale(0.2),
            transforms.RandomApply([transforms.GaussianBlur(9, (0.1, 2.0))], p=blur),
            transforms.RandomSolarize(128, p=solarize),
        ]
        return recipe(*steps, size=size, scale=scale, interpolation=InterpolationMode.BICUBIC)

    large = view(224, (0.4, 1.0), 1.0, 0.0), view(224, (0.4, 1.0), 0.1, 0.2)
    return Views(*large, *(view(96, (0.05, 0.4), 0.5, 0.0) for _ in range(8)))


def timms(policy: str, **options: Any) -> Any:
    """As timm's training script is usually called."""
    from timm.data import create_transform

    return create_transform(224, is_training=True, auto_augment=policy, **options)


def tensors(*augmentations: Any) -> Any:
    """The pipeline of torchvision's guide to v2, with some augmentations."""
    begin = [v2.ToImage(), v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    return v2.Compose([*begin, *augmentations, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def before_the_crop() -> Any:
    """Augmentations where many people put them."""
    begin = [transforms.Resize(256), transforms.ColorJitter(0.4, 0.4, 0.4, 0.1), transforms.RandomCrop(224)]
    return transforms.Compose([*begin, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def to_tensors(crops: Any) -> torch.Tensor:
    """As torchvision's documentation of FiveCrop does it."""
    return torch.stack([transforms.ToTensor()(crop) for crop in crops])


def five_crops() -> Any:
    """Five of each image."""
    return transforms.Compose([transforms.Resize(256), transforms.FiveCrop(224), transforms.Lambda(to_tensors)])


RECIPES: dict[str, tuple[Any, int]] = {  # a transform, and the views of each image that are counted
    "crop": (recipe, 1),
    "RandAugment": (lambda: recipe(transforms.RandAugment()), 1),
    "AutoAugment": (lambda: recipe(transforms.AutoAugment()), 1),
    "TrivialAugmentWide": (
        lambda: recipe(transforms.TrivialAugmentWide(), behind=[transforms.RandomErasing(0.25)]),
        1,
    ),
    "ColorJitter": (lambda: recipe(transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)), 1),
    "SimCLR": (simclr, 2),
    "DINO": (dino, 1),
    "timm": (lambda: timms("rand-m7-mstd0.5-inc1", re_prob=0.25, re_mode="pixel"), 1),
    "timm AugMix": (lambda: timms("augmix-m3-w3"), 1),
    "timm 3-Augment": (lambda: timms("3a"), 1),
    "before the crop": (before_the_crop, 1),
    "AugMix": (lambda: recipe(transforms.AugMix()), 1),
    "FiveCrop": (five_crops, 1),
    "timm create_loader": (lambda: timms("rand-m7-mstd0.5-inc1", use_prefetcher=True), 1),
    "v2 tensors": (tensors, 1),
    "v2 tensors, ColorJitter": (lambda: tensors(v2.ColorJitter(0.4, 0.4, 0.4, 0.1)), 1),
}


def dalis(paths: list[str], workers: int) -> Callable[[], Iterator[Any]]:
    """DALI's own RandAugment behind its crop, resize and flip, on the CPU."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import rand_augment

    @pipeline_def(batch_size=BATCH, num_threads=workers, device_id=None, seed=1, enable_conditionals=True)  # type: ignore[untyped-decorator, unused-ignore]
    def pipeline() -> Any:
        encoded, labels = fn.readers.file(files=paths, labels=[0] * len(paths), random_shuffle=True)
        images = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, size=[224, 224], antialias=True)
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        images = rand_augment.rand_augment(images, n=2, m=9, shape=[224, 224], fill_value=0)
        mean, std = ([255 * value for value in values] for values in (MEAN, STD))
        return fn.crop_mirror_normalize(images, dtype=types.FLOAT, mean=mean, std=std), labels

    running = pipeline()
    running.build()

    def epoch() -> Iterator[Any]:
        for _ in range(-(-len(paths) // BATCH)):
            images, labels = running.run()
            yield torch.from_numpy(images.as_array()), torch.from_numpy(labels.as_array())

    return epoch


def run(folder: Path, name: str, *, workers: int, rounds: int, images: int) -> dict[str, Any]:
    """Measures one recipe with torch's loader and with fastdata's."""
    make, views = RECIPES[name]
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": workers}
    dataset: Any
    if name == "timm create_loader":
        from timm.data import create_dataset
        from timm.data.loader import fast_collate

        dataset, options["collate_fn"] = create_dataset("", root=str(folder), transform=make()), fast_collate
        dataset.reader.samples = (dataset.reader.samples * -(-images // len(dataset)))[:images]
    else:
        dataset = datasets.ImageFolder(str(folder), make())
        dataset.samples = dataset.imgs = (dataset.samples * -(-images // len(dataset.samples)))[:images]
    loaders: dict[str, Any] = {
        "torch": torch.utils.data.DataLoader(dataset, **options),
        "fastdata": DataLoader(dataset, **options),
    }
    print(f"{name}: {loaders['fastdata'].verdict()}")
    epochs = {kind: partial(iter, loader) for kind, loader in loaders.items()}
    if name == "RandAugment" and installed("nvidia.dali"):
        epochs["DALI, CPU"] = dalis([path for path, _ in dataset.samples], workers)
    return compare(epochs, "torch", images=views * images, rounds=rounds)


def measured(given: Namespace) -> dict[str, Any]:
    """Every recipe."""
    warnings.simplefilter("ignore", NotAccelerated)
    options = {"workers": given.workers, "rounds": given.rounds, "images": given.images}
    return {name: run(given.folder, name, **options) for name in given.only}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this benchmark alone."""
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=list(RECIPES), help="some of the recipes")


if __name__ == "__main__":
    told = "one folder of images per class"
    benchmark(__file__, measured, folder=told, add=arguments, images=400, workers=2, rounds=5)
