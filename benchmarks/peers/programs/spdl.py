"""SPDL's DataLoader: threads; FFmpeg decodes, crops, resizes and flips in one filter."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import spdl.io
import torch
from spdl.dataloader import DataLoader
from torchvision.transforms import v2
from workloads import MEAN, STD, Twice, Workload, tensor_transform

from programs import Job, Loader, samples

__all__ = ["loader", "prepare"]


def prepare(job: Job) -> None:
    """It reads files."""


def random_window(width: int, height: int) -> tuple[int, int, int, int]:
    """(left, top, width, height) of a random crop, with torchvision's distribution."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return random.randint(0, width - wide), random.randint(0, height - high), wide, high
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def _filter(work: Workload, width: int, height: int) -> str:
    """FFmpeg's description of the views; exact=1 keeps windows from being rounded to the chroma's grid."""
    size = work.size
    if work.view == "val":
        scale = size * 8 // 7 / min(width, height)
        wide, high = int(width * scale), int(height * scale)
        wide, high = (size * 8 // 7, high) if width <= height else (wide, size * 8 // 7)
        return f"scale={wide}:{high}:flags=bilinear,format=pix_fmts=rgb24,crop={size}:{size}:exact=1"
    left, top, wide, high = random_window(width, height)
    flip = ",hflip" if random.random() < 0.5 else ""
    return f"crop={wide}:{high}:{left}:{top}:exact=1,scale={size}:{size}:flags=bilinear{flip},format=pix_fmts=rgb24"


def _view(path: str, work: Workload) -> Any:
    packets = spdl.io.demux_image(path)
    return spdl.io.decode_packets(packets, filter_desc=_filter(work, packets.width, packets.height))


def _whole(path: str) -> Any:
    return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc="format=pix_fmts=rgb24")


def _batch(items: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames as one normalised batch."""
    images = spdl.io.to_torch(spdl.io.convert_frames([frame for frame, _ in items])).permute(0, 3, 1, 2)
    mean, std = (255 * torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    labels = torch.tensor([label for _, label in items])
    return images.to(torch.float32).sub_(mean).div_(std), labels


def _stacked(items: list[tuple[Any, int]]) -> tuple[Any, torch.Tensor]:
    images, labels = zip(*items, strict=True)
    if isinstance(images[0], tuple):
        return [torch.stack(view) for view in zip(*images, strict=True)], torch.tensor(labels)
    return torch.stack(images), torch.tensor(labels)


def loader(job: Job) -> Loader:
    """The filter for what it can do; what it does not have is torchvision's, in the same threads."""
    work = job.work
    found = samples(job.images)
    torch.set_num_threads(1)  # its threads are the parallelism, as torch's worker processes are
    if work.view in ("train", "val"):
        one, all_of = (lambda item: (_view(item[0], work), item[1])), _batch
    else:
        one, all_of = _by_torchvision(work), _stacked

    def source() -> Iterator[tuple[str, int]]:
        order = np.random.permutation(len(found)) if work.is_random else range(len(found))
        for index in order:
            yield found[index]

    def epoch() -> Iterator[tuple[Any, Any]]:
        return iter(
            DataLoader(
                source(),
                preprocessor=one,
                batch_size=work.batch,
                aggregator=all_of,
                buffer_size=3,
                num_threads=job.threads,
                output_order="completion" if work.is_random else "input",
            )
        )

    return Loader(epoch)


def _by_torchvision(work: Workload) -> Any:
    """What the filter has not: one view behind its crop, or several of an image that is decoded once."""
    whole = tensor_transform(work)
    is_once = not isinstance(whole, Twice)
    rest = v2.Compose(whole.transforms[2:]) if is_once else whole  # the filter crops and flips

    def one(item: tuple[str, int]) -> tuple[Any, int]:
        path, label = item
        frames = _view(path, work) if is_once else _whole(path)
        return rest(spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(2, 0, 1)), label

    return one
