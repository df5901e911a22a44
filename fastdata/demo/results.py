"""Measurements of some loaders in words: the verdict, and a table for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fastdata.measuring.cpu_use import CROWDED
from fastdata.measuring.rounds import Measurement, ratios, spread
from fastdata.system.cpus import usable_cpus
from fastdata.terminal.words import counted

__all__ = ["as_text", "ceiling_of", "least", "ranked", "verdict"]

_WIDTH = 80
_NAME, _CELL, _LAST = 28, 20, 12  # columns
_IMAGENET = 1_281_167  # images of an epoch
_CEILING = "synthetic"  # batches of nothing


def ranked(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Measurements of the loaders that load images, the one with the least CPU time first."""
    shown = [each for each in measurements if _CEILING not in each.name]
    return sorted(shown, key=lambda each: float(spread(each.cpu_ms_per_image)["median"]))


def ceiling_of(measurements: Sequence[Measurement]) -> Measurement | None:
    """Measurement with synthetic batches, which no loader can beat; None if there is none."""
    return next((each for each in measurements if _CEILING in each.name), None)


def least(measurements: Sequence[Measurement]) -> list[str]:
    """Names of the loaders with the least CPU time: the best one, and those that needed no more in some round."""
    shown = ranked(measurements)
    less = ratios(measurements, shown[0].name)
    return [each.name for each in shown if less[each.name]["cpu"]["max"] >= 1]


def verdict(measurements: Sequence[Measurement]) -> str:
    """Compares the best loader with torch's in one sentence, and says whether that can be judged.

    Args:
        measurements: measurements of the loaders; the first is torch's.
    """
    others = max((each for one in measurements for each in one.others), default=0.0)
    if others > CROWDED * (cpus := usable_cpus()):
        return (
            f"cannot judge: other programs use {others:.1f} of {counted(cpus, 'core')}; repeat on an idle machine. "
            f"Seen nevertheless: {_compared(measurements)}"
        )
    return _compared(measurements)


def _compared(measurements: Sequence[Measurement]) -> str:
    torchs = measurements[0]
    best = next(each for each in ranked(measurements) if each is not torchs)
    less = ratios(measurements, torchs.name)[best.name]["cpu"]["median"]
    if torchs.name in least(measurements) and less > 1:
        return (
            f"These rounds do not tell apart what {best.name} and {torchs.name} need; measure more of them (--rounds)."
        )
    saved_ms = spread(torchs.cpu_ms_per_image)["median"] - spread(best.cpu_ms_per_image)["median"]
    if less <= 1:
        return f"On these images fastdata is not faster: {best.name} needs {1 / less:.2f} times the CPU time of torch."
    return (
        f"{best.name} loads these images with {less:.1f} times less CPU than {torchs.name}: "
        f"in an epoch of ImageNet you save {saved_ms * _IMAGENET / 3.6e6:.1f} CPU-hours."
    )


def as_text(measurements: Sequence[Measurement]) -> str:
    """Verdict, table, and what its figures are; the first measurement is torch's."""
    less, best = ratios(measurements, measurements[0].name), least(measurements)
    head = f"  {'loader':<{_NAME - 2}}{'CPU ms per image':>{_CELL}}{'images/s':>{_CELL}}{'less CPU':>{_LAST}}"
    lines = [*textwrap.wrap(verdict(measurements), _WIDTH), "", head]
    for each in ranked(measurements):
        cpu, rate = spread(each.cpu_ms_per_image), spread(each.images_per_s)
        cells = [
            f"{cpu['median']:.2f} ({cpu['min']:.2f}-{cpu['max']:.2f})",
            f"{rate['median']:.0f} ({rate['min']:.0f}-{rate['max']:.0f})",
        ]
        times = f"{less[each.name]['cpu']['median']:.2f}x"
        name = f"{'* ' if each.name in best else '  '}{each.name}"
        lines.append(f"{name:<{_NAME}}{cells[0]:>{_CELL}}{cells[1]:>{_CELL}}{times:>{_LAST}}")
    rounds = counted(len(measurements[0].images_per_s), "interleaved round")
    told = "* the least" + (", not told apart by these rounds" if len(best) > 1 else "")
    told += f". Median of {rounds}, in brackets the lowest and highest; CPU time of the whole process tree."
    if (nothing := ceiling_of(measurements)) is not None:
        told += (
            f" Batches of nothing take {spread(nothing.cpu_ms_per_image)['median']:.2f} ms, which no loader can beat."
        )
    return "\n".join([*lines, "", *textwrap.wrap(told, _WIDTH)])
