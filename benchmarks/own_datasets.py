"""Datasets of one's own in the forms that people write, against torch's DataLoader on the same dataset.

Setup: RandomResizedCrop(224), flip, ToTensor and Normalize; batches of 64, shuffled; as many worker processes for both;
CPU time of the whole process tree; all loaders take turns in every round.

Result: benchmarks/results/own_datasets.json.

    python benchmarks/own_datasets.py FOLDER

FOLDER/CLASS/IMAGE, repeated to about 1,200 samples, in these forms:

- "ImageFolder": for comparison;
- "table": a class with Image.open(path).convert("RGB") and self.transform(image);
- "preset": the same with a class around the transforms;
- "two views": two random crops of each image, per view;
- "worker_init_fn": as Lightning and timm set it up, with a function that the loader does not know;
- "closure": the transform is a variable of the function around the one that is called;
- "with_transform": a dataset of Hugging Face's with a function that prepares its rows; and, as in the examples of
  transformers and diffusers, "masked images" (crops of 192 pixels and a random mask), "text to image" (a resize to 512
  and a random crop) and "image processor" (ViT's, which resizes the whole image);
- "torchvision.io" and "torchcodec": their decode_image, and transforms of v2 on the tensor;
- "not accelerated": the dataset opens files in a way of its own, and its transform is an argument of functools.partial,
  where it cannot be found, so nothing is gained.
"""

from __future__ import annotations

import argparse
import json
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils.data
import torchvision
from harness import benchmark
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torchvision import datasets, transforms
from torchvision.transforms import v2

from fastdata import DataLoader, NotAccelerated
from fastdata.measuring.rounds import compare

TRAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)


class Table(torch.utils.data.Dataset[Any]):
    """A list of files and labels."""

    def __init__(self, samples: Sequence[tuple[str, int]], transform: Callable[[Any], Any]) -> None:
        self.samples, self.transform = samples, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label


