"""Memory that stays in use after epochs have ended, by backend and number of decode threads.

Each epoch makes decode threads of its own, which end with it.  What the C library's allocator has handed out
(mallinfo2, exact to the byte) is read before and after some epochs over a few small images; what a library keeps for
every thread that has ever called it grows with their number.  The last row has threads that do nothing but call OpenCV
once.  Needs Linux with glibc 2.33 or newer.  Result: benchmarks/results/thread_memory.json.

    python benchmarks/thread_memory.py
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import tempfile
import threading
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from harness import benchmark
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.loaders import check_backend_name
from fastdata.measuring.rounds import spread
from fastdata.testing import synthetic_dataset

BACKENDS = ("native", "pil", "turbojpeg", "opencv")
TIMES, ROUNDS = 60, 3
VIEW = transforms.Compose([transforms.RandomResizedCrop(16, antialias=True), transforms.ToTensor()])


_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _Mallinfo2


def bytes_in_use() -> int:
    """Bytes that the allocator has handed out, in all arenas and mappings."""
    gc.collect()
    info = _libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def bytes_kept(what: Callable[[], object]) -> dict[str, Any]:
    """Bytes in use after `what` that were not before, for one time of it, after as many times to get warm."""
    readings = []
    for _ in range(ROUNDS + 1):
        for _ in range(TIMES):
            what()
        readings.append(bytes_in_use())
    return spread([(after - before) / TIMES for before, after in itertools.pairwise(readings)])


def measured(given: Namespace) -> dict[str, Any]:
    """Bytes that stay, by backend and number of threads."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        dataset = ImageFolder(str(synthetic_dataset(Path(folder) / "images", images_per_class=8)), VIEW)

        def epoch(backend: str, threads: int) -> None:
            name = check_backend_name(backend)
            list(DataLoader(dataset, 4, shuffle=True, num_workers=threads, backend=name))

        for backend in BACKENDS:
            for threads in (0, 1, 4):
                kept = bytes_kept(lambda backend=backend, threads=threads: epoch(backend, threads))  # type: ignore[misc]
                results[f"{backend}, {threads} threads"] = kept
    pixels = np.zeros((8, 8, 3), np.uint8)

    def opencv_alone() -> None:
        thread = threading.Thread(target=cv2.cvtColor, args=(pixels, cv2.COLOR_BGR2RGB))
        thread.start()
        thread.join()

    results["OpenCV alone, 1 thread"] = bytes_kept(opencv_alone)
    for row, kept in results.items():
        print(f"{row:24} {kept['median']:7.0f} bytes kept ({kept['min']:.0f} to {kept['max']:.0f})")
    given.setup = f"bytes for one epoch, {TIMES} epochs, {ROUNDS} rounds; OpenCV {cv2.__version__}"
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, data="24 drawn images")
