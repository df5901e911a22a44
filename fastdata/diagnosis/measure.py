"""Fair measurements of loaders: interleaved rounds, CPU time of the whole process tree, spread, results as JSON.

On a shared machine wall time varies a lot, but CPU milliseconds per image of this process and all its children hardly
do, so they come first and images/s second.  All contenders run once per round, and ratios are taken within a round.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastdata.system import cuda

__all__ = [
    "Contender",
    "Measurement",
    "descendants_cpu_s",
    "hidden_share",
    "installed",
    "machine",
    "measure",
    "ratios",
    "spread",
    "table",
    "tree_cpu_s",
    "until_idle",
    "write_json",
]


_SETTLE_S = 0.03


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Something that yields batches.

    Attributes:
        name: name in the results.
        epoch: returns the batches of one pass; called for one unmeasured warm-up pass, then once per round.
        images: number of images in one pass.
    """

    name: str
    epoch: Callable[[], Iterable[Any]]
    images: int


@dataclass(kw_only=True)
class Measurement:
    """The cost of one contender, one entry per round."""

    name: str
    images: int
    cpu_ms_per_image: list[float] = field(default_factory=list)
    images_per_s: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """All rounds with their medians and ranges."""
        return {
            "name": self.name,
            "images_per_round": self.images,
            "cpu_ms_per_image": spread(self.cpu_ms_per_image),
            "images_per_s": spread(self.images_per_s),
        }


def measure(contenders: Sequence[Contender], *, rounds: int, say: Callable[[str], None] = print) -> list[Measurement]:
    """Measures contenders in interleaved rounds.

    Args:
        contenders: the contenders to compare.
        rounds: measured passes of each contender.
        say: called with progress messages.

    Returns:
        One measurement per contender, in order.
    """
    results = [Measurement(name=contender.name, images=contender.images) for contender in contenders]
    for contender in contenders:
        say(f"warming up {contender.name}")
        _consume(contender.epoch())
        until_idle(tree_cpu_s)
    for round_ in range(rounds):
        for contender, result in zip(contenders, results, strict=True):
            cpu, began = tree_cpu_s(), time.perf_counter()
            _consume(contender.epoch())
            seconds = time.perf_counter() - began
            until_idle(tree_cpu_s)
            cpu = tree_cpu_s() - cpu
            result.cpu_ms_per_image.append(1e3 * cpu / contender.images)
            result.images_per_s.append(contender.images / seconds)
        say(f"round {round_ + 1} of {rounds} done")
    return results


def until_idle(cpu_s: Callable[[], float]) -> None:
    """Waits until nothing runs: what a loader prefetches for its next pass is its own cost, not that of the next.

    Args:
        cpu_s: CPU seconds used so far.
    """
    for _ in range(200):
        before = cpu_s()
        time.sleep(_SETTLE_S)
        if cpu_s() - before < 0.1 * _SETTLE_S:
            return


def _consume(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def tree_cpu_s() -> float:
    """CPU seconds used so far by this process, its living descendants, and ended children it has waited for."""
    import psutil

    return time.process_time() + descendants_cpu_s(psutil.Process())


def descendants_cpu_s(root: Any) -> float:
    """CPU seconds used so far by a psutil.Process's living descendants, and by ended children it has waited for."""
    import psutil

    waited_for = root.cpu_times()
    total = waited_for.children_user + waited_for.children_system
    for child in root.children(recursive=True):
        try:
            of_child = child.cpu_times()
            total += of_child.user + of_child.system
        except psutil.NoSuchProcess:  # it ended between the two calls and is counted by its parent
            continue
    return float(total)


def installed(module: str) -> bool:
    """True when a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, minimum, maximum and all values."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": [round(value, 4) for value in values],
    }


def ratios(results: Sequence[Measurement], base: str) -> dict[str, dict[str, Any]]:
    """Ratios of each contender to `base` within each round; above 1 is better than `base`."""
    reference = next(result for result in results if result.name == base)
    return {
        result.name: {
            "cpu": spread([b / a for a, b in _pairs(result.cpu_ms_per_image, reference.cpu_ms_per_image)]),
            "images_per_s": spread([a / b for a, b in _pairs(result.images_per_s, reference.images_per_s)]),
        }
        for result in results
    }


def hidden_share(copies: Sequence[tuple[float, float]], kernels: Sequence[tuple[float, float]]) -> float:
    """Share of the copies' time during which a kernel runs.

    Args:
        copies: (begin, end) of each copy, in any unit of time.
        kernels: (begin, end) of each kernel, in the same unit; they may overlap.
    """
    merged: list[list[float]] = []
    for begin, end in sorted(kernels):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    total = sum(end - begin for begin, end in copies)
    hidden = sum(max(0.0, min(end, stop) - max(begin, start)) for begin, end in copies for start, stop in merged)
    return hidden / total if total else 0.0


def _pairs(ours: Sequence[float], theirs: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(ours, theirs, strict=True))


def table(results: Sequence[Measurement], base: str) -> str:
    """The results as a Markdown table, with the median of the rounds' ratios to `base`."""
    compared = ratios(results, base)
    lines = [
        f"| loader | CPU ms per image: median (range) | images/s: median (range) | CPU, times better than {base}: "
        "median of the rounds' ratios |",
        "|---|---:|---:|---:|",
    ]
    for result in results:
        cpu, rate = spread(result.cpu_ms_per_image), spread(result.images_per_s)
        ratio = compared[result.name]["cpu"]
        lines.append(
            f"| {result.name} | {cpu['median']:.2f} ({cpu['min']:.2f} to {cpu['max']:.2f}) | {rate['median']:.0f} "
            f"({rate['min']:.0f} to {rate['max']:.0f}) | {ratio['median']:.2f} |"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """The machine and the software versions that figures were measured with."""
    import torch

    from fastdata import __version__
    from fastdata.loaders import describe_backends
    from fastdata.system.cpus import usable_cpus

    return {
        "cpu": _cpu_name(),
        "usable_cpus": usable_cpus(),
        "gpu": cuda.get_device_name() if cuda.is_available() else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fastdata": __version__,
        "backends": {info.name: info.version for info in describe_backends() if info.version is not None},
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write_json(path: Path, *, setup: str, data: str, results: Any) -> None:
    """Writes results to a JSON file, with the command, date, commit, machine and conditions they were measured with.

    Args:
        path: the file; missing folders are created.
        setup: description of the comparison and its conditions.
        data: description of the images used.
        results: anything that JSON can hold.
    """
    record = {
        "command": shlex.join(["python", _script(sys.argv[0]), *map(_without_folders, sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "setup": setup,
        "data": data,
        "machine": machine(),
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _script(path: str) -> str:
    """A script as it is called from the root of the checkout."""
    whole = Path(path).resolve()
    root = Path(__file__).parents[2]
    return whole.relative_to(root).as_posix() if whole.is_relative_to(root) else "/".join(whole.parts[-2:])


def _without_folders(argument: str) -> str:
    """Keeps only the last part of a path: where files lie on the measuring machine is not published."""
    return Path(argument).name if os.sep in argument else argument


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip() or None
