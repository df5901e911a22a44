"""The contract of `fastdata.loaders.backend` as checks, whose AssertionErrors name the image and the view."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from fastdata.loaders import Backend, create_backend
from fastdata.loaders.backend import Fidelity
from fastdata.loaders.fallback import inspect
from fastdata.loaders.rows import decode_each
from fastdata.testing.filler_checks import check_drawing_filler, check_filler
from fastdata.testing.pictures import check_close, encoded, pillows_view, valid_files
from fastdata.views.resampling import Interpolation
from fastdata.views.view import View

__all__ = ["CHECKS", "check_backend"]

_UNTOUCHED = 77  # every byte of memory before a backend fills it
_SIZES = ((97, 61), (160, 120), (33, 200), (16, 16), (7, 5))


def check_backend(backend: str | type[Backend], *, fidelity: Fidelity = "exact") -> None:
    """Runs all `CHECKS` against a backend.

    Args:
        backend: its class, or its name if it is registered.
        fidelity: what the backend is made with; its `mean_tolerance` for it says how near to Pillow pixels must be.

    Raises:
        AssertionError: it does not keep the contract.
        BackendUnavailable: its library is missing.

    Example:
        >>> def test_mine():
        ...     fastdata.testing.check_backend(MyBackend)
    """
    if isinstance(backend, str):
        made = create_backend(backend, fidelity=fidelity)
    else:
        backend.version()
        made = backend(fidelity=fidelity)
    allowed = (made.mean_tolerance or {}).get(fidelity)
    assert allowed is not None, (
        f"{made.name} states no mean_tolerance for fidelity={fidelity!r}, which says how near to Pillow its pixels are"
    )
    for check in CHECKS.values():
        check(made, allowed)


def check_windows(backend: Backend, tolerance: float) -> None:
    """Windows of JPEGs of every chroma sampling are Pillow's, mirrored or not."""
    for sampling in ("4:4:4", "4:2:2", "4:2:0", "grey"):
        for width, height in _SIZES:
            mode = "L" if sampling == "grey" else "RGB"
            data = encoded(width, height, mode=mode, sampling=sampling)
            windows = [(0, 0, width, height), (0, 0, width // 2, height // 2), (width // 3, height // 3, width, height)]
            windows += [(width // 4, height // 4, width // 4 + 1, height // 4 + 1), (1, 1, width - 1, height // 2)]
            for window in windows:
                for flip in (False, True):
                    view = _view(window, (40, 56), flip_horizontal=flip, flip_vertical=flip)
                    _check_pixels(backend, data, view, tolerance, f"a {sampling} JPEG of {width} × {height}")


def check_filters(backend: Backend, tolerance: float) -> None:
    """Every filter of Pillow's resize gives Pillow's pixels."""
    data = encoded(150, 110)
    for interpolation in Interpolation:
        if not interpolation.is_tensors:
            view = _view((11, 7, 140, 100), (64, 48), crop=(5, 3, 60, 44), interpolation=interpolation)
            _check_pixels(backend, data, view, tolerance, f"a JPEG by the filter {interpolation.name}")


def check_kinds(backend: Backend, tolerance: float) -> None:
    """Files of many kinds are decoded, by Pillow where the backend's library cannot."""
    for name, data in valid_files().items():
        image = inspect(data)
        _check_pixels(backend, data, _view((0, 0, image.width, image.height), (50, 30)), tolerance, f"a {name}")


def check_outside(backend: Backend, tolerance: float) -> None:
    """A crop that reaches outside of the image is black there."""
    view = _view((0, 0, 20, 30), (20, 30), crop=(-6, -1, 26, 31))
    _check_pixels(backend, encoded(20, 30), view, tolerance, "a JPEG with a crop outside of it")


def check_neighbours(backend: Backend, tolerance: float) -> None:
    """A bad image has an error in its place, and leaves its neighbours unharmed."""
    good, view = encoded(120, 90), _view((10, 10, 100, 80), (32, 32))
    for told, bad in {"cut short": good[: len(good) // 2], "empty": b"", "of text": b"<html>not found</html>"}.items():
        try:
            images = [inspect(each) for each in (good, bad, good)]
        except OSError:
            continue  # its head cannot be read, so its pixels are not asked for
        out = np.full((3, 32, 32, 3), _UNTOUCHED, np.uint8)
        statuses = decode_each(backend, images, [view] * 3, list(out))
        assert len(statuses) == 3, f"{len(statuses)} entries for 3 images"
        assert isinstance(statuses[1], Exception), f"an image that is {told} has no error"
        for place in (0, 2):
            assert statuses[place] is None, f"an image beside one that is {told} has the error {statuses[place]!r}"
            check_close(out[place], pillows_view(good, view), tolerance, f"an image beside one that is {told}")


def check_damage(backend: Backend, tolerance: float) -> None:
    """Damage in a JPEG's scan is treated as Pillow treats it, and a missing end is noticed below the window."""
    data = encoded(200, 160)
    middle, view = len(data) // 2, _view((20, 20, 180, 140), (64, 64))
    for told, damage in {"zeros": bytes(60), "noise": bytes(range(60, 120))}.items():
        damaged = data[:middle] + damage + data[middle + 60 :]
        try:
            expected = pillows_view(damaged, view)
        except OSError:
            assert _decoded(backend, damaged, view)[1] is not None, f"{told} in the scan: Pillow refuses it"
        else:
            pixels, error = _decoded(backend, damaged, view)
            assert error is None, f"{told} in the scan: Pillow decodes it, but here is {error!r}"
            check_close(pixels, expected, tolerance, f"a JPEG with {told} in its scan")
    cut = encoded(200, 400)
    top = _view((0, 0, 200, 40), (32, 32))
    assert _decoded(backend, cut[: len(cut) * 3 // 4], top)[1] is not None, "a missing end below the window is unseen"


def check_threads(backend: Backend, tolerance: float) -> None:
    """Several threads use one backend at once."""
    files = [encoded(80 + 9 * number, 130 - 5 * number, seed=number) for number in range(6)]
    view = _view((5, 5, 70, 80), (48, 48))
    expected = [_decoded(backend, data, view)[0] for data in files]

    def is_wrong(number: int) -> bool:
        pixels, error = _decoded(backend, files[number], view)
        return error is not None or not np.array_equal(pixels, expected[number])

    numbers = [*range(len(files))] * 10
    with ThreadPoolExecutor(len(files)) as threads:
        wrong = {number for number, is_other in zip(numbers, threads.map(is_wrong, numbers), strict=True) if is_other}
    assert not wrong, f"images {sorted(wrong)} are others when {len(files)} threads decode"


def check_copies(backend: Backend, tolerance: float) -> None:
    """A copy made by pickle, as worker processes get it, decodes alike."""
    data, view = encoded(90, 70), _view((0, 0, 90, 70), (40, 40))
    _check_pixels(pickle.loads(pickle.dumps(backend)), data, view, tolerance, "a JPEG by a pickled copy")


CHECKS: dict[str, Callable[[Backend, float], None]] = {
    "windows": check_windows,
    "filters": check_filters,
    "kinds": check_kinds,
    "outside": check_outside,
    "neighbours": check_neighbours,
    "damage": check_damage,
    "threads": check_threads,
    "copies": check_copies,
    "filler": check_filler,
    "drawing filler": check_drawing_filler,
}
"""The checks by name, each called with a backend and its tolerance."""


def _view(
    window: tuple[int, int, int, int],
    resize: tuple[int, int],
    *,
    crop: tuple[int, int, int, int] | None = None,
    interpolation: Interpolation = Interpolation.BILINEAR,
    flip_horizontal: bool = False,
    flip_vertical: bool = False,
) -> View:
    return View(
        window_px=window,
        resize_px=resize,
        crop_px=crop or (0, 0, *resize),
        flip_horizontal=flip_horizontal,
        flip_vertical=flip_vertical,
        interpolation=interpolation,
    )


def _decoded(backend: Backend, data: bytes, view: View) -> tuple[npt.NDArray[np.uint8], Exception | None]:
    out = np.full((1, *view.size, 3), _UNTOUCHED, np.uint8)
    (error,) = decode_each(backend, [inspect(data)], [view], list(out))
    return out[0], error


def _check_pixels(backend: Backend, data: bytes, view: View, tolerance: float, what: str) -> None:
    pixels, error = _decoded(backend, data, view)
    assert error is None, f"{what}, {view}: {error!r}"
    check_close(pixels, pillows_view(data, view), tolerance, f"{what}, {view}")
