"""What fastdata's interface costs: its DALI backend against a pipeline written by hand, both on the CPU.

Setup: random window, resize to 224, flip; float32 normalised with channels first, and uint8 with channels last; batches
of 64, two of them on their way; equal numbers of DALI threads.  The hand-written pipeline reads files by itself and
draws windows in C++; fastdata reads in Python's threads, draws in NumPy and hands everything over.  Both take turns in
every round.  The hand-written pipeline begins each pass with two batches ready, so passes are 5,000 images long.
Result: benchmarks/results/dali.json.

    python benchmarks/dali.py FOLDER
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import benchmark
from torch.utils.data import ConcatDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.measuring.rounds import compare

BY_HAND = "DALI by hand"
BATCH, SIDE, IMAGES = 64, 224, 5000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def by_hand(files: list[str], *, as_float: bool, threads: int) -> Callable[[], Iterator[Any]]:
    """DALI's CPU pipeline as its documentation builds it: fused decode and crop, antialiased resize, flip."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=threads, device_id=None, seed=1)  # type: ignore[untyped-decorator, unused-ignore]
    def pipeline() -> Any:
        encoded, labels = fn.readers.file(files=files, labels=[0] * len(files), random_shuffle=True)
        images = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, resize_x=SIDE, resize_y=SIDE, antialias=True)
        if not as_float:
            return fn.flip(images, horizontal=fn.random.coin_flip()), labels
        normalised = {"mean": [255 * value for value in MEAN], "std": [255 * value for value in STD]}
        images = fn.crop_mirror_normalize(
            images, crop=(SIDE, SIDE), mirror=fn.random.coin_flip(), dtype=types.FLOAT, **normalised
        )
        return images, labels

    running = pipeline()
    running.build()

    def epoch() -> Iterator[Any]:
        for _ in range(-(-len(files) // BATCH)):
            images, labels = running.run()
            yield torch.from_numpy(images.as_array()), torch.from_numpy(labels.as_array())

    return epoch


def run(folder: Path, *, as_float: bool, workers: int, rounds: int) -> dict[str, Any]:
    """Measures both for one kind of output."""
    views = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
    tail = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)] if as_float else [transforms.PILToTensor()]
    once = ImageFolder(folder, transforms.Compose([*views, *tail]))
    copies = -(-IMAGES // len(once))
    layout = torch.contiguous_format if as_float else torch.channels_last
    ours = DataLoader(
        ConcatDataset([once] * copies), BATCH, shuffle=True, num_workers=workers, backend="dali", memory_format=layout
    )
    loaders = {
        BY_HAND: by_hand([path for path, _ in once.samples] * copies, as_float=as_float, threads=workers),
        "fastdata, dali": partial(iter, ours),
    }
    return compare(loaders, BY_HAND, images=len(once) * copies, rounds=rounds)


def measured(given: Namespace) -> dict[str, Any]:
    """Both pipelines, for each kind of output."""
    results = {}
    for name, as_float in (("float32", True), ("uint8", False)):
        print(f"{name}\n")
        results[name] = run(given.folder, as_float=as_float, workers=given.workers, rounds=given.rounds)
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, folder="one folder of images per class", workers=2, rounds=5)