class Preset:
    """A class around the transforms."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transforms = transform

    def __call__(self, image: Any) -> Any:
        """The transformed image."""
        return self.transforms(image)


class TwoViews(Table):
    """Two random crops of each image."""

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        return [self.transform(image), self.transform(image)], label


class Closure(Table):
    """Its transform is a function."""

    def __init__(self, samples: Sequence[tuple[str, int]], transform: Callable[[Any], Any]) -> None:
        super().__init__(samples, lambda image: transform(image))


def with_transform(samples: Sequence[tuple[str, int]], transform: Callable[[Any], Any]) -> Any:
    """A dataset of Hugging Face's with a function that prepares its rows."""

    def prepare(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows["pixels"] = [transform(image.convert("RGB")) for image in rows.pop("image")]
        return rows

    return _of_hugging_face(samples, prepare)


def masked_images(samples: Sequence[tuple[str, int]], _: Any) -> Any:
    """As in transformers' example of masked image modelling."""
    steps = [
        transforms.Lambda(lambda image: image.convert("RGB") if image.mode != "RGB" else image),
        transforms.RandomResizedCrop(192, scale=(0.67, 1.0)),
        *TRAIN.transforms[1:],
    ]
    transform = transforms.Compose(steps)

    def prepare(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows["pixels"] = [transform(image) for image in rows.pop("image")]
        rows["mask"] = [torch.randint(0, 2, (36,)) for _ in rows["pixels"]]
        return rows

    return _of_hugging_face(samples, prepare)


def text_to_image(samples: Sequence[tuple[str, int]], _: Any) -> Any:
    """As in diffusers' example of fine-tuning Stable Diffusion."""
    resize = v2.Resize(512, interpolation=v2.InterpolationMode.LANCZOS)
    steps = [resize, v2.RandomCrop(512), v2.RandomHorizontalFlip(), transforms.ToTensor()]
    return with_transform(samples, transforms.Compose([*steps, transforms.Normalize([0.5], [0.5])]))


def image_processor(samples: Sequence[tuple[str, int]], _: Any) -> Any:
    """As in transformers' guide of image classification."""
    from transformers import ViTImageProcessor

    processor = ViTImageProcessor()

    def prepare(rows: dict[str, list[Any]]) -> dict[str, Any]:
        made = processor([image.convert("RGB") for image in rows["image"]], return_tensors="pt")
        return {"pixels": made["pixel_values"], "label": rows["label"]}

    return _of_hugging_face(samples, prepare)


def _of_hugging_face(samples: Sequence[tuple[str, int]], prepare: Callable[[Any], Any]) -> Any:
    import datasets as hugging_face

    columns = {"image": [path for path, _ in samples], "label": [label for _, label in samples]}
    rows = hugging_face.Dataset.from_dict(columns).cast_column("image", hugging_face.Image())
    return rows.with_transform(prepare)


class Documented(Table):
    """The dataset of torch's documentation, with a decoder and v2's transforms."""

    def __init__(self, decode: Callable[[str], torch.Tensor], samples: Sequence[tuple[str, int]], _: Any) -> None:
        self.decode = decode
        steps = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
        steps += [
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(TRAIN.transforms[-1].mean, TRAIN.transforms[-1].std),
        ]
        super().__init__(samples, v2.Compose(steps))

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(self.decode(path)), label


def by_torchvision(path: str) -> torch.Tensor:
    """By torchvision.io."""
    return torchvision.io.decode_image(path, mode="RGB")


def of_torchcodec(samples: Sequence[tuple[str, int]], transform: Any) -> Any:
    """The same with torchcodec, imported where the dataset is made, as at the top of a program."""
    from torchcodec.decoders import decode_image

    return Documented(decode_image, samples, transform)


class DecodesItself(Table):
    """Opens files past PIL.Image.open, so the loader never sees an encoded image."""

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(JpegImageFile(path).convert("RGB")), label


def called(transform: Callable[[Any], Any], image: Any) -> Any:
    """Calls a transform."""
    return transform(image)


def worker_init(worker: int) -> None:
    """What a framework does in each worker process."""
    torch.manual_seed(torch.initial_seed() + worker)


FORMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "table": (Table, {}),
    "preset": (lambda samples, transform: Table(samples, Preset(transform)), {}),
    "two views": (TwoViews, {}),
    "worker_init_fn": (Table, {"worker_init_fn": worker_init}),
    "closure": (Closure, {}),
    "with_transform": (with_transform, {}),
    "masked images": (masked_images, {}),
    "text to image": (text_to_image, {}),
    "image processor": (image_processor, {}),
    "torchvision.io": (partial(Documented, by_torchvision), {}),
    "torchcodec": (of_torchcodec, {}),
    "not accelerated": (lambda samples, transform: DecodesItself(samples, partial(called, transform)), {}),
}


def run(folder: Path, *, workers: int, rounds: int, images: int, only: str) -> dict[str, Any]:
    """Measures each form with torch's loader and with fastdata's."""
    folder_dataset = datasets.ImageFolder(folder, TRAIN)
    samples = folder_dataset.samples * -(-images // len(folder_dataset.samples))
    folder_dataset.samples = folder_dataset.imgs = samples
    options = {"batch_size": 64, "shuffle": True, "num_workers": workers}
    forms = {"ImageFolder": (lambda *_: folder_dataset, {}), **FORMS}
    results = {}
    for name, (make, more) in forms.items():
        if only not in ("", name):
            continue
        dataset, views = make(samples, TRAIN), 2 if name == "two views" else 1
        loaders: dict[str, Any] = {
            "torch": torch.utils.data.DataLoader(dataset, **options, **more),
            "fastdata": DataLoader(dataset, **options, **more),
        }
        print(f"{name}: {loaders['fastdata'].verdict()}")
        epochs = {kind: partial(iter, loader) for kind, loader in loaders.items()}
        results[name] = compare(epochs, "torch", images=views * len(samples), rounds=rounds)
    return results


def measured(given: Namespace) -> dict[str, Any]:
    """Every form, or one whose results replace those in the file."""
    warnings.simplefilter("ignore", NotAccelerated)
    before = json.loads(given.out.read_text())["results"] if given.only else {}
    options = {"workers": given.workers, "rounds": given.rounds, "images": given.images, "only": given.only}
    return before | run(given.folder, **options)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this benchmark alone."""
    parser.add_argument("--only", default="", help="name of one form; the results of others are kept")


if __name__ == "__main__":
    told = "one folder of images per class"
    benchmark(__file__, measured, folder=told, add=arguments, images=1200, workers=2, rounds=5)
