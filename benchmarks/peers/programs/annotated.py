"""Photographs with masks or boxes, by a dataset of one's own with torchvision's v2 transforms."""

from __future__ import annotations

from typing import Any

import PIL.Image
import torch
from drawn import Annotation, annotations
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_image
from workloads import target_transform

from programs import Job

__all__ = ["Annotated", "as_lists"]


class Annotated(Dataset[Any]):
    """(view, mask) or (view, {"boxes", "labels"}) of each photograph."""

    def __init__(self, job: Job) -> None:
        self.found = annotations(job.images)
        self.has_masks = job.work.view == "segmentation"
        self.on_tensors = job.option == "tensor"
        self.view = target_transform(job.work, on_tensors=self.on_tensors)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        one = self.found[index]
        if self.on_tensors:
            image = tv_tensors.Image(decode_image(one.image, mode=ImageReadMode.RGB))
        else:
            image = PIL.Image.open(one.image).convert("RGB")
        if not self.has_masks:
            height, width = image.shape[-2:] if self.on_tensors else image.size[::-1]
            return self.view(image, boxes_of(one, height, width))
        mask = tv_tensors.Mask(PIL.Image.open(one.mask))  # decode_image would give the colours of its palette
        image, mask = self.view(image, mask)
        return image, mask.squeeze(0)


def boxes_of(one: Annotation, height: int, width: int) -> dict[str, Any]:
    """The objects, as torchvision's detection models take them."""
    boxes = tv_tensors.BoundingBoxes(
        one.boxes, dtype=torch.float32, format=tv_tensors.BoundingBoxFormat.XYXY, canvas_size=(height, width)
    )
    return {"boxes": boxes, "labels": torch.tensor(one.labels)}


def as_lists(items: list[tuple[Any, Any]]) -> tuple[Any, ...]:
    """A batch of images that differ in size: torchvision's references call it collate_fn."""
    return tuple(zip(*items, strict=True))
