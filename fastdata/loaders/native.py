"""The backend of the native core, which decodes only the rows the crop needs and resizes in the same pass."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from fastdata.jpeg_index.find import Indexes, open_indexes
from fastdata.loaders import resample
from fastdata.loaders.backend import Backend, DecodedSources, Encoded, Fidelity, LoadedFiles, Pixels, SourceBatch
from fastdata.loaders.per_image import HandBack, by_pillow
from fastdata.native import BatchLoader, Core, NativeMissing, OneImage, PassOrder, Pool, Records, Results, Status
from fastdata.system.installed import install_command
from fastdata.tables import FileBatch, Format
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.to_native import geometry
from fastdata.views.view import View, Views

__all__ = ["NativeBackend", "NativeFileLoader"]

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
        self._indexes = Indexes([])

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
        results = self._core.decode(
            np.array([_address(images[row].data) for row in rows], np.uint64),
            np.array([len(images[row].data) for row in rows], np.int64),
            Views.of([views[row] for row in rows]).columns,
            np.array([out[row].ctypes.data for row in rows], np.uint64),
            format=_PIXELS,
            options=resample.options_for(self._order, self.fidelity),
        )
        return {row: _error_of(results, at) for at, row in enumerate(rows)}

    reads_records = True

    def source_decoder(self) -> NativeBackend:
        self._indexes = open_indexes()  # once for an epoch
        return self

    def pool(self, threads: int) -> Pool:
        """Returns threads for `decode_sources`; see `fastdata.loaders.backend.SourceDecoder`."""
        return Pool(self._core, threads)

    def decode_sources(self, batch: SourceBatch, *, pool: Pool | None = None) -> DecodedSources:
        """Decodes N images in files or in memory; see `fastdata.loaders.backend.SourceDecoder`."""
        given = [np.frombuffer(each, np.uint8) if each else None for each in batch.data]
        indexes = self._indexes.of(batch.origins)
        read_bytes = np.zeros(len(batch.paths), np.int64)
        records = Records(self._core.library, batch.kept, len(batch.paths))
        results = self._core.decode(
            np.array([0 if each is None else each.ctypes.data for each in given], np.uint64),
            np.array([0 if each is None else each.size for each in given], np.int64),
            batch.views.columns,
            batch.out,
            format=batch.format,
            options=resample.options_for(self._order, self.fidelity),
            pool=pool,
            paths=batch.paths,
            same_as=batch.same_as if self.fidelity == "exact" else None,  # "fast" decodes each view at its own scale
            read_bytes=read_bytes,
            effects=batch.effects,
            indexes=indexes,
            ranges=(batch.offsets, batch.lengths, batch.crcs),
            records=records,
        )
        self._indexes.note(indexes)
        errors = [_error_of(results, at) for at in range(len(batch.paths))]
        return DecodedSources(errors, read_bytes, records=records.taken())

    def file_loader(self, plan: Plan, key: Key, *, format: Format, threads: int) -> NativeFileLoader:  # noqa: A002
        pool = self.pool(threads) if threads else None
        return NativeFileLoader(self.core_loader(plan, key, format=format, pool=pool), pool)

    def core_loader(self, plan: Plan, key: Key, *, format: Format, pool: Pool | None) -> BatchLoader:  # noqa: A002
        """Returns the core's own loader for a plan, whose images have one size."""
        assert plan.size is not None
        return BatchLoader(
            self._core,
            pool,
            geometry=geometry(plan.ops, key),
            format=format,
            options=resample.options_for(self._order, self.fidelity),
            size=plan.size,
        )


class NativeFileLoader:
    """A file loader by the native core; see `fastdata.loaders.backend.FileLoader`.

    Args:
        loader: the core's loader.
        pool: the loader's threads, which this object closes; None for the calling thread.
    """

    reads_records = True

    def __init__(self, loader: BatchLoader, pool: Pool | None) -> None:
        self._loader, self._pool = loader, pool
        self._indexes = open_indexes()

    def load(self, batch: FileBatch) -> LoadedFiles:
        indexes = self._indexes.of(batch.paths, batch.offsets)
        loaded = self._loader.load(batch, indexes=indexes)
        self._indexes.note(indexes)
        return LoadedFiles(
            ok=loaded.results.statuses == Status.OK,
            data_bytes=loaded.data_bytes,
            read_s=loaded.read_s,
            decode_s=loaded.decode_s,
            records=loaded.records,
        )

    def close(self, ended: bool) -> None:
        if self._pool is not None:
            (self._pool.close if ended else self._pool.abandon)()


def _exact_core() -> tuple[Core, PassOrder]:
    try:
        return resample.exact_core()
    except NativeMissing as error:
        raise NativeBackend.unavailable(error) from error


def _address(data: bytes) -> int:
    return np.frombuffer(data, np.uint8).ctypes.data


def _error_of(results: Results, at: int) -> Exception | None:
    status = results.statuses[at]
    if status == Status.OK:
        return None
    if status == Status.LIMIT:
        return OSError(f"refused: {results.reason(at)}")
    if status == Status.OUT_OF_MEMORY:
        return MemoryError("no memory to decode the image")
    return HandBack(results.reason(at))
