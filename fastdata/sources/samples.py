"""Samples of a source that only offers encoded bytes and targets, made as torchvision's folders make them."""

from __future__ import annotations

import io
from typing import Any

from torch.utils.data import Dataset

from fastdata.sources.protocol import ImageSource, NotASource
from fastdata.sources.recognise import makes_samples, recognise

__all__ = ["samples_of", "users_dataset"]


class _SamplesOf(Dataset[Any]):
    """A dataset of (image, target): the image in RGB by Pillow, then the source's transform."""

    def __init__(self, users: Any, source: ImageSource) -> None:
        self.users, self.source = users, source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        image = Image.open(io.BytesIO(self.source.read_encoded(index))).convert("RGB")
        transform = self.source.transform
        return image if transform is None else transform(image), self.source.read_target(index)


def samples_of(dataset: Any) -> Any:
    """Returns the dataset, or for one whose class has no `__getitem__` but is a source, one that makes its samples."""
    if makes_samples(dataset):
        return dataset
    try:
        return _SamplesOf(dataset, recognise(dataset))
    except NotASource:
        return dataset


def users_dataset(dataset: Any) -> Any:
    """Returns the user's dataset, also of one that `samples_of` returned."""
    return dataset.users if type(dataset) is _SamplesOf else dataset
