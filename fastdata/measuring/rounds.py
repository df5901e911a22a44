"""Interleaved rounds: CPU time of the whole process tree and images per second, with their spread.

On a shared machine wall time varies a lot, but CPU milliseconds per image of this process and all its children hardly
do, so they come first and images/s second.  All contenders run once per round, and ratios are taken within a round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastdata.measuring.cpu_time import tree_cpu_s, until_idle
from fastdata.measuring.cpu_use import CpuMeter

__all__ = ["Contender", "Measurement", "compare", "measure", "ratios", "spread", "table"]


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
    """Measurement of one contender, with an entry for each round."""

    name: str
    images: int
    cpu_ms_per_image: list[float] = field(default_factory=list)
    images_per_s: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)  # cores that other programs used; none where it is not known

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
            meter = CpuMeter()
            cpu, began = tree_cpu_s(), time.perf_counter()
            _consume(contender.epoch())
            seconds = time.perf_counter() - began
            if (others := meter.use()[1]) is not None:
                result.others.append(others)
            until_idle(tree_cpu_s)
            cpu = tree_cpu_s() - cpu
            result.cpu_ms_per_image.append(1e3 * cpu / contender.images)
            result.images_per_s.append(contender.images / seconds)
        say(f"round {round_ + 1} of {rounds} done")
    return results


def compare(
    loaders: Mapping[str, Callable[[], Iterable[Any]]], base: str, *, images: int, rounds: int
) -> dict[str, Any]:
    """Measures loaders, prints how they compare, and returns it in the form that the JSON files of benchmarks have.

    Args:
        loaders: for each name a function that returns the batches of one pass.
        base: name of the loader that the others are compared with.
        images: number of images in one pass.
        rounds: measured passes of each loader.
    """
    contenders = [Contender(name=name, epoch=epoch, images=images) for name, epoch in loaders.items()]
    measured = measure(contenders, rounds=rounds, say=lambda _: None)
    print(f"{table(measured, base)}\n", flush=True)
    return {"loaders": [each.to_dict() for each in measured], "times_better": ratios(measured, base)}


def _consume(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


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
