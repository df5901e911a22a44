"""However a loop leaves an epoch, no thread, process or descriptor is left, memory is flat, and the next is whole."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import images
import psutil
import torch
from torch.utils.data import TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader

ROUNDS = (150, 2_000, 100_000)
SIZE, BATCH = 24, 3
GROWTH_BYTES = 32 << 20
OPENCV_BYTES = 1 << 10  # kept by OpenCV 5 for each thread that ever called cvtColor or resize: 0.9 KB, until the end
VIEWS = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])


class Stop(Exception):
    """Raised in the loop."""


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds with images in threads, by every backend that needs no device, and with numbers in processes."""
    for number in range(SIZE):
        path = folder / "images" / "abc"[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images.jpeg(24 + number, 20, seed=number))
    pictures = ImageFolder(folder / "images", VIEWS)
    numbers = TensorDataset(torch.arange(SIZE))
    before: list[int] = []
    memory: list[int] = []
    opencv_threads = 0
    for start in ("fork", "spawn", "forkserver"):  # multiprocessing keeps processes and descriptors of the first
        list(DataLoader(numbers, BATCH, num_workers=1, multiprocessing_context=start))
    gc.collect()
    gc.freeze()  # what the libraries made is not searched in every round

    def one(rng: Random) -> str:
        nonlocal opencv_threads
        backend = rng.choice(["native", "pil", "turbojpeg", "opencv"])
        processes = rng.random() < 0.02
        how = rng.choice(sorted(WAYS))
        sys.setswitchinterval(rng.choice([0.005, 1e-6]))  # by seconds; the small one switches after almost every line
        if processes and how != "cycle":  # there torch's iterator waits five seconds for each process, and kills it
            start = rng.choice(["fork"] * 18 + ["spawn", "forkserver"])
            loader = DataLoader(numbers, BATCH, num_workers=2, multiprocessing_context=start)
        else:
            threads = rng.randrange(4)
            loader = DataLoader(pictures, BATCH, shuffle=True, num_workers=threads, backend=backend)
            opencv_threads += 2 * threads * (backend == "opencv")  # in each of this round's two epochs
        WAYS[how](iter(loader), rng)
        gc.collect()
        left = _left()
        assert left == ([], []), f"{how}: {left}"
        assert sum(len(batch[-1]) for batch in loader) == SIZE
        gc.collect()
        if len(before) < 30:  # libraries open what they keep in the first rounds
            before.append(_descriptors())
        else:
            assert _descriptors(max(before)) <= max(before), f"{how}: descriptors are open that were not before"
        if len(memory) < 100:
            memory.append(psutil.Process().memory_info().rss)
        else:
            grown = psutil.Process().memory_info().rss - max(memory) - OPENCV_BYTES * opencv_threads
            assert grown < GROWTH_BYTES, f"{grown} bytes more than in the first {len(memory)} rounds"
        return how

    return one


def _left() -> tuple[list[str], list[int]]:
    """Threads of the pipeline and processes that are still there."""
    until = time.monotonic() + 10
    while True:
        threads = [each.name for each in threading.enumerate() if each.name.startswith("fastdata")]
        processes = [each.pid for each in psutil.Process().children() if not _stays(each)]
        if not (threads or processes) or time.monotonic() > until:
            return threads, processes
        time.sleep(0.005)


def _stays(process: psutil.Process) -> bool:
    """True for a process that multiprocessing keeps until the end of the program."""
    try:
        command = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return True
    return "resource_tracker" in command or "multiprocessing.forkserver" in command


def _descriptors(expected: int = 1 << 20) -> int:
    """How many are open; the threads of multiprocessing's queues may close theirs a moment later."""
    until = time.monotonic() + 10
    while (found := len(os.listdir("/dev/fd"))) > expected and time.monotonic() < until:
        time.sleep(0.005)
        gc.collect()
    return found


def _break(iterator: Any, rng: Random) -> None:
    for _ in range(rng.randrange(SIZE // BATCH)):
        next(iterator)


def _error(iterator: Any, rng: Random) -> None:
    try:
        _break(iterator, rng)
        raise Stop
    except Stop:
        pass


def _stall(iterator: Any, rng: Random) -> None:
    _break(iterator, rng)
    time.sleep(rng.random() * 0.01)


def _in_a_cycle(iterator: Any, rng: Random) -> None:
    _break(iterator, rng)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)


def _in_another_thread(iterator: Any, rng: Random) -> None:
    thread = threading.Thread(target=_break, args=(iterator, rng))
    thread.start()
    thread.join()


def _to_the_end(iterator: Any, rng: Random) -> None:
    assert sum(len(batch[-1]) for batch in iterator) == SIZE


WAYS: dict[str, Callable[[Any, Random], None]] = {
    "break": _break,
    "error": _error,
    "stall": _stall,
    "cycle": _in_a_cycle,
    "another thread": _in_another_thread,
    "to the end": _to_the_end,
}
