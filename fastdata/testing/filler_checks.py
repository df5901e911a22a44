"""Checks of a backend's fillers: files and memory, parts of files, views given and drawn, refusals."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastdata.loaders.backend import Backend, Filler, HandBack
from fastdata.tables import Format, Recipes, addresses
from fastdata.testing.pictures import check_close, encoded, pillows_view
from fastdata.views.draw import draw_views
from fastdata.views.philox import Key
from fastdata.views.plan import Output, Plan, RandomResizedCrop
from fastdata.views.resampling import Interpolation
from fastdata.views.view import View, view_of

__all__ = ["check_drawing_filler", "check_filler"]

Pixels: TypeAlias = npt.NDArray[np.uint8]

_SIZES = ((97, 61), (160, 120), (33, 200))
_KEY = Key(seed=3, epoch=2)
_PLAN = Plan(
    ops=(RandomResizedCrop(size=(24, 32), scale=(0.2, 1.0), ratio=(0.75, 1.33), filters=(Interpolation.BILINEAR,)),),
    output=Output.UINT8,
)


def check_drawing_filler(backend: Backend, tolerance: float) -> None:
    """A `filler` fills the rows of whole files and of parts of files, and refuses damaged and missing ones.

    It draws views, or shows those that were drawn already.
    """
    filler = backend.filler(_PLAN, _KEY, threads=2)
    images = [encoded(*size) for size in _SIZES]
    begins = np.cumsum([0, *map(len, images)])
    crcs = [int(google_crc32c.value(image)) for image in images]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contents = {"whole": images[0], "joined": b"".join(images), "cut": images[0][: len(images[0]) // 2]}
        for file, content in contents.items():
            (folder / file).write_bytes(content)
        rows = [  # file, offset, length, CRC-32C, the image that is there
            ("whole", 0, -1, -1, 0),
            ("joined", begins[1], len(images[1]), crcs[1], 1),
            ("joined", begins[2], len(images[2]), -1, 2),
            ("joined", begins[2], len(images[2]), crcs[1], None),
            ("cut", 0, -1, -1, None),
            ("missing", 0, -1, -1, None),
        ]
        files, *columns, expected = zip(*rows, strict=True)
        offsets, lengths, checksums = (np.array(column, np.int64) for column in columns)
        indices, out = range(10, 10 + len(rows)), np.zeros((len(rows), 24, 32, 3), np.uint8)
        try:
            filled = filler.fill(
                Recipes(
                    paths=[str(folder / file) for file in files],
                    offsets=offsets,
                    lengths=lengths,
                    crcs=checksums,
                    indices=indices,
                    occurrences=[1] * len(rows),
                    format=Format(),
                    out=_places(out),
                )
            )
            _check_given_view(filler, folder / "whole", images[0], tolerance)
        finally:
            filler.close()
    shown = [row not in filled.refused for row in range(len(rows))]
    assert shown == [each is not None for each in expected], f"of {', '.join(files)} {shown} were stored"
    for row, image in enumerate(expected):
        if image is not None:
            sizes = np.array([_SIZES[image]], np.int64)
            drawn = draw_views(_PLAN.ops, sizes, np.array([indices[row]]), key=_KEY, occurrences=np.array([1]))
            expected_pixels = pillows_view(images[image], view_of(drawn, 0))
            check_close(out[row], expected_pixels, tolerance, f"row {row} of {files[row]}")
            assert int(filled.read_bytes[row]) == len(images[image]), f"row {row}: wrong number of bytes read"


def _check_given_view(filler: Filler, path: Path, image: bytes, tolerance: float) -> None:
    """A filler shows the view that was drawn already, and draws none of its own."""
    window = (3, 5, 43, 35)
    out = np.zeros((1, 24, 32, 3), np.uint8)
    filled = filler.fill(
        Recipes(
            paths=[str(path)],
            indices=[7],
            occurrences=[0],
            given=np.array([[[*window, 0]]], np.int64),
            format=Format(),
            out=_places(out),
        )
    )
    view = View.whole(*_SIZES[0]).cropped(window)
    view = None if view is None else view.resized((32, 24), Interpolation.BILINEAR)
    assert view is not None
    assert not filled.refused, f"a view that was drawn already is refused: {filled.refused[0]}"
    check_close(out[0], pillows_view(image, view), tolerance, "a view that was drawn already")


def check_filler(backend: Backend, tolerance: float) -> None:
    """A `filler` fills rows with given views from files and memory, several of one image too, and refuses the rest."""
    images = [encoded(*size) for size in _SIZES[:2]]
    shown = [0, 0, 1, None]
    sizes = np.array([_SIZES[0 if image is None else image] for image in shown], np.int64)
    rows = np.arange(len(shown))
    views = draw_views(_PLAN.ops, sizes, rows, key=_KEY, occurrences=rows)
    out = np.zeros((len(shown), 24, 32, 3), np.uint8)
    with tempfile.TemporaryDirectory() as name:
        path = str(Path(name) / "image.jpg")
        Path(path).write_bytes(images[0])
        recipes = Recipes(
            paths=[path, path, "", ""],
            data=[None, None, images[1], images[0][:300]],
            same_as=np.array([0, 0, 2, 3]),
            windows=views,
            format=Format(),
            out=_places(out),
        )
        for threads in (0, 2):
            filler = backend.filler(threads=threads)
            for told in (f"by {threads} threads", "after close()"):
                out[:] = 0
                filled = filler.fill(recipes)
                filler.close()
                for row, image in enumerate(shown):
                    refusal = filled.refused.get(row)
                    if image is None:
                        assert refusal is not None, f"a damaged image was not refused {told}"
                    elif not isinstance(refusal, HandBack):
                        assert refusal is None, f"row {row} {told}: {refusal}"
                        expected = pillows_view(images[image], view_of(views, row))
                        check_close(out[row], expected, tolerance, f"row {row} {told}")
                count = len(filled.read_bytes)
                assert count == len(shown), f"{count} numbers of bytes for {len(shown)} images"


def _places(out: Pixels) -> npt.NDArray[np.uint64]:
    return addresses(out.ctypes.data, out.strides[0], len(out))
