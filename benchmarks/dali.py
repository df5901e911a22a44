"""What fastdata's interface costs: its DALI backend against a pipeline written by hand, both on the CPU.

Setup: random window, resize to 224, flip; float32 normalised with channels first, and uint8 with channels last; batches
of 64, two of them on their way; equal numbers of DALI threads.  The hand-written pipeline reads files by itself and
draws windows in C++; fastdata reads in Python's threads, draws in NumPy and hands everything over.  Both take turns in
every round.  The hand-written pipeline begins each pass with two batches ready, so passes are 5,000 images long.
Result: benchmarks/results/dali.json.

    python benchmarks/dali.py FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import ConcatDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.diagnosis.measure import Contender, Measurement, measure, ratios, table, write_json

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


def run(folder: Path, *, as_float: bool, workers: int, rounds: int) -> list[Measurement]:
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
    images = len(once) * copies
    return measure([Contender(name=name, epoch=epoch, images=images) for name, epoch in loaders.items()], rounds=rounds)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="one folder of images per class")
    parser.add_argument("--workers", type=int, default=2, help="threads of DALI, and of Python (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured passes of each (%(default)s)")
    parser.add_argument("--data", default="", help="what the images are, for the record")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "dali.json")
    given = parser.parse_args()
    results = {}
    for name, as_float in (("float32", True), ("uint8", False)):
        measured = run(given.folder, as_float=as_float, workers=given.workers, rounds=given.rounds)
        print(f"\n{name}\n\n{table(measured, BY_HAND)}\n")
        results[name] = {"loaders": [m.to_dict() for m in measured], "times_better": ratios(measured, BY_HAND)}
    setup = f"RandomResizedCrop(224), flip; batch 64, shuffled; {given.workers} threads; CPU"
    write_json(given.out, setup=setup, data=given.data or given.folder.name, results=results)


if __name__ == "__main__":
    main()
