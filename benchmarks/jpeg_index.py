"""What an index into JPEGs saves: a random window with and without it, and what making it costs.

Setup: one thread, RandomResizedCrop(224) to uint8 of every image, from the page cache; images by the index and without
it take turns, and of each image the least of all rounds counts, since other work on the machine only adds to it.
Indexes have an entry for every so-many-th MCU of a row; 0 is one entry a row.  Making one includes reading the file.
Result: benchmarks/results/jpeg_index.json.

    python benchmarks/jpeg_index.py FOLDER [FOLDER ...]
"""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from harness import benchmark

from fastdata import native
from fastdata.loaders import resample
from fastdata.loaders.fallback import inspect
from fastdata.tables import Format, Recipes, addresses
from fastdata.transforms import RandomResizedCrop
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import draw_views
from fastdata.views.philox import Key

SIDE = 224
STEPS = (0, 32, 16, 8)
EXTENSIONS = {".jpg", ".jpeg"}


class Images:
    """JPEGs in memory, each with a random window."""

    def __init__(self, folder: Path) -> None:
        self.core, order = resample.exact_core()
        self.options = resample.options_for(order, "exact")
        self.paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)
        self.data = [path.read_bytes() for path in self.paths]
        sizes = np.array([(image.width, image.height) for image in map(inspect, self.data)])
        plan = compile_transform(RandomResizedCrop(SIDE)).plan
        assert plan is not None
        rows = np.arange(len(self.data))
        self.views = draw_views(plan.ops, sizes, rows, key=Key(seed=1, epoch=1))
        self.out = np.zeros((SIDE, SIDE, 3), np.uint8)

    def decode_ms(self, number: int, index: bytes | None, record: bytes | None = None) -> float:
        """Milliseconds for the window of one image, from its file or from a record of it."""
        data = self.data[number] if record is None else record
        window, place = self.views.at(np.array([number], np.intp)), addresses(self.out.ctypes.data, 1, 1)
        indexes = None if index is None else native.JpegIndexes.of([index])
        recipes = Recipes(data=[data], windows=window, format=Format(), out=place)
        began = time.perf_counter()
        self.core.fill(recipes, options=self.options, indexes=indexes)
        took = (time.perf_counter() - began) * 1e3
        assert indexes is None or indexes.uses[0] == native.IndexUse.USED
        return took


def windows(folder: Path, rounds: int) -> dict[str, Any]:
    """Windows with and without an index, in milliseconds per image, and what the indexes cost."""
    images = Images(folder)
    count = len(images.data)
    made: dict[int, list[bytes | None]] = {}
    result: dict[str, Any] = {"images": count, "file_bytes_per_image": sum(map(len, images.data)) / count}
    for step in STEPS:
        began = time.process_time()
        made[step] = [
            images.core.index_jpeg(path.read_bytes(), step=step, options=images.options) for path in images.paths
        ]
        seconds = time.process_time() - began
        result[f"step {step}"] = {
            "index_bytes_per_image": sum(len(index or b"") for index in made[step]) / count,
            "indexed_per_s": count / seconds,
            "without_an_index": sum(index is None for index in made[step]),
        }
    least = {step: np.full(count, np.inf) for step in (None, *STEPS)}
    for _ in range(rounds):
        for number in range(count):
            for step, found in least.items():
                index = None if step is None else made[step][number]
                found[number] = min(found[number], images.decode_ms(number, index))
    result["without_ms"] = float(least[None].mean())
    for step in STEPS:
        shares = least[step] / least[None]
        result[f"step {step}"] |= {
            "ms": float(least[step].mean()),
            "of_the_time_without": float(least[step].sum() / least[None].sum()),
            "quartiles_of_the_images": np.percentile(shares, [25, 50, 75]).tolist(),
        }
    return result


def measured(given: Namespace) -> dict[str, Any]:
    """Every folder."""
    results = {folder.name: windows(folder, given.rounds) for folder in given.folders}
    for name, result in results.items():
        print(name, result)
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, folders="folders with JPEGs in them", rounds=15)
