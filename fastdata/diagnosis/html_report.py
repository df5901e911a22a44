"""A diagnosis as one self-contained page of HTML."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from fastdata.diagnosis.observation import Observation
from fastdata.diagnosis.speedup_model import step_seconds
from fastdata.diagnosis.text_report import tables, times
from fastdata.diagnosis.verdict import Diagnosis
from fastdata.pages.render import render

__all__ = ["as_html"]

_BARS = {"as it runs": "", "compute only": ", without waiting", "data only": ", by the loader alone"}


def as_html(told: Diagnosis, machine: dict[str, Any], *, command: str = "") -> str:
    """Renders a diagnosis as an HTML page.

    Args:
        told: the diagnosis.
        command: the command that made it; "" for `fastdata doctor PROGRAM`.
        machine: description from `fastdata.measuring.record.machine`.
    """
    return render(
        "doctor.html",
        verdict=told.verdict,
        program=told.seen.program,
        date=time.strftime("%Y-%m-%d"),
        tables=tables(told.seen),
        advice=[{**vars(each), "expected": times(each.gain)} for each in told.advice],
        what="the whole step" if told.seen.real is not None else "loading",
        converts=any(each.converts for each in told.advice),
        bars=_bars(told.seen),
        command=command or f"fastdata doctor {told.seen.program}",
        limitations=told.seen.limitations,
        machine=json.dumps(machine, indent=1),
        json=json.dumps(told.to_dict(), indent=1),
    )


def _bars(seen: Observation) -> list[dict[str, Any]]:
    """Bars of what was measured, with widths in percent of the longest."""
    pairs = zip(_BARS, step_seconds(seen), strict=True)
    known = {name: value for name, value in pairs if not math.isnan(value)}
    longest = max(known.values(), default=1.0)
    bars: list[dict[str, Any]] = [
        {"name": name, "how": _BARS[name], "ms": f"{1e3 * value:.1f} ms", "percent": round(100 * value / longest, 1)}
        for name, value in known.items()
    ]
    if seen.real is not None and seen.real.quartiles_s is not None:
        low, high = (min(100.0, 100 * each / longest) for each in seen.real.quartiles_s)
        bars[0] |= {"low": round(low, 1), "width": round(high - low, 1)}
    return bars
