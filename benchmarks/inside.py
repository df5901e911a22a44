"""Inside the native core and around it: where a window's time goes, what a fresh batch costs, what Python costs.

Setup: one thread of the core, every image of the folder once, RandomResizedCrop(224); the shares come from `perf` where
it is installed, and need a library with symbols (FASTDATA_NATIVE_LIBRARY, built by cmake as CONTRIBUTING.md says).  A
fresh batch is 64 float32 images, one value written per page.  Python's cost is the CPU time of its own threads.
Result: benchmarks/results/inside.json.

    python benchmarks/inside.py FOLDER
"""

from __future__ import annotations

import argparse
import collections
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset

from fastdata import DataLoader, ImageFolder, native
from fastdata.bench import spread, write_json
from fastdata.image_batch import ImageBatch
from fastdata.loaders import Encoded, resample
from fastdata.memory import BatchMemory
from fastdata.plan import Interpolation, RandomResizedCrop
from fastdata.transforms import Compose, Normalize, ToTensor
from fastdata.transforms import RandomResizedCrop as CropTransform
from fastdata.views import Key, draw_views

SIDE = 224
# Functions of the core by what they do; the rest of the library is "other".
GROUPS = {
    "read_ac<true>": "Huffman decoding, blocks of the window",
    "read_ac<false>": "Huffman decoding, blocks passed over",
    "BlockReader::read": "Huffman decoding, DC and calls",
    "EntropyDecoder::decode": "Huffman decoding, DC and calls",
    "horizontal": "resize, horizontal pass",
    "vertical": "resize, vertical pass",
    "libjpeg": "libjpeg-turbo: IDCT, upsampling, colour, headers",
}


def decoder(folder: Path) -> tuple[Callable[[native.Format], None], int]:
    """A function that decodes one window of every image, and their number."""
    core, order = resample.exact_core()
    dataset = ImageFolder(folder)
    images = [Encoded.of(dataset.read_encoded(index)) for index in range(len(dataset))]
    data = [np.frombuffer(image.data, np.uint8) for image in images]
    addresses = np.array([part.ctypes.data for part in data], np.uint64)
    lengths = np.array([len(part) for part in data], np.int64)
    sizes = np.array([(image.width, image.height) for image in images])
    crop = RandomResizedCrop(
        size=(SIDE, SIDE), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation=Interpolation.BILINEAR
    )
    rows = np.arange(len(dataset))
    views = draw_views((crop,), sizes, rows, key=Key(seed=1, epoch=1))
    out = np.zeros((len(dataset), SIDE * SIDE * 12), np.uint8)
    places = (out.ctypes.data + rows * out[0].nbytes).astype(np.uint64)
    options = resample.options_for(order, Interpolation.BILINEAR, "exact")

    def decode(format_: native.Format) -> None:
        core.decode(addresses, lengths, views, places, format=format_, options=options)
        assert out.any()
        assert len(data) == len(dataset)  # what the addresses point to lives as long as this function

    return decode, len(dataset)


def core_ms(folder: Path, rounds: int) -> dict[str, Any]:
    """CPU milliseconds per image, one thread."""
    decode, count = decoder(folder)
    table = np.random.default_rng(0).normal(size=(3, 256)).astype(np.float32)
    formats = {"uint8": native.Format(), "float32": native.Format(channels_first=True, table=table)}
    took: dict[str, list[float]] = {name: [] for name in formats}
    for round_ in range(rounds + 1):
        for name, format_ in formats.items():
            began = time.process_time()
            decode(format_)
            if round_ > 0:
                took[name].append((time.process_time() - began) / count * 1e3)
    return {name: spread(values) for name, values in took.items()}


def fresh_batch_ms(rounds: int = 20) -> dict[str, Any]:
    """CPU milliseconds to get and touch the memory of a batch."""
    shape, memory = (64, 3, SIDE, SIDE), BatchMemory(keep=1)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "torch.empty": lambda: torch.empty(shape),
        "numpy.empty": lambda: torch.from_numpy(np.empty(shape, np.float32)),
        "used again": lambda: memory.tensor(shape, torch.float32),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, make in ways.items():
            began = time.process_time()
            make().view(-1)[::1024].fill_(1)
            if round_ > 0:
                took[name].append((time.process_time() - began) * 1e3)
    return {name: spread(values) for name, values in took.items()}


def python_us(folder: Path, batch_size: int) -> float:
    """CPU microseconds per image in the interpreter's threads, two threads in the core."""
    transform = Compose([CropTransform(SIDE), ToTensor(), Normalize((0.5,) * 3, (0.2,) * 3)])
    dataset = ConcatDataset([ImageFolder(folder, transform)] * 5)
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=2, backend="native")
    spent, load_files = [0.0], ImageBatch._load_files

    def timed(batch: ImageBatch) -> Any:
        began = time.thread_time()
        further = load_files(batch)
        spent[0] += time.thread_time() - began
        return further

    for _ in loader:  # warm up
        pass
    ImageBatch._load_files = timed  # type: ignore[method-assign]
    began = time.thread_time()
    for _ in loader:
        pass
    total = spent[0] + time.thread_time() - began
    ImageBatch._load_files = load_files  # type: ignore[method-assign]
    return round(total / len(dataset) * 1e6, 1)


def shares(folder: Path) -> dict[str, float] | None:
    """Percent of the core's samples by group, or None without perf."""
    if shutil.which("perf") is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        data = f"{scratch}/perf.data"
        run = [sys.executable, __file__, str(folder), "--loop"]
        subprocess.run(["perf", "record", "-o", data, *run], check=True, capture_output=True)
        report = ["perf", "report", "-i", data, "--no-children", "--sort", "dso,sym", "--percent-limit", "0"]
        lines = subprocess.run(report, check=True, capture_output=True, text=True).stdout.splitlines()
    found: collections.Counter[str] = collections.Counter()
    for line in lines:
        if "fastdata_native" in line or "libjpeg" in line:
            group = next((text for name, text in GROUPS.items() if name in line), "other: output, tables, set-up")
            found[group] += float(line.split("%")[0])
    whole = sum(found.values())
    return {name: round(100 * percent / whole, 1) for name, percent in found.most_common()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="JPEGs, one folder per class")
    parser.add_argument("--rounds", type=int, default=7, help="measured passes (%(default)s)")
    parser.add_argument("--loop", action="store_true", help="only decode for ten seconds, for a profiler")
    parser.add_argument("--data", default="", help="what the images are, for the record")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "inside.json")
    given = parser.parse_args()
    if given.loop:
        decode, _ = decoder(given.folder)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            decode(native.Format())
        return
    results = {
        "core_ms_per_image": core_ms(given.folder, given.rounds),
        "shares_percent": shares(given.folder),
        "fresh_batch_ms": fresh_batch_ms(),
        "python_us_per_image": {str(size): python_us(given.folder, size) for size in (64, 256)},
    }
    for name, result in results.items():
        print(name, result)
    setup = str(__doc__).split("\n\n")[1]
    write_json(given.out, setup=setup, data=given.data or given.folder.name, results=results)


if __name__ == "__main__":
    main()
