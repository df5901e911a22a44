"""The page with what one `fastdata demo` has measured: verdict first."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastdata.dataloader.loader import DataLoader
from fastdata.demo.results import ceiling_of, least, ranked, verdict
from fastdata.demo.train import Epoch
from fastdata.image_folder import ImageFolder
from fastdata.loaders import BackendName, available_backends
from fastdata.measuring.rounds import Measurement, ratios, spread
from fastdata.pages.render import embedded, render
from fastdata.system.optional import need
from fastdata.terminal.words import counted
from fastdata.transforms import CenterCrop, Compose, PILToTensor, Resize

__all__ = ["sample_strip", "write_report"]

_SHOWN = 6
_SIDE = 128
_COMMAND = "fastdata demo{folder}\n\n# or, from a checkout:\nbash tools/demo.sh{folder}"


def write_report(
    path: Path,
    measurements: Sequence[Measurement],
    decoding: dict[str, dict[str, float]] | None,
    epoch: Epoch | None,
    machine: dict[str, Any],
    *,
    strip: Sequence[dict[str, str]] = (),
    folder: Path | None = None,
    command: str = "",
) -> None:
    """Writes the page.

    Args:
        path: path of the page; missing folders are created.
        measurements: measurements of the loaders; the first is torch's.
        decoding: images per second by size and backend; None if not measured.
        epoch: costs of training an epoch; None if nothing was trained.
        machine: description from `fastdata.measuring.record.machine`.
        strip: result of `sample_strip`.
        folder: the user's own images; None for drawn ones.
        command: the command that measured; "" for `fastdata demo`.
    """
    loaders, ceiling = _loader_rows(measurements)
    sizes = list(decoding or {})
    decoders = list(decoding[sizes[0]]) if decoding else []
    page = render(
        "demo.html",
        date=time.strftime("%Y-%m-%d"),
        verdict=verdict(measurements),
        loaders=loaders,
        ceiling=ceiling,
        rounds=counted(len(measurements[0].images_per_s), "interleaved round"),
        drawn=folder is None,
        folder=folder,
        strip=strip,
        strip_backend=_strip_backend(),
        epoch=epoch,
        parts=[
            {"name": name, "percent": round(100 * epoch.share(part), 1)}
            for name, part in (("waiting", "wait"), ("forward", "forward"), ("backward", "backward"), ("rest", "step"))
            if epoch is not None
        ],
        sizes=sizes,
        decoding=[(name, [f"{decoding[size][name]:.0f}" for size in sizes]) for name in decoders if decoding],
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


def _strip_backend() -> BackendName:
    return "native" if "native" in available_backends() else "pil"


def sample_strip(folder: Path) -> list[dict[str, str]]:
    """Some images of a folder as fastdata gives them, and how far they are from torchvision's.

    Returns:
        For each: name, source (of the picture, embedded) and difference, in words.
    """
    theirs = need("torchvision.transforms", "the comparison of pixels")
    pillow = need("PIL.Image", "the comparison of pixels", package="Pillow")
    dataset = ImageFolder(folder, Compose([Resize(_SIDE), CenterCrop(_SIDE), PILToTensor()]))
    chosen = np.linspace(0, len(dataset) - 1, min(_SHOWN, len(dataset))).astype(int).tolist()
    subset = torch.utils.data.Subset(dataset, chosen)
    loader: DataLoader[Any] = DataLoader(subset, len(chosen), backend=_strip_backend())
    (batch,) = [images for images, _ in loader]
    reference = theirs.Compose([theirs.Resize(_SIDE), theirs.CenterCrop(_SIDE), theirs.PILToTensor()])
    strip = []
    for index, image in zip(chosen, batch, strict=True):
        path, label = dataset.samples[index]
        with pillow.open(path) as opened:
            expected = reference(opened.convert("RGB"))
        most = int((image.int() - expected.int()).abs().max())
        picture = io.BytesIO()
        pillow.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(picture, "PNG")
        name = f"{dataset.classes[label]}"
        strip.append({"name": name, "source": embedded(picture.getvalue(), "image/png"), "difference": str(most)})
    return strip
