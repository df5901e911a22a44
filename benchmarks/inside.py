"""Inside the native core and around it: where a window's time goes, what a fresh batch costs, what Python costs.

Setup: one thread of the core, every image of the folder once, RandomResizedCrop(224); the shares come from `perf` where
it is installed, and need a library with symbols (FASTDATA_NATIVE_LIBRARY, built by cmake as CONTRIBUTING.md says).  A
fresh batch is 64 float32 images, one value written per page.  Python's cost is the CPU time of the interpreter's
threads outside of the core, with no threads and with two, which take turns in the processor's caches.
Result: benchmarks/results/inside.json.

    python benchmarks/inside.py FOLDER
"""

from __future__ import annotations

import collections
import ctypes
import ctypes.util
import io
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from harness import benchmark, taking_turns

from fastdata import DataLoader, ImageFolder, native
from fastdata.loaders import resample
from fastdata.loaders.fallback import inspect
from fastdata.loaders.native import NativeBackend
from fastdata.measuring.rounds import spread
from fastdata.pipeline.batch_memory import BatchMemory
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.tables import Format, Recipes, addresses
from fastdata.transforms import Compose, Normalize, ToTensor
from fastdata.transforms import RandomResizedCrop as CropTransform
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import draw_views
from fastdata.views.philox import Key

SIDE = 224
# Functions of the core by what they do; the rest of the library is "other".
GROUPS = {
    "read_ac<true>": "Huffman decoding, blocks of the window",
    "read_ac<false>": "Huffman decoding, blocks passed over",
    "BlockReader::read": "Huffman decoding, DC and calls",
    "EntropyDecoder::decode": "Huffman decoding, DC and calls",
    "horizontal": "resize, horizontal pass",
    "vertical": "resize, vertical pass",
    "idct": "IDCT, upsampling, colours",
    "to_rgb": "IDCT, upsampling, colours",
    "widen": "IDCT, upsampling, colours",
    "JpegPixels": "IDCT, upsampling, colours",
    "libjpeg": "libjpeg-turbo: headers",
}


def tiny_copies(folder: Path, to: Path, kind: str) -> Path:
    """The folder's images at 32 to 64 px, as JPEG or PNG."""
    for number, (path, _) in enumerate(ImageFolder(folder).samples):
        side = 32 + number % 33
        with PIL.Image.open(path) as image:
            small = image.convert("RGB").resize((side, side))
        buffer = io.BytesIO()
        small.save(buffer, kind)
        target = to / kind / "all" / f"{number:04}.{kind.lower()}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(buffer.getvalue())
    return to / kind


def decoder(images: list[bytes]) -> tuple[Callable[[Format], None], np.ndarray]:
    """A function that decodes one window of every image in one thread, and where their uint8 pixels are then."""
    core, order = resample.exact_core()
    sizes = np.array([(image.width, image.height) for image in map(inspect, images)])
    plan = compile_transform(CropTransform(SIDE)).plan
    assert plan is not None
    rows = np.arange(len(images))
    views = draw_views(plan.ops, sizes, rows, key=Key(seed=1, epoch=1))
    out = np.zeros((len(images), SIDE * SIDE * 12), np.uint8)  # room for float32
    places = addresses(out.ctypes.data, out.strides[0], len(images))
    options = resample.options_for(order, "exact")

    def decode(format_: Format) -> None:
        core.fill(Recipes(data=images, windows=views, format=format_, out=places), options=options)

    return decode, out


def all_images(folder: Path) -> list[bytes]:
    """The bytes of every file of an image folder."""
    dataset = ImageFolder(folder)
    return [dataset.read_encoded(index) for index in range(len(dataset))]


def core_ms(folder: Path, rounds: int) -> dict[str, Any]:
    """CPU milliseconds per image, one thread."""
    images = all_images(folder)
    count = len(images)
    decode, _ = decoder(images)
    table = np.random.default_rng(0).normal(size=(3, 256)).astype(np.float32)
    formats = {"uint8": Format(), "float32": Format(channels_first=True, table=table)}
    took = taking_turns({name: partial(decode, each) for name, each in formats.items()}, rounds=rounds)
    return {name: spread([1e3 * seconds / count for seconds in values]) for name, values in took.items()}


def fresh_batch_ms(rounds: int = 20) -> dict[str, Any]:
    """CPU milliseconds to get and touch the memory of a batch."""
    shape, memory = (64, 3, SIDE, SIDE), BatchMemory(keep=1)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "torch.empty": lambda: torch.empty(shape),
        "numpy.empty": lambda: torch.from_numpy(np.empty(shape, np.float32)),
        "used again": lambda: memory.tensor(shape, torch.float32),
    }
    touched = {name: lambda make=make: make().view(-1)[::1024].fill_(1) for name, make in ways.items()}
    took = taking_turns(touched, rounds=rounds)
    return {name: spread([1e3 * seconds for seconds in values]) for name, values in took.items()}


