"""The page with what one `fastdata demo` has measured: verdict first."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdata.demo.results import ceiling_of, least, ranked, verdict
from fastdata.demo.train import Epoch
from fastdata.measuring.rounds import Measurement, ratios, spread
from fastdata.pages.render import render
from fastdata.terminal.words import counted

__all__ = ["write_report"]

_COMMAND = "fastdata demo{folder}\n\n# or, from a checkout:\nbash tools/demo.sh{folder}"


def write_report(
    path: Path,
    measurements: Sequence[Measurement],
    epoch: Epoch | None,
    machine: dict[str, Any],
    *,
    folder: Path | None = None,
    command: str = "",
) -> None:
    """Writes the page.

    Args:
        path: path of the page; missing folders are created.
        measurements: measurements of the loaders; the first is torch's.
        epoch: costs of training an epoch; None if nothing was trained.
        machine: description from `fastdata.measuring.record.machine`.
        folder: the user's own images; None for drawn ones.
        command: the command that measured; "" for `fastdata demo`.
    """
    loaders, ceiling = _loader_rows(measurements)
    page = render(
        "demo.html",
        date=time.strftime("%Y-%m-%d"),
        verdict=verdict(measurements),
        loaders=loaders,
        ceiling=ceiling,
        rounds=counted(len(measurements[0].images_per_s), "interleaved round"),
        drawn=folder is None,
        folder=folder,
        epoch=epoch,
        parts=[
            {"name": name, "percent": round(100 * epoch.share(part), 1)}
            for name, part in (("waiting", "wait"), ("forward", "forward"), ("backward", "backward"), ("rest", "step"))
            if epoch is not None
        ],
        command=command or _COMMAND.format(folder=f" {folder}" if folder is not None else ""),
        machine=json.dumps(machine, indent=1),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _loader_rows(measurements: Sequence[Measurement]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The loaders, cheapest first, with widths in percent of the longest; and the ceiling's line."""
    shown = ranked(measurements)
    longest = max(max(each.cpu_ms_per_image) for each in shown)
    less, best = ratios(measurements, measurements[0].name), least(measurements)
    rows = []
    for each in shown:
        cpu, rate = spread(each.cpu_ms_per_image), spread(each.images_per_s)
        rows.append(
            {
                "name": each.name,
                "best": each.name in best,
                "percent": round(100 * cpu["median"] / longest, 1),
                "low": round(100 * cpu["min"] / longest, 1),
                "high": round(100 * cpu["max"] / longest, 1),
                "ms": f"{cpu['median']:.2f}",
                "ms_range": f"{cpu['min']:.2f} to {cpu['max']:.2f}",
                "less": f"{less[each.name]['cpu']['median']:.2f}",
                "rate": f"{rate['median']:.0f}",
                "rate_range": f"{rate['min']:.0f} to {rate['max']:.0f}",
            }
        )
    nothing = ceiling_of(measurements)
    if nothing is None:
        return rows, None
    cpu_ms = spread(nothing.cpu_ms_per_image)["median"]
    return rows, {"percent": round(min(100.0, 100 * cpu_ms / longest), 1), "ms": f"{cpu_ms:.2f}"}
