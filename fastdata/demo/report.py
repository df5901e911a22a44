"""A self-contained HTML page with the figures and plots of one `fastdata demo`."""

from __future__ import annotations

import base64
import html
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdata.demo.train import Epoch
from fastdata.diagnosis.measure import Measurement, ratios, spread
from fastdata.system.optional import need

__all__ = ["write_report"]

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>fastdata on this machine</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
img{{max-width:100%}}table{{border-collapse:collapse}}
td,th{{padding:.2rem .8rem;border-bottom:1px solid #ccc;text-align:right}}
td:first-child,th:first-child{{text-align:left}}pre{{background:#f4f4f4;padding:1rem;overflow:auto}}</style>
<h1>fastdata on this machine, {date}</h1>
<p>RandomResizedCrop(224), flip, float32 normalised; CPU time is summed over the whole process tree; medians of
{rounds} interleaved rounds.</p>
{table}
<h2>Pipeline speed by backend</h2>{loaders}
<h2>Decode speed by library and image size</h2><p>Whole files, one thread, no resize.</p>{decoding}
<h2>Time of a training step</h2>
<p>One epoch of a small ResNet, {images} images, loss {first:.2f} to {last:.2f}.</p>{epoch}
<h2>Machine</h2><pre>{machine}</pre></html>
"""


def write_report(
    path: Path,
    measurements: Sequence[Measurement],
    decoding: dict[str, dict[str, float]],
    epoch: Epoch,
    machine: dict[str, Any],
) -> None:
    """Writes the page, with its images embedded."""
    page = _PAGE.format(
        date=time.strftime("%Y-%m-%d"),
        rounds=len(measurements[0].images_per_s),
        table=_table(measurements),
        loaders=_plot_loaders(measurements),
        decoding=_plot_decoding(decoding),
        epoch=_plot_epoch(epoch),
        images=epoch.images,
        first=epoch.loss_first,
        last=epoch.loss_last,
        machine=html.escape(json.dumps(machine, indent=1)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _table(measurements: Sequence[Measurement]) -> str:
    heads = ("loader", "CPU ms per image", "times less CPU than torch (median of the rounds' ratios)", "images/s")
    rows = [f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"]
    times = ratios(measurements, measurements[0].name)
    for measurement in measurements:
        cpu, rate = spread(measurement.cpu_ms_per_image)["median"], spread(measurement.images_per_s)["median"]
        less = times[measurement.name]["cpu"]["median"]
        cells = (f"{cpu:.2f}", f"{less:.2f}", f"{rate:.0f}")
        name = html.escape(measurement.name) + (" (decodes nothing)" if "synthetic" in measurement.name else "")
        rows.append(f"<tr><td>{name}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _plot_loaders(measurements: Sequence[Measurement]) -> str:
    shown = [measurement for measurement in measurements if "synthetic" not in measurement.name]
    figure, axes = _axes()
    medians = [spread(measurement.images_per_s) for measurement in shown]
    low = [rate["median"] - rate["min"] for rate in medians]
    high = [rate["max"] - rate["median"] for rate in medians]
    axes.barh([m.name for m in shown], [rate["median"] for rate in medians], xerr=[low, high], color="#4477aa")
    axes.invert_yaxis()
    axes.set_xlabel("images/s (bar: median, line: range)")
    return _image(figure, "images per second of each loader")


def _plot_decoding(decoding: dict[str, dict[str, float]]) -> str:
    figure, axes = _axes()
    names = list(next(iter(decoding.values())))
    for number, name in enumerate(names):
        places = [at + 0.8 * number / len(names) for at in range(len(decoding))]
        axes.bar(places, [speeds[name] for speeds in decoding.values()], width=0.8 / len(names), label=name)
    axes.set_xticks([at + 0.3 for at in range(len(decoding))], list(decoding))
    axes.set_ylabel("images/s, one thread")
    axes.set_yscale("log")
    axes.legend()
    return _image(figure, "images per second of each decoder by size")


def _plot_epoch(epoch: Epoch) -> str:
    figure, axes = _axes(height=1.6)
    left = 0.0
    for part in ("wait", "forward", "backward", "step"):
        seconds = getattr(epoch, f"{part}_s")
        axes.barh(["step"], [seconds], left=left, label=f"{part} {epoch.share(part):.1%}")
        left += seconds
    axes.set_xlabel("seconds in one epoch")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _image(figure, "parts of the training steps")


def _axes(height: float = 3.2) -> tuple[Any, Any]:
    figure = need("matplotlib.figure", "the report").Figure(figsize=(8, height), layout="constrained")
    return figure, figure.subplots()


def _image(figure: Any, alt: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return f'<img alt="{alt}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
