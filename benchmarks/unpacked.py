"""JPEGs whose coefficients lie open: what a random window takes, what the records cost, and whole epochs of shards.

Windows: one thread, RandomResizedCrop(224) to uint8 of every image, from the page cache; its file, its file by the
index and its record take turns, and of each image the least of all rounds counts, since other work on the machine only
adds to it.  The checksum of the record is part of its time.
"progressive" are the images of the first folder, saved again as progressive JPEGs; these have no index.
Making: making a record includes restoring the file from it, which is compared; restoring includes its checksum.
Epochs: RandomResizedCrop(224) and flip to uint8, batches of 64, shuffled, 2 threads, over shards of the same images as
files without an index, as files with it, and unpacked; CPU time of the process.
Result: benchmarks/results/unpacked.json.

    python benchmarks/unpacked.py FOLDER [FOLDER ...]
"""

from __future__ import annotations

import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import benchmark
from jpeg_index import Images
from PIL import Image

from fastdata import DataLoader, ShardDataset, transforms
from fastdata.measuring.rounds import compare
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding

STEP = 16  # of the index, as fastdata makes it
WORKERS = 2
KINDS = ("file", "index", "unpacked")
CROP = transforms.Compose(
    [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
)


def per_second(work: Callable[[Any], Any], things: list[Any]) -> float:
    """How many of these are done in a second of CPU time."""
    began = time.process_time()
    for each in things:
        work(each)
    return len(things) / (time.process_time() - began)


def windows(folder: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds and bytes per image of each kind."""
    images = Images(folder)
    core, options = images.core, images.options
    files = [data.tobytes() for data in images.data]
    records = [core.unpack(data, options=options) for data in files]
    kept = [number for number, record in enumerate(records) if record is not None]
    indexes = [core.index_jpeg(data, step=STEP, options=options) for data in files]
    least = {kind: np.full(len(kept), np.inf) for kind in KINDS}
    for _ in range(rounds):
        for at, number in enumerate(kept):
            for kind, found in least.items():
                index = indexes[number] if kind == "index" else None
                record = records[number] if kind == "unpacked" else None
                found[at] = min(found[at], images.decode_ms(number, index, record))
    file_bytes = sum(len(files[number]) for number in kept)
    record_bytes = sum(len(records[number] or b"") for number in kept)
    return {
        "images": len(files),
        "unpacked": len(kept),
        "times_the_bytes": record_bytes / file_bytes,
        "ms": {kind: float(found.mean()) for kind, found in least.items()},
        "of_the_files_time": {kind: float(found.sum() / least["file"].sum()) for kind, found in least.items()},
        "quartiles_of_the_images": {
            kind: np.percentile(found / least["file"], [25, 50, 75]).tolist() for kind, found in least.items()
        },
        "made_per_s": per_second(lambda data: core.unpack(data, options=options), files),
        "restored_per_s": per_second(
            lambda record: core.restore(record, options=options), [records[number] for number in kept]
        ),
    }


def progressive_copy(folder: Path, scratch: Path) -> Path:
    """The same images as progressive JPEGs, with the quantisation that they have."""
    copy = scratch / f"{folder.name}, progressive"
    copy.mkdir()
    for number, path in enumerate(Images(folder).paths):
        with Image.open(path) as image:
            image.save(copy / f"{number}.jpg", progressive=True, quality="keep")
    return copy


def epochs(folder: Path, scratch: Path, rounds: int, images: int) -> dict[str, Any]:
    """CPU time of whole epochs."""
    source = scratch / "source"
    shutil.copytree(folder, source)
    files = [path for path in source.rglob("*") if path.is_file()]
    for number in range(1, -(-images // len(files))):
        for path in files:
            shutil.copy(path, path.with_stem(f"{path.stem}-{number}"))
    convert(str(source), scratch / "index", ConvertOptions(), workers=WORKERS)
    shutil.copytree(scratch / "index", scratch / "file", ignore=shutil.ignore_patterns("*.jpegindex"))
    convert(str(source), scratch / "unpacked", ConvertOptions(recoding=Recoding(unpacked=True)), workers=WORKERS)
    loaders = {
        kind: DataLoader(ShardDataset(scratch / kind, CROP), 64, shuffle=True, num_workers=WORKERS, backend="native")
        for kind in KINDS
    }
    passes = {kind: partial(iter, loader) for kind, loader in loaders.items()}
    sizes = {kind: sum(path.stat().st_size for path in (scratch / kind).glob("*")) for kind in KINDS}
    count = len(loaders["file"].dataset)  # type: ignore[arg-type]
    return {"bytes": sizes} | compare(passes, "file", images=count, rounds=rounds)


def measured(given: Namespace) -> dict[str, Any]:
    """Windows of every folder's images, and epochs of the first folder's."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = [*given.folders, progressive_copy(given.folders[0], Path(scratch))]
        results: dict[str, Any] = {folder.name: windows(folder, given.rounds) for folder in folders}
        for name, result in results.items():
            print(name, result)
        results["epochs"] = epochs(given.folders[0], Path(scratch), given.epochs, given.images)
    return results


if __name__ == "__main__":
    told = "folders of images; epochs are those of the first"
    benchmark(__file__, measured, folders=told, rounds=12, epochs=5, images=1000)
