"""The backend of the native core, which decodes only the rows the crop needs and resizes in the same pass."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from fastdata.jpeg_index.find import Indexes, open_indexes
from fastdata.loaders import resample
from fastdata.loaders.backend import Backend, Encoded, Fidelity, Filled, HandBack, Pixels
from fastdata.loaders.fallback import by_pillow
from fastdata.native import Core, JpegIndexes, NativeMissing, OneImage, Options, PassOrder, Pool, Results, Status
from fastdata.system.installed import install_command
from fastdata.tables import Format, Recipes
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.to_native import geometry
from fastdata.views.view import View

__all__ = ["NativeBackend", "NativeFiller", "decode_one"]

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

    def filler(self, plan: Plan | None = None, key: Key | None = None, *, threads: int) -> NativeFiller:
        return NativeFiller(self._core, resample.options_for(self._order, self.fidelity), plan, key, threads=threads)


class NativeFiller:
    """Many images with a call of the native core; see `fastdata.loaders.backend.Filler` and `Backend.filler`."""

    takes_batches = reads_records = True

    def __init__(self, core: Core, options: Options, plan: Plan | None, key: Key | None, *, threads: int) -> None:
        self._core, self._options = core, options
        self._geometry = geometry(plan.ops, key) if plan is not None and key is not None else None
        self._size = (plan.size if plan is not None else None) or (0, 0)
        self._pool = Pool(core, threads) if threads else None
        self._indexes: Indexes | None = None

    def fill(self, recipes: Recipes) -> Filled:
        """Stores N images; see `Filler`."""
        indexes = self._indexes_of(recipes)
        if self._options.fast:  # which decodes each view at its own scale
            recipes = replace(recipes, same_as=None)
        results = self._core.fill(
            recipes, options=self._options, pool=self._pool, geometry=self._geometry, size=self._size, indexes=indexes
        )
        if self._indexes is not None:
            self._indexes.note(indexes)
        refused = {row: _error_of(results, row) for row in np.flatnonzero(results.statuses != Status.OK).tolist()}
        return Filled(
            refused={row: error for row, error in refused.items() if error is not None},
            read_bytes=results.read_bytes,
            read_s=results.read_s,
            decode_s=results.decode_s,
            records=results.records,
            packed=results.packed,
        )

    def _indexes_of(self, recipes: Recipes) -> JpegIndexes | None:
        files = recipes.origins if recipes.origins is not None else recipes.paths
        if files is None:
            return None
        if self._indexes is None:
            self._indexes = open_indexes()
        return self._indexes.of(files, recipes.offsets)

    def close(self, ended: bool = True) -> None:
        """Gives up the threads; see `Filler`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            (pool.close if ended else pool.abandon)()


def decode_one(image: Encoded, view: View, out: Pixels) -> Exception | None:
    """Decodes a view of one image into contiguous uint8 (height, width, 3), by the core or Pillow; returns the error.

    Raises:
        BackendUnavailable: there is no core.
    """
    if type(image.data) is not bytes or not image.is_for_core():
        return by_pillow(image, view, out)
    core, order = _exact_core()
    options = resample.options_for(order, "exact")
    results = _one_image.decode(core, image.data, view.columns(), out, format=_PIXELS, options=options)
    refusal = _error_of(results, 0)
    return None if refusal is None else by_pillow(image, view, out, refusal)


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
