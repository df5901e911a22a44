"""Shards against loose files and against other formats: writing, reading, opening, mixing.

Setup: a folder of class folders, copied until there are at least 3,000 images; two workers or threads for everybody;
cold means that the system's cache of files was dropped before every pass, which needs root and is left out without it.
FFCV, webdataset and LitData take part where they are installed (pip install ffcv webdataset litdata); FFCV's JPEG mode
encodes every image anew, which it cannot avoid.  fastdata's writer is run as its command, start of Python included.
The dataset of 1.2 million images has real indices and empty tar files.  Mixing: 1.28 million samples, 1,000 classes,
147 shards; what counts is how many classes a batch of 256 has.
Result: benchmarks/results/shards.json.

    python benchmarks/shards.py FOLDER
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import psutil
from harness import benchmark, taking_turns
from inside import decoder
from torchvision import transforms

from fastdata import DataLoader, EpochSampler, ImageFolder, ShardDataset
from fastdata.measuring.cpu_time import tree_cpu_s
from fastdata.measuring.rounds import compare, spread
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.format import RECORD, Manifest, ShardIndex, ShardInfo, crc32c, index_name
from fastdata.shards.store import read_range
from fastdata.system.installed import installed
from fastdata.tables import Format

WORKERS = 2
CROP = transforms.Compose(
    [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
)
RAW_SIDE = 256


def copies(folder: Path, to: Path, images: int) -> Path:
    """The folder's images under new names, until there are so many."""
    once = ImageFolder(folder)
    for number in range(-(-images // len(once))):
        for path, label in once.samples:
            target = to / once.classes[label] / f"{number}-{os.path.basename(path)}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return to


# ---- writing


class Named:
    """What FFCV and LitData write: (image, label) by number."""

    def __init__(self, folder: Path) -> None:
        self.samples = ImageFolder(folder).samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        return PIL.Image.open(path).convert("RGB"), label


def litdata_sample(sample: tuple[str, int]) -> dict[str, Any]:
    """A sample for LitData, with the file's bytes as they are."""
    return {"image": Path(sample[0]).read_bytes(), "label": sample[1]}


def write_ffcv(folder: Path, to: Path, mode: str = "jpg", side: int | None = None) -> None:
    """FFCV's writer."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    image = RGBImageField(write_mode=mode, jpeg_quality=90, max_resolution=side)
    DatasetWriter(str(to), {"image": image, "label": IntField()}, num_workers=WORKERS).from_indexed_dataset(
        Named(folder)
    )


def write_webdataset(folder: Path, to: Path) -> None:
    """Webdataset's TarWriter, one process, the files' bytes as they are."""
    import webdataset

    with webdataset.ShardWriter(f"{to}/%06d.tar", maxsize=256 << 20, maxcount=10**9, verbose=0) as writer:
        for number, (path, label) in enumerate(ImageFolder(folder).samples):
            writer.write({"__key__": f"{number:09}", "jpg": Path(path).read_bytes(), "cls": label})


def write_litdata(folder: Path, to: Path) -> None:
    """LitData's optimize."""
    import litdata

    options = {"num_workers": WORKERS, "chunk_bytes": "256MB", "verbose": False}
    litdata.optimize(litdata_sample, ImageFolder(folder).samples, str(to), **options)


def writers(folder: Path) -> dict[str, Callable[[Path], object]]:
    """Everybody who is installed."""
    tool = [sys.executable, str(Path(__file__).parents[1] / "tools" / "convert_dataset.py"), str(folder)]
    found: dict[str, Callable[[Path], object]] = {
        "fastdata": lambda to: subprocess.run([*tool, to, "--workers", str(WORKERS)], check=True, capture_output=True),
        "cp -r": lambda to: subprocess.run(["cp", "-r", folder, to], check=True),
    }
    if installed("webdataset"):
        found["webdataset, TarWriter"] = partial(write_webdataset, folder)
    if installed("litdata"):
        found["LitData, optimize"] = partial(write_litdata, folder)
    if installed("ffcv"):
        found["FFCV, JPEG"] = lambda to: write_ffcv(folder, to / "a.beton")
    return found


def writing(folder: Path, scratch: Path, rounds: int) -> dict[str, Any]:
    """Seconds, and CPU seconds of the process tree, to write everything once."""
    wall: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for round_ in range(rounds):
        for name, write in writers(folder).items():
            target = scratch / "written"
            if name != "cp -r":
                target.mkdir()
            os.sync()
            spent, began = tree_cpu_s(), time.perf_counter()
            with contextlib.redirect_stdout(sys.stderr):
                write(target)
            os.sync()  # nobody is done before it is on the disk
            wall.setdefault(name, []).append(time.perf_counter() - began)
            cpu.setdefault(name, []).append(tree_cpu_s() - spent)
            shutil.rmtree(target)
            gc.collect()
        print(f"writing: round {round_ + 1} of {rounds} done", flush=True)
    return {
        name: {
            "seconds": spread(wall[name]),
            "cpu_seconds": spread(cpu[name]),
            "times_longer_than_fastdata": spread([a / b for a, b in zip(wall[name], wall["fastdata"], strict=True)]),
        }
        for name in wall
    }


# ---- lossless


def lossless(folder: Path, scratch: Path, rounds: int) -> dict[str, Any]:
    """Bytes of all images before and after, and what decoding a window costs in one thread of the core."""
    convert(str(folder), scratch / "lossless", ConvertOptions(recoding=Recoding(lossless=True)), workers=WORKERS)
    before = ImageFolder(folder)
    after = ShardDataset(scratch / "lossless")
    data = {
        "as they were": [before.read_encoded(index) for index in range(len(before))],
        "repacked": [after.read_encoded(index) for index in range(len(after))],
    }
    decoders = {name: decoder(images) for name, images in data.items()}
    seconds = taking_turns({name: partial(decode, Format()) for name, (decode, _) in decoders.items()}, rounds=rounds)
    took = {name: [1e3 * each / len(before) for each in values] for name, values in seconds.items()}
    seen = [pixels for _, pixels in decoders.values()]
    a, b = took.values()
    return {
        "bytes": {name: sum(map(len, images)) for name, images in data.items()},
        "window_ms": {name: spread(values) for name, values in took.items()},
        "times_quicker": spread([x / y for x, y in zip(a, b, strict=True)]),
        "same_pixels": bool((seen[0] == seen[1]).all()),
    }


# ---- reading


def epochs(folder: Path, shards: Path, rounds: int) -> dict[str, Any]:
    """A pass over loose files and over shards, in a random and in a windowed order, warm and cold."""
    loose, sharded = ImageFolder(folder, CROP), ShardDataset(shards, CROP)
    windowed = EpochSampler(sharded, order="windowed", window=2)
    options: dict[str, Any] = {"batch_size": 64, "num_workers": WORKERS, "backend": "native"}
    loaders = {
        "loose files": DataLoader(loose, shuffle=True, **options),
        "shards, random": DataLoader(sharded, shuffle=True, **options),
        "shards, windowed": DataLoader(sharded, sampler=windowed, **options),
    }
    passes = {name: partial(iter, loader) for name, loader in loaders.items()}
    found: dict[str, Any] = {"warm": compare(passes, "loose files", images=len(loose), rounds=rounds)}
    if os.geteuid() == 0:
        seconds: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(rounds):
            for name, loader in loaders.items():
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("3")
                began = time.perf_counter()
                for _ in loader:
                    pass
                seconds[name].append(time.perf_counter() - began)
        found["cold_seconds"] = {name: spread(values) for name, values in seconds.items()}
    return found


def reading_a_range(shards: Path, rounds: int) -> dict[str, Any]:
    """Microseconds to read one image's bytes, warm: opened for each, kept open, mapped into memory."""
    dataset = ShardDataset(shards)
    places = [dataset.file_range(index)[:3] for index in np.random.default_rng(0).permutation(len(dataset)).tolist()]
    paths = sorted({path for path, _, _ in places})
    numbers = {path: os.open(path, os.O_RDONLY) for path in paths}
    maps = {path: mmap.mmap(number, 0, prot=mmap.PROT_READ) for path, number in numbers.items()}
    ways: dict[str, Callable[[str, int, int], bytes]] = {
        "opened for each": read_range,
        "kept open": lambda path, offset, size: os.pread(numbers[path], size, offset),
        "mapped": lambda path, offset, size: maps[path][offset : offset + size],
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, read in ways.items():
            began = time.perf_counter()
            for place in places:
                read(*place)
            took[name].append((time.perf_counter() - began) / len(places) * 1e6)
    return {name: spread(values) for name, values in took.items()}


def raw(folder: Path, scratch: Path, rounds: int) -> dict[str, Any] | None:
    """Pixels of the same stored size, random crops to 224, against FFCV's raw mode."""
    if not installed("ffcv"):
        return None
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage

    convert(str(folder), scratch / "raw", ConvertOptions(recoding=Recoding(raw=RAW_SIDE)), workers=WORKERS)
    write_ffcv(folder, scratch / "raw.beton", "raw", RAW_SIDE)
    dataset = ShardDataset(scratch / "raw", CROP)
    views = [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip(), ToTensor(), ToTorchImage()]
    theirs = Loader(
        str(scratch / "raw.beton"),
        batch_size=64,
        num_workers=WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        pipelines={"image": views, "label": [IntDecoder(), ToTensor()]},
    )
    ours = DataLoader(dataset, 64, shuffle=True, num_workers=WORKERS, backend="native")
    loaders = {"FFCV, raw": theirs, "fastdata, raw": ours}
    passes = {name: partial(iter, loader) for name, loader in loaders.items()}
    return {
        **compare(passes, "FFCV, raw", images=len(dataset), rounds=rounds),
        "stored_bytes": {
            "fastdata": sum(path.stat().st_size for path in (scratch / "raw").iterdir()),
            "FFCV": (scratch / "raw.beton").stat().st_size,
        },
    }


# ---- many


def synthetic(folder: Path, samples: int, shards: int) -> Path:
    """Indices of so many samples, beside tar files that are holes of the right length."""
    folder.mkdir()
    infos, rng = [], np.random.default_rng(0)
    for number in range(shards):
        count = samples // shards + (number < samples % shards)
        records = np.zeros(count, RECORD)
        records["size"] = rng.integers(50_000, 170_000, count)
        records["offset"] = np.cumsum(records["size"].astype(np.int64) + 2048) - records["size"]
        records["label"] = rng.integers(0, 1000, count)
        records["width"], records["height"] = 500, 375
        keys = [f"n{label:08}/n{label:08}_{row}".encode() for row, label in enumerate(records["label"].tolist())]
        records["key_end"] = np.cumsum([len(key) for key in keys])
        tar_bytes = int(records["offset"][-1] + records["size"][-1] + 1024)
        index = ShardIndex(records, b"".join(keys), tar_bytes, 0).to_bytes()
        name = f"shard-{number:06}.tar"
        with open(folder / name, "wb") as file:
            file.truncate(tar_bytes)
        Path(index_name(str(folder / name))).write_bytes(index)
        infos.append(ShardInfo(name=name, samples=count, tar_bytes=tar_bytes, tar_crc32c=0, index_crc32c=crc32c(index)))
    manifest = Manifest(classes=[f"n{label:08}" for label in range(1000)], shards=infos)
    (folder / "manifest.json").write_text(manifest.to_text())
    return folder


OPENING = """
import json, sys, time
import psutil, torch
from fastdata import EpochSampler, ShardDataset
from fastdata.shards.format import crc32c
before = psutil.Process().memory_info().rss
began = time.perf_counter()
dataset = ShardDataset(sys.argv[1])
opened = time.perf_counter() - began
resident = psutil.Process().memory_info().rss - before
began = time.perf_counter()
first = next(iter(EpochSampler(dataset, order=sys.argv[2])))
print(json.dumps({"open_s": opened, "resident_MB": resident / 1e6, "order_s": time.perf_counter() - began}))
"""


def opening(scratch: Path, rounds: int) -> dict[str, Any]:
    """Seconds and resident memory to open 1.2 million samples, and to draw an epoch's order, in fresh processes."""
    import json

    folder = synthetic(scratch / "many", 1_200_000, 147)
    found: dict[str, Any] = {}
    for order in ("random", "windowed"):
        command = [sys.executable, "-c", OPENING, str(folder), order]
        runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(rounds)]
        found[order] = {name: spread([run[name] for run in runs]) for name in runs[0]}
    return found


class Counted:
    """A dataset of shards as a sampler sees it."""

    def __init__(self, samples: int, shards: int) -> None:
        self.shard_ends = np.linspace(0, samples, shards + 1).astype(np.int64)[1:]

    def __len__(self) -> int:
        return int(self.shard_ends[-1])


def mixing() -> dict[str, Any]:
    """Classes per batch of 256, of samples stored in class order and stored in a random one."""
    dataset = Counted(1_280_000, 147)
    by_class = np.arange(len(dataset)) // (len(dataset) // 1000)
    stored = {"class order": by_class, "random order": np.random.default_rng(0).permutation(by_class)}
    orders: Iterator[tuple[str, dict[str, Any]]] = iter(
        [("random", {"order": "random"})]
        + [(f"windowed, {window} shards", {"order": "windowed", "window": window}) for window in (1, 4, 8, 16, 32)]
    )
    found: dict[str, Any] = {name: {} for name in stored}
    for name, options in orders:
        indices = EpochSampler(dataset, **options).indices()
        for kind, labels in stored.items():
            batches = labels[indices][: len(indices) // 256 * 256].reshape(-1, 256)[::10]
            found[kind][name] = round(float(np.mean([len(np.unique(batch)) for batch in batches])), 1)
    return found


def measured(given: Namespace) -> dict[str, Any]:
    """All parts."""
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        folder = copies(given.folder, scratch / "folder", given.images)
        convert(str(folder), scratch / "shards", ConvertOptions(shard_bytes=64 << 20), workers=WORKERS)
        steps: dict[str, Callable[[], Any]] = {
            "opening 1.2 million": lambda: opening(scratch, given.rounds),
            "mixing, classes per batch": mixing,
            "reading a range, us": lambda: reading_a_range(scratch / "shards", given.rounds),
            "epoch": lambda: epochs(folder, scratch / "shards", given.rounds),
            "lossless": lambda: lossless(given.folder, scratch, 3 * given.rounds),
            "raw": lambda: raw(folder, scratch, given.rounds),
            "writing": lambda: writing(folder, scratch, given.rounds),
        }
        results = {}
        for name, step in steps.items():
            results[name] = step()
            print(name, results[name], flush=True)
    given.setup += f"\n{psutil.virtual_memory().total >> 30} GB of memory"
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, folder="one folder of images per class", images=3000, rounds=3)
