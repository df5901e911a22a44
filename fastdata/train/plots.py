"""Plots of a run and of a learning rate search, if matplotlib is installed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastdata.system.files import whole_file
from fastdata.system.stack_level import users_level
from fastdata.train.checkpoint_files import writing

__all__ = ["plot_rates", "plot_run"]


def plot_run(losses: Sequence[float], epochs: Sequence[Mapping[str, float]], path: Path) -> None:
    """Plots the loss per update; accuracy, share of waiting for data, and images per second per epoch."""
    if (figure := _figure(path, (12, 4))) is None:
        return
    left, right, speed = figure.subplots(1, 3)
    left.plot(range(1, len(losses) + 1), losses, linewidth=0.8)
    left.set(xlabel="update", ylabel="training loss")
    for name in ("val_accuracy", "wait_share"):
        values = [entry[name] for entry in epochs if name in entry]
        right.plot(range(len(values)), values, marker="o", label=name.replace("_", " "))
    right.set(xlabel="epoch", ylim=(0, 1.02))
    right.legend()
    speed.plot([entry["images_per_s"] for entry in epochs], marker="o")
    speed.set(xlabel="epoch", ylabel="images per second", ylim=(0, None))
    _save(figure, path)


def plot_rates(rates: Sequence[float], losses: Sequence[float], suggestion: float, path: Path) -> None:
    """Plots the loss over the learning rate, and the suggested learning rate."""
    if (figure := _figure(path, (6, 4))) is None:
        return
    axes = figure.subplots()
    axes.semilogx(rates, losses)
    axes.axvline(suggestion, linestyle=":")
    axes.set(xlabel="learning rate", ylabel="smoothed loss", title=f"suggested peak: {suggestion:.2g}")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    with writing(path), whole_file(path) as file:
        figure.savefig(file, format="png", dpi=110)


def _figure(path: Path, inches: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        warnings.warn(
            f"{path.name} is not written: matplotlib is not installed (pip install matplotlib)",
            stacklevel=users_level(),
        )
        return None
    return Figure(figsize=inches, layout="constrained")
