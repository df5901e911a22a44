"""Ten training programs, each with one thing wrong, or nothing: what the doctor is tried on (doctor.py).

    python benchmarks/situations.py NAME FOLDER [--steps N]

FOLDER holds one folder of JPEGs per class; the classes do not matter.  Plain programs on the CPU, as people write them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision import transforms

import fastdata
from fastdata.diagnosis.loop_monitor import LoopMonitor

SIDE = 96
WARM_UP = 10  # steps
TRANSFORM = transforms.Compose([transforms.RandomResizedCrop(SIDE), transforms.ToTensor()])


class Files(torch.utils.data.Dataset[Any]):
    """What people write: paths, Image.open, a transform."""

    def __init__(self, folder: Path, repeat: int = 1) -> None:
        self.paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")) * repeat
        self.transform: Callable[[Any], Any] = TRANSFORM

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), index % 10


class SlowFiles(Files):
    """On a disk, or behind a network, that takes its time."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(index)


class Closure(Files):
    """Reads with another library, in a function that nobody can look into."""

    def __init__(self, folder: Path, repeat: int = 1) -> None:
        super().__init__(folder, repeat)
        import cv2

        cv2.setNumThreads(0)

        def read(path: Path) -> Any:
            pixels = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
            scaled = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
            return torch.from_numpy(scaled).permute(2, 0, 1).float() / 255

        self.read = read

    def __getitem__(self, index: int) -> Any:
        return self.read(self.paths[index]), index % 10


class InMemory(torch.utils.data.Dataset[Any]):
    """Loading that costs nothing."""

    def __init__(self, count: int = 8192, dtype: type = np.float32, side: int = 32) -> None:
        self.images = np.random.default_rng(0).random((64, 3, side, side)).astype(dtype)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.images[index % 64], index % 10


def small_model(width: int = 16, *, bias: bool = False, side: int = SIDE) -> nn.Module:
    """A few convolutions with normalisation."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=2, padding=1, bias=bias), nn.BatchNorm2d(width), nn.ReLU()]
    for number in range(2):
        before, after = width << number, width << (number + 1)
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=bias), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 2, 1000))


@dataclass
class Program:
    """What one of the programs consists of."""

    loader: Any
    model: nn.Module
    after_step: Callable[[torch.Tensor, torch.Tensor], None] = lambda scores, labels: None


def throttled_source(folder: Path, make: Any) -> Program:
    """Every file takes 20 ms to arrive."""
    return Program(make(SlowFiles(folder, 40), 16, shuffle=True, num_workers=2), small_model())


def one_worker(folder: Path, make: Any) -> Program:
    """Decoding in a single worker, whose core is not enough."""
    return Program(fastdata.DataLoader(fastdata.ImageFolder(folder, TRANSFORM), 32, num_workers=1), small_model(4))


def pillow(folder: Path, make: Any) -> Program:
    """Pillow decodes, in one thread."""
    dataset = fastdata.ImageFolder(folder, TRANSFORM)
    return Program(fastdata.DataLoader(dataset, 32, num_workers=1, backend="pil"), small_model(4))


def item_every_step(folder: Path, make: Any) -> Program:
    """Accuracy is counted image by image."""
    hits = []

    def count(scores: torch.Tensor, labels: torch.Tensor) -> None:
        for score, label in zip(scores.argmax(1), labels, strict=True):
            hits.append((score == label).item())

    return Program(make(InMemory(side=16), 256, num_workers=0), small_model(8, side=16), count)


def float64(folder: Path, make: Any) -> Program:
    """NumPy made the inputs float64, so somebody made the model so, too."""
    return Program(make(InMemory(dtype=np.float64, side=64), 64, num_workers=0), small_model(32).double())


def oversized(folder: Path, make: Any) -> Program:
    """Photographs of many megapixels for a model that sees 96 x 96."""
    dataset = fastdata.ImageFolder(folder, TRANSFORM)
    return Program(fastdata.DataLoader(dataset, 16, shuffle=True, num_workers=2), small_model(4))


def bias_before_norm(folder: Path, make: Any) -> Program:
    """Each convolution has a bias that the normalisation takes away."""
    return Program(make(InMemory(side=64), 64, num_workers=0), small_model(32, bias=True))


def closure(folder: Path, make: Any) -> Program:
    """Fastdata's loader over a dataset that it cannot accelerate."""
    return Program(fastdata.DataLoader(Closure(folder, 40), 32, shuffle=True, num_workers=2), small_model(4))


def anomaly_mode(folder: Path, make: Any) -> Program:
    """Somebody has looked for a NaN."""
    torch.autograd.set_detect_anomaly(True)
    return Program(make(InMemory(side=16), 64, num_workers=0), small_model(8))


def compute_bound(folder: Path, make: Any) -> Program:
    """Nothing is wrong: the model is what takes the time."""
    return Program(make(InMemory(side=64), 64, num_workers=0), small_model(64))


# What the doctor should name; for `oversized` the folder has large images.
EXPECTED = {
    throttled_source: "storage",
    one_worker: "workers",
    pillow: "backend",
    item_every_step: "synchronisation",
    float64: "float64",
    oversized: "oversized",
    bias_before_norm: "bias_before_norm",
    closure: "not_accelerated",
    anomaly_mode: "anomaly",
    compute_bound: "compute",
}
SITUATIONS = {make.__name__: make for make in EXPECTED}


def train(program: Program, steps: int) -> tuple[float, float]:
    """The loop, for so many steps; medians of their milliseconds, and of its thread's CPU time; without the first."""
    optimiser = torch.optim.SGD(program.model.parameters(), lr=1e-3)
    ended = [(time.perf_counter(), time.thread_time())]
    while len(ended) <= steps:
        for images, labels in program.loader:
            scores = program.model(images)
            loss = nn.functional.cross_entropy(scores, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            program.after_step(scores, labels)
            ended.append((time.perf_counter(), time.thread_time()))
            if len(ended) > steps:
                break
    wall, cpu = 1e3 * np.median(np.diff(ended, axis=0)[WARM_UP:], axis=0)
    return float(wall), float(cpu)


def alternating(program: Program, steps: int, pairs: int) -> list[list[tuple[float, float]]]:
    """`train` by itself and watched by the doctor, which take turns in this process: (alone, watched) of each pair.

    Two processes that do the same differ by far more than watching costs: in where their memory lies, for one.
    """
    measured = []
    for number in range(pairs):
        pair = [(0.0, 0.0), (0.0, 0.0)]
        for watched in (number % 2, 1 - number % 2):
            with LoopMonitor(seconds=1e6).watching() if watched else nullcontext():  # so long that it is always timed
                pair[watched] = train(program, steps)
        measured.append(pair)
    return measured


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(SITUATIONS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000, help="(%(default)s)")
    parser.add_argument("--pairs", type=int, help="so many times --steps steps by themselves, and as many watched")
    given = parser.parse_args()
    torch.manual_seed(0)
    program = SITUATIONS[given.name](given.folder, torch.utils.data.DataLoader)
    if given.pairs:
        print(json.dumps(alternating(program, given.steps, given.pairs)))
        return
    wall, cpu = train(program, given.steps)
    print(f"{wall:.4f} ms and {cpu:.4f} CPU ms per step")


if __name__ == "__main__":
    main()
