"""A marker in or behind a JPEG's scan: rows at the damage or behind it are shown as by Pillow, or not at all.

A round puts one of the 256 values behind an 0xFF at some place of a scan, over two bytes or between them, mostly in
its last bytes or behind them.  Windows are decoded by the native core, from the file and by an index, and by TurboJPEG.
Where Pillow refuses the file, only windows above the row of the damage may be shown; where it does not, its pixels are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import core_alone
import images
import numpy as np

from fastdata import native
from fastdata.loaders import available_backends, create_backend, pillow, resample
from fastdata.loaders.backend import HandBack
from fastdata.loaders.fallback import inspect
from fastdata.views.view import View

ROUNDS = (1_500, 60_000, 400_000)
WIDTH, HEIGHT = 83, 70
END = b"\xff\xd9"
CODINGS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": 2},
    "4:4:4": {"subsampling": 0},
    "grey": {"mode": "L"},
    "rows restart": {"subsampling": 2, "restart_marker_rows": 1},
    "blocks restart": {"subsampling": 0, "restart_marker_blocks": 3},
    "progressive": {"progressive": True},
}


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds with one file and four windows each."""
    files = {name: images.saved(WIDTH, HEIGHT, quality=75, **coding) for name, coding in CODINGS.items()}
    turbojpeg: Any = create_backend("turbojpeg") if "turbojpeg" in available_backends() else None

    def one(rng: Random) -> str:
        name, value = rng.choice(sorted(files)), rng.randrange(256)
        place, data = _damaged(files[name], value, rng)
        theirs = _by_pillow(data)
        for window in _windows(rng):
            view = core_alone.view_of(window)
            ways = {"the core": core_alone.decoded(data, view), "the core by an index": _by_index(data, view, rng)}
            if turbojpeg is not None:
                ways["turbojpeg"] = _by_turbojpeg(turbojpeg, data, view)
            for way, pixels in ways.items():
                if pixels is None:
                    continue
                where = f"{name}, FF {value:02X} at byte {place} of {len(files[name])}, {window} by {way}"
                if theirs is None:
                    whole = _whole_rows(files[name][:place] + END)
                    assert window[3] <= whole, f"{where}: shown, though Pillow refuses it and {whole} rows are whole"
                else:
                    left, top, right, bottom = window
                    assert (pixels == theirs[top:bottom, left:right]).all(), f"{where}: other pixels than Pillow's"
        return f"{name}, {'refused' if theirs is None else 'decoded'} by Pillow"

    return one


def _damaged(data: bytes, value: int, rng: Random) -> tuple[int, bytes]:
    """Place of the marker, and the file with it."""
    begin, end = data.index(b"\xff\xda"), len(data) - len(END)
    begin += 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")
    place = rng.choice([rng.randint(begin, end), rng.randint(end - 6, end)])
    replaced = rng.choice([0, 2]) if place + 2 <= end else 0
    return place, data[:place] + bytes((0xFF, value)) + data[place + replaced :]


def _windows(rng: Random) -> list[tuple[int, int, int, int]]:
    """All of the image, its last rows, its upper left corner, and a random window."""
    left, top = rng.randrange(WIDTH), rng.randrange(HEIGHT)
    drawn = left, top, rng.randint(left + 1, WIDTH), rng.randint(top + 1, HEIGHT)
    last = left, rng.randrange(HEIGHT - 3, HEIGHT), rng.randint(left + 1, WIDTH), HEIGHT
    return [(0, 0, WIDTH, HEIGHT), last, (0, 0, 20, rng.randint(1, HEIGHT)), drawn]


def _whole_rows(data: bytes) -> int:
    """Down to which row the core finds all data of a file that is cut short."""
    for bottom in range(HEIGHT, 0, -1):
        if core_alone.decoded(data, core_alone.view_of((0, 0, WIDTH, bottom))) is not None:
            return bottom
    return 0


def _by_index(data: bytes, view: View, rng: Random) -> np.ndarray | None:
    core, order = resample.exact_core()
    index = core.index_jpeg(data, step=rng.randrange(6), options=resample.options_for(order, "exact"))
    return None if index is None else core_alone.decoded(data, view, indexes=native.JpegIndexes.of([index]))


def _by_turbojpeg(backend: Any, data: bytes, view: View) -> np.ndarray | None:
    out = np.zeros((*view.size, 3), np.uint8)
    try:
        backend.decode_view(inspect(data), view, out)
    except HandBack:
        return None
    return out


def _by_pillow(data: bytes) -> np.ndarray | None:
    """The whole image; None if Pillow refuses it."""
    try:
        return np.asarray(pillow.open_rgb(data))
    except OSError:
        return None
