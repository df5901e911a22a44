"""The backend of the native core, which decodes only the rows the crop needs and resizes in the same pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from fastdata.jpeg_index.find import open_indexes
from fastdata.loaders import resample
from fastdata.loaders.backend import Backend, Encoded, Fidelity, Filled, Pixels
from fastdata.loaders.per_image import HandBack, by_pillow
from fastdata.native import Core, NativeMissing, OneImage, Options, PassOrder, Pool, Results, Status
from fastdata.system.installed import install_command
from fastdata.tables import Format, Recipes
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.to_native import geometry
from fastdata.views.view import View, Views

__all__ = ["NativeBackend", "NativeFiller"]

_PIXELS = Format()
_one_image = OneImage()


class NativeBackend(Backend):
    """The native core for JPEGs, PNGs and raw pixels, Pillow for the rest; it reads files itself."""

    name = "native"
    mean_tolerance = MappingProxyType({"exact": 0.0, "fast": 4.0})
    install_hint = (
        "it is part of the wheels; to build it from source install a C++20 compiler and libjpeg-turbo's headers: "
        "apt-get install g++ libjpeg-dev libdeflate-dev (Debian and Ubuntu), "
        "dnf install gcc-c++ libjpeg-turbo-devel libdeflate-devel (Fedora), "
        "brew install jpeg-turbo libdeflate (macOS), then "
        + install_command(options="--force-reinstall --no-cache-dir")
    )

    def __init__(self, *, fidelity: Fidelity = "exact") -> None:
        super().__init__(fidelity=fidelity)
        self._core, self._order = _exact_core()

    @classmethod
    def version(cls) -> str:
        return _exact_core()[0].description

    def decode(self, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]) -> list[Exception | None]:
        if len(images) == 1 and images[0].is_for_core() and type(images[0].data) is bytes:
            refusal = self._decode_one(images[0].data, views[0], out[0])
            return [None if refusal is None else by_pillow(images[0], views[0], out[0], refusal)]
        known = [row for row, image in enumerate(images) if image.is_for_core()]
        refusals = self._decode_known(known, images, views, out) if known else {}
        return [
            None if row in refusals and refusals[row] is None else by_pillow(*each, refusals.get(row))
            for row, each in enumerate(zip(images, views, out, strict=True))
        ]

    def _decode_one(self, data: bytes, view: View, out: Pixels) -> Exception | None:
        """Decodes one image by the core; returns an error that is final, or HandBack."""
        options = resample.options_for(self._order, self.fidelity)
        results = _one_image.decode(self._core, data, view.columns(), out, format=_PIXELS, options=options)
        return _error_of(results, 0)

    def _decode_known(
        self, rows: Sequence[int], images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]
    ) -> dict[int, Exception | None]:
        """Decodes some rows by the core; returns for each None, an error that is final, or HandBack."""
        results = self._core.fill(
            Recipes(
                data=[images[row].data for row in rows],
                windows=Views.of([views[row] for row in rows]).columns,
                format=_PIXELS,
                out=np.array([out[row].ctypes.data for row in rows], np.uint64),
            ),
            options=resample.options_for(self._order, self.fidelity),
        )
        return {row: _error_of(results, at) for at, row in enumerate(rows)}

    def filler(self, plan: Plan | None = None, key: Key | None = None, *, threads: int) -> NativeFiller:
        return NativeFiller(self._core, resample.options_for(self._order, self.fidelity), plan, key, threads=threads)


class NativeFiller:
    """Many images with a call of the native core; see `fastdata.loaders.backend.Filler` and `Backend.filler`."""

    reads_records = True

    def __init__(self, core: Core, options: Options, plan: Plan | None, key: Key | None, *, threads: int) -> None:
        self._core, self._options = core, options
        self._geometry = geometry(plan.ops, key) if plan is not None and key is not None else None
        self._size = (plan.size if plan is not None else None) or (0, 0)
        self._pool = Pool(core, threads) if threads else None
        self._indexes = open_indexes()

    def fill(self, recipes: Recipes) -> Filled:
        files = recipes.origins if recipes.origins is not None else recipes.paths
        indexes = None if files is None else self._indexes.of(files, recipes.offsets)
        if self._options.fast:  # which decodes each view at its own scale
            recipes = replace(recipes, same_as=None)
        results = self._core.fill(
            recipes, options=self._options, pool=self._pool, geometry=self._geometry, size=self._size, indexes=indexes
        )
        self._indexes.note(indexes)
        refused = {row: _error_of(results, row) for row in np.flatnonzero(results.statuses != Status.OK).tolist()}
        return Filled(
            refused={row: error for row, error in refused.items() if error is not None},
            read_bytes=results.read_bytes,
            read_s=results.read_s,
            decode_s=results.decode_s,
            records=results.records,
        )

    def close(self, ended: bool = True) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            (pool.close if ended else pool.abandon)()


def _exact_core() -> tuple[Core, PassOrder]:
    try:
        return resample.exact_core()
    except NativeMissing as error:
        raise NativeBackend.unavailable(error) from error


def _error_of(results: Results, at: int) -> Exception | None:
    status = results.statuses[at]
    if status == Status.OK:
        return None
    if status == Status.LIMIT:
        return OSError(f"refused: {results.reason(at)}")
    if status == Status.OUT_OF_MEMORY:
        return MemoryError("no memory to decode the image")
    return HandBack(results.reason(at))
