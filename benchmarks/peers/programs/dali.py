"""DALI: fused decode and crop, antialiased resize; files, WebDataset's tars, or a batch of an array; CPU or GPU."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.auto_aug import rand_augment
from nvidia.dali.plugin.pytorch import feed_ndarray
from workloads import MEAN, STD, Workload

from programs import Job, Loader, samples
from programs.tars import write_tars

__all__ = ["loader", "pipeline_of", "prepare"]

BINS = 31
_AHEAD = 2  # batches, which is DALI's default, too


def prepare(job: Job) -> None:
    """Tars with DALI's own index."""
    if job.option == "shards":
        for path in write_tars(job, 1):
            if not path.with_suffix(".idx").exists():
                tool = Path(sys.executable).parent / "wds2idx"
                command = [str(tool)] if tool.exists() else [sys.executable, "-m", "wds2idx"]
                subprocess.run([*command, str(path), str(path.with_suffix(".idx"))], check=True, capture_output=True)


def _encoded(job: Job) -> tuple[Any, Any]:
    if job.option == "shards":
        (path,) = write_tars(job, 1)
        image, label = fn.readers.webdataset(
            paths=[str(path)],
            index_paths=[str(path.with_suffix(".idx"))],
            ext=["jpg;png", "cls"],
            random_shuffle=job.work.is_random,
            initial_fill=job.work.count,
        )
        return image, label
    found = samples(job.images)
    image, label = fn.readers.file(
        files=[path for path, _ in found],
        labels=[label for _, label in found],
        random_shuffle=job.work.is_random,
        initial_fill=job.work.count,
    )
    return image, label


def _view(encoded: Any, work: Workload, device: str) -> Any:
    """One tensor of an encoded image, which a "mixed" decoder takes to the GPU; what follows stays where it is."""
    if work.view == "val":
        image = fn.resize(fn.decoders.image(encoded, device=device), resize_shorter=work.size * 8 // 7, antialias=True)
        return _finished(image, work, mirror=0)
    image = fn.decoders.image_random_crop(
        encoded, device=device, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    image = fn.resize(image, size=[work.size, work.size], antialias=True)
    if work.view == "randaugment":
        image = fn.flip(image, horizontal=fn.random.coin_flip())
        image = rand_augment.rand_augment(image, n=2, m=9, num_magnitude_bins=BINS, fill_value=0)
        return _finished(image, work, mirror=0)
    if work.view == "simclr":
        image = _simclr(image, work)
    return _finished(image, work, mirror=fn.random.coin_flip())


def _simclr(image: Any, work: Workload) -> Any:
    """Colours, grey and blur; probabilities by drawing the neutral value for the rest."""
    jittered = fn.random.coin_flip(probability=0.8)
    strength = partial(_between, jittered)
    image = fn.color_twist(
        image,
        brightness=strength(0.2, 1.8),
        contrast=strength(0.2, 1.8),
        saturation=strength(0.2, 1.8),
        hue=fn.random.uniform(range=[-72.0, 72.0]) * jittered,
    )
    coloured = 1 - fn.random.coin_flip(probability=0.2)
    image = fn.saturation(image, saturation=fn.cast(coloured, dtype=types.FLOAT))
    return fn.gaussian_blur(image, sigma=fn.random.uniform(range=[0.1, 2.0]), window_size=work.size // 20 * 2 + 1)


def _between(drawn: Any, low: float, high: float) -> Any:
    return fn.random.uniform(range=[low, high]) * drawn + (1 - drawn)


def _finished(image: Any, work: Workload, mirror: Any) -> Any:
    return fn.crop_mirror_normalize(
        image,
        crop=(work.size, work.size),
        mirror=mirror,
        dtype=types.FLOAT,
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
    )


def _array_view(image: Any, work: Workload) -> Any:
    """One tensor of stored pixels."""
    if work.view == "cifar":
        left, top = (fn.random.uniform(range=[0.0, 1.0]) for _ in range(2))
        padded = fn.paste(image, ratio=(work.size + 8) / work.size, fill_value=0, paste_x=0.5, paste_y=0.5)
        image = fn.crop(padded, crop=(work.size, work.size), crop_pos_x=left, crop_pos_y=top)
    else:
        image = fn.random_resized_crop(
            image, size=[work.size, work.size], random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
    return _finished(image, work, mirror=fn.random.coin_flip())


def _batches_of_array(job: Job) -> Any:
    """A source for fn.external_source: shuffled batches of an array and its labels."""
    pixels = np.load(job.images / "pixels.npy", mmap_mode="r")
    labels = np.load(job.images / "labels.npy").astype(np.int32)[:, None]

    def source() -> Iterator[Any]:
        while True:
            order = np.random.permutation(len(pixels))
            for first in range(0, len(order), job.work.batch):
                chosen = order[first : first + job.work.batch]
                yield pixels[chosen], labels[chosen]

    return source


def pipeline_of(job: Job) -> Any:
    """A pipeline, not built yet: images and labels."""
    work = job.work
    device, device_id = ("mixed", 0) if job.option == "gpu" else ("cpu", None)
    common = {"batch_size": work.batch, "num_threads": job.threads, "device_id": device_id, "seed": 1}
    common["prefetch_queue_depth"] = _AHEAD

    @pipeline_def(**common, enable_conditionals=False)
    def pipeline() -> Any:
        if job.option == "pixels":
            image, label = fn.external_source(_batches_of_array(job)(), num_outputs=2, layout=["HWC", ""])
            return _array_view(image, work), label
        encoded, label = _encoded(job)
        views = [_view(encoded, work, device) for _ in range(work.views)]
        return (*views, label)

    @pipeline_def(**common, enable_conditionals=True)
    def with_conditionals() -> Any:
        encoded, label = _encoded(job)
        return _view(encoded, work, device), label

    return with_conditionals() if work.view == "randaugment" else pipeline()


def loader(job: Job) -> Loader:
    """Batches as tensors: over DALI's own memory on the host; copied on the GPU, as its iterator for torch does."""
    work, running = job.work, pipeline_of(job)
    running.build()
    tensor = _on_device if job.option == "gpu" else _in_place
    passes = itertools.count()

    def epoch() -> Iterator[tuple[Any, Any]]:
        """As `Pipeline.run` does it, but that a pass leaves no batches to the next, which would begin with them."""
        left = work.count // work.batch
        if left < _AHEAD:
            raise ValueError(f"a pass of {left} batch would leave some to the next; take more images")
        for _ in range(_AHEAD if next(passes) else 1):  # the very first call schedules as many at once
            running.schedule_run()
        for number in range(left):
            *views, labels = running.share_outputs()
            images = [tensor(view) for view in views]
            yield images[0] if len(images) == 1 else images, _labels(labels)
            running.release_outputs()
            if number + _AHEAD < left:
                running.schedule_run()

    return Loader(epoch)


def _in_place(view: Any) -> torch.Tensor:
    return torch.from_numpy(view.as_array())


def _on_device(view: Any) -> torch.Tensor:
    dense = view.as_tensor()
    to = torch.empty(dense.shape(), dtype=torch.float32, device="cuda")
    feed_ndarray(dense, to, cuda_stream=torch.cuda.current_stream())
    return to


def _labels(labels: Any) -> torch.Tensor:
    """Numbers as they are; a tar's are texts."""
    array = labels.as_array() if labels.is_dense_tensor() else None
    if array is not None and array.dtype != np.uint8:
        return torch.from_numpy(array).flatten()
    return torch.tensor([int(bytes(np.asarray(labels.at(index)))) for index in range(len(labels))])
