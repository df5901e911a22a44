"""Decodes while the Nth request of the native core for memory fails; started with failing_allocations.cpp preloaded.

It reads lines of JSON, one for each round, and answers each with a line: what came of it, or what is broken.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
NEVER = 1 << 40
BATCH, BATCHES = 2, 4
NOT_BEGUN = "told: as the epoch began"


def rounds(folder: Path) -> Callable[[Random], str]:
    """The rounds of a campaign: a random job, request, and whether the later ones fail, too."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "failing_allocations.py"), str(folder)],
        env={**os.environ, "LD_PRELOAD": str(_library(folder))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    counts: dict[str, int] = json.loads(process.stdout.readline())

    def one(rng: Random) -> str:
        job = rng.choice(sorted(counts))
        at, lasting = rng.randint(1, counts[job]), rng.random() < 0.2
        process.stdin.write(json.dumps([job, at, lasting]) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        answer = process.stdout.readline()  # type: ignore[union-attr]
        assert answer, f"{job}: the process has ended after request {at} of {counts[job]}, lasting={lasting}"
        outcome = json.loads(answer)
        assert "broken" not in outcome, f"{job}, request {at} of {counts[job]}, lasting={lasting}: {outcome['broken']}"
        return f"{job}: {outcome['outcome']}"

    return one


def _library(folder: Path) -> Path:
    compiler = shutil.which("c++")
    if compiler is None:
        raise RuntimeError("there is no C++ compiler (c++), with which failing_allocations.cpp is made; install g++")
    made = folder / "failing_allocations.so"
    command = [
        compiler,
        "-std=c++20",
        "-shared",
        "-fPIC",
        "-O1",
        str(HERE / "failing_allocations.cpp"),
        "-o",
        str(made),
    ]
    subprocess.run(command, check=True)
    return made


def _serve(folder: Path) -> None:
    jobs = _jobs(folder)
    wholes = {name: job() for name, job in jobs.items()}
    library = ctypes.CDLL(None)
    library.disarm_memory.restype = ctypes.c_long
    assert library.watch() >= 2, "the native core is not loaded"
    counts = {}
    for name, job in jobs.items():
        library.arm_memory(ctypes.c_long(NEVER), 0)
        job()
        counts[name] = library.disarm_memory()
    print(json.dumps(counts), flush=True)
    for line in sys.stdin:
        name, at, lasting = json.loads(line)
        library.arm_memory(ctypes.c_long(at), int(lasting))
        try:
            found = jobs[name]()
        finally:
            library.disarm_memory()
        print(json.dumps(_judged(found, jobs[name](), wholes[name], lasting)), flush=True)


def _judged(found: list[Any], again: list[Any], whole: list[Any], lasting: bool) -> dict[str, str]:
    if again != whole:
        return {"broken": f"afterwards: {again} instead of {whole}"}
    if len(found) != len(whole):
        return {"broken": f"{len(found)} results instead of {len(whole)}: {found}"}
    told = 0
    for place, (each, right) in enumerate(zip(found, whole, strict=True)):
        if each != right:
            if not (isinstance(each, str) and each.startswith("told: ")):
                return {"broken": f"at {place}: {each} instead of {right}"}
            told += 1
    if found[0] == NOT_BEGUN:
        return {"outcome": "told as the epoch began"}
    if told > 1 and not lasting:
        return {"broken": f"one request failed, but {told} batches: {found}"}
    return {"outcome": "told" if told else "survived"}


def _jobs(folder: Path) -> dict[str, Callable[[], list[Any]]]:
    """What is done: batches of a folder of each kind, by the loader; indexes and records, by the core."""
    sys.path.insert(0, str(HERE))
    import images
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from fastdata import DataLoader
    from fastdata.loaders.resample import exact_core, options_for

    kinds = {
        "baseline": lambda number: images.jpeg(60 + number, 50, seed=number),
        "progressive": lambda number: images.saved(60 + number, 50, progressive=True),
        "PNG": lambda number: images.saved(60 + number, 50, kind="PNG"),
    }
    core, order = exact_core()
    jobs: dict[str, Callable[[], list[Any]]] = {}
    for kind, made in kinds.items():
        for number in range(BATCHES * BATCH):
            path = folder / kind / "a" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made(number))
        for name, last in {"crops": transforms.RandomResizedCrop(16), "whole": transforms.Resize((24, 24))}.items():
            views = transforms.Compose([last, transforms.PILToTensor()])
            data = ImageFolder(str(folder / kind), views)
            for workers in (0, 2):

                def epoch(data: Any = data, workers: int = workers) -> list[Any]:
                    loader = DataLoader(data, BATCH, num_workers=workers, backend="native", seed=1)
                    return _results(loader)

                jobs[f"{kind}, {name}, {workers} threads"] = epoch
    encoded = kinds["progressive"](0)

    def record() -> Any:
        made = core.unpack(encoded, options=options_for(order, "exact"))
        return zlib.crc32(made) if made is not None else "told: no memory, so it stays a file"

    jobs["record"] = lambda: [_told(record)]
    return jobs


def _results(loader: Any) -> list[Any]:
    """What comes of each batch, or NOT_BEGUN for all."""
    begun: list[Any] = []
    refused = _told(lambda: begun.append(iter(loader)))
    if not begun:
        assert refused.startswith("told: "), refused
        return [NOT_BEGUN] * BATCHES
    found: list[Any] = []
    (iterator,) = begun
    while len(found) < BATCHES:

        def batch() -> Any:
            pixels, labels = next(iterator)
            return [hash(pixels.numpy().tobytes()), labels.tolist()]

        found.append(_told(batch))
    return found


def _told(work: Callable[[], Any]) -> Any:
    """What comes of it, or what was told of a lack of memory."""
    from fastdata.errors import FastdataError

    try:
        return work()
    except (FastdataError, MemoryError) as error:
        return f"told: {error}" if "memory" in str(error).lower() else f"no word of memory: {error!r}"
    except Exception as error:  # noqa: BLE001 - which kinds are right is the question
        return f"not told: {error!r}"


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