def python_us(folder: Path, batch_size: int, threads: int) -> float:
    """CPU microseconds per image that the interpreter's threads spend outside of the core."""
    transform = Compose([CropTransform(SIDE), ToTensor(), Normalize((0.5,) * 3, (0.2,) * 3)])
    dataset = ImageFolder(folder, transform)
    dataset.samples = dataset.samples * 5
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=threads, backend="native")
    in_core, in_tasks, fill = [0.0], [0.0], ImageBatch._fill
    library = native.load().library
    fill_by_core = library.fd_fill

    def timed(*pointers: Any) -> None:
        began = time.thread_time()
        fill_by_core(*pointers)
        in_core[0] += time.thread_time() - began

    def spy_on_task(batch: ImageBatch) -> Any:
        began = time.thread_time()
        further = fill(batch)
        in_tasks[0] += time.thread_time() - began
        return further

    for _ in loader:  # warm up
        pass
    library.fd_fill = timed
    if threads:
        ImageBatch._fill = spy_on_task  # type: ignore[method-assign]
    began = time.thread_time()
    for _ in loader:
        pass
    total = time.thread_time() - began + in_tasks[0] - in_core[0]
    library.fd_fill, ImageBatch._fill = fill_by_core, fill  # type: ignore[method-assign]
    return round(total / len(dataset) * 1e6, 1)


def small_images_us(folder: Path, rounds: int) -> dict[str, Any]:
    """Microseconds per image of 32 to 64 px in one thread of the core, and what inflating alone takes of a PNG's."""
    backend = NativeBackend(fidelity="exact")
    plan = compile_transform(Compose([CropTransform(32), ToTensor()])).plan
    format_ = Format(channels_first=True, table=np.zeros((3, 256), np.float32))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("JPEG", "PNG"):
            paths = [path for path, _ in ImageFolder(tiny_copies(folder, Path(scratch), kind)).samples]
            out = np.zeros((len(paths), 3, 32, 32), np.float32)
            filler, rows = backend.filler(plan, Key(seed=1, epoch=1), threads=0), range(len(paths))
            places = addresses(out.ctypes.data, out.strides[0], len(paths))
            recipes = Recipes(paths=paths, indices=rows, occurrences=rows, format=format_, out=places)
            times = [filler.fill(recipes) for _ in range(rounds)]
            found[f"{kind}, reading"] = spread([filled.read_s / len(paths) * 1e6 for filled in times])
            found[f"{kind}, decoding"] = spread([filled.decode_s / len(paths) * 1e6 for filled in times])
        streams = [inflatable(Path(path).read_bytes()) for path in paths]
        inflater = ctypes.CDLL(ctypes.util.find_library("deflate") or "libdeflate.so.0")
        inflater.libdeflate_alloc_decompressor.restype = ctypes.c_void_p
        handle, room = ctypes.c_void_p(inflater.libdeflate_alloc_decompressor()), ctypes.create_string_buffer(1 << 20)
        got, took = ctypes.c_size_t(), []
        for _ in range(rounds):
            began = time.process_time()
            for stream in streams:
                inflater.libdeflate_zlib_decompress(handle, stream, len(stream), room, 1 << 20, ctypes.byref(got))
            took.append((time.process_time() - began) / len(streams) * 1e6)
    return found | {"PNG, inflating (through ctypes)": spread(took)}


def inflatable(png: bytes) -> bytes:
    """The compressed rows of a PNG."""
    parts, at = b"", 8
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        parts += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return parts


def shares(folder: Path) -> dict[str, float] | None:
    """Percent of the core's samples by group, or None without perf."""
    if shutil.which("perf") is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        data = f"{scratch}/perf.data"
        run = [sys.executable, __file__, "--loop", str(folder)]
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


def measured(given: Namespace) -> dict[str, Any]:
    """All parts."""
    results = {
        "core_ms_per_image": core_ms(given.folder, given.rounds),
        "shares_percent": shares(given.folder),
        "small_images_us": small_images_us(given.folder, 4 * given.rounds),
        "fresh_batch_ms": fresh_batch_ms(),
        "python_us_per_image": {
            f"{threads} threads, batches of {size}": python_us(given.folder, size, threads)
            for threads in (0, 2)
            for size in (64, 256)
        },
    }
    for name, result in results.items():
        print(name, result)
    return results


def decode_for(seconds: float, folder: Path) -> None:
    """Only decodes, for a profiler."""
    decode, _ = decoder(all_images(folder))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        decode(Format())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loop"]:
        decode_for(10.0, Path(sys.argv[2]))
    else:
        benchmark(__file__, measured, folder="JPEGs, one folder per class", rounds=7)
