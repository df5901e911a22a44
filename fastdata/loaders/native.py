"""The native core: decodes only what the crop needs and resizes in the same pass; see fastdata/native."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastdata.errors import BackendError
from fastdata.loaders import pillow, resample
from fastdata.loaders.backend import Backend, Encoded, Pixels
from fastdata.native import Core, Files, Format, NativeMissing, PassOrder, Pool, Results, Status
from fastdata.plan import Interpolation
from fastdata.views import View, Views

__all__ = ["NativeBackend"]

_PIXELS = Format()


class NativeBackend(Backend):
    """The native core for JPEGs, Pillow for the rest.

    Besides the contract it reads files itself, so that a batch costs the interpreter a few calls.
    """

    name = "native"
    install_hint = (
        "it is part of the wheels; to build it from source install a C++20 compiler and libjpeg-turbo's headers: "
        "apt-get install g++ libjpeg-dev (Debian and Ubuntu), dnf install gcc-c++ libjpeg-turbo-devel (Fedora), "
        "brew install jpeg-turbo (macOS), then reinstall fastdata"
    )

    def __init__(self, *, fidelity: str = "exact") -> None:
        super().__init__(fidelity=fidelity)
        self._core, self._order = _exact_core()

    @classmethod
    def version(cls) -> str:
        return _exact_core()[0].description

    def decode(
        self, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]
    ) -> list[Exception | None]:
        if len(images) == 0:
            return []
        results = self._core.decode(
            np.array([_address(image.data) for image in images], np.uint64),
            np.array([len(image.data) for image in images], np.int64),
            Views.of(views),
            np.array([place.ctypes.data for place in out], np.uint64),
            format=_PIXELS,
            options=resample.options_for(self._order, views[0].interpolation, self.fidelity),
        )
        return [
            None if results.statuses[row] == Status.OK else _second_opinion(image, view, place, results, row)
            for row, (image, view, place) in enumerate(zip(images, views, out, strict=True))
        ]

    # ---- beyond the contract: files to the batch

    def make_pool(self, threads: int) -> Pool:
        """Threads for `read_files` and `decode_files`."""
        return Pool(self._core, threads)

    def read_files(self, ranges: Sequence[tuple[str, int, int]], pool: Pool | None) -> Files:
        """Reads (path, offset, length) ranges; see `Core.read_files`."""
        return self._core.read_files(ranges, pool)

    def decode_files(
        self,
        files: Files,
        rows: npt.NDArray[np.intp],
        views: Views,
        out: npt.NDArray[np.uint64],
        *,
        format: Format,  # noqa: A002 - the C interface's word
        pool: Pool | None,
    ) -> Results:
        """Decodes some of the files, `rows`, into places of the given format; see `Core.decode`."""
        options = resample.options_for(self._order, views.interpolation, self.fidelity)
        return self._core.decode(
            files.data[rows], files.data_bytes[rows], views, out, format=format, options=options, pool=pool
        )


def _exact_core() -> tuple[Core, PassOrder]:
    try:
        return resample.exact_core()
    except NativeMissing as error:
        raise NativeBackend.unavailable(error) from error


def _address(data: bytes) -> int:
    return np.frombuffer(data, np.uint8).ctypes.data


def _second_opinion(image: Encoded, view: View, place: Pixels, results: Results, row: int) -> Exception | None:
    """What Pillow says of an image that the core did not decode."""
    status = results.statuses[row]
    try:
        pillow.check_pixel_count(image.width, image.height)
        if status == Status.LIMIT:
            raise OSError(f"refused: {results.reason(row)}")
        if status == Status.OUT_OF_MEMORY:
            raise MemoryError(f"no memory for an image of {image.width} × {image.height} pixels")
        pillow.decode_view(image.data, view, place)
    except Exception as error:  # Pillow's plugins raise many kinds; each is this image's status
        return error
    return None
