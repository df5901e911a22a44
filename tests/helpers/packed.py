"""Images packed for a device, and what it makes of them: by Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import google_crc32c
import numpy as np
import torch

from fastdata.device.packed_batch import DecodedBatch, packed_batch
from fastdata.loaders import resample
from fastdata.native import JpegIndexes, Options, PassOrder, Results, load
from fastdata.tables import EffectTable, Format, Recipes, addresses
from fastdata.views.resampling import Interpolation
from fastdata.views.view import View, windows_of

OPTIONS = resample.options_for(resample.exact_core()[1], "exact")


def view_of(
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    out: tuple[int, int],
    *,
    flips: str = "",
    filter_: Interpolation = Interpolation.BILINEAR,
) -> View:
    """A window (left, top, right, bottom) of an image of a size (width, height), resized to `out`, perhaps mirrored."""
    return replace(
        View.whole(*size),
        window_px=window,
        resize_px=out,
        crop_px=(0, 0, *out),
        flip_horizontal="x" in flips,
        flip_vertical="y" in flips,
        interpolation=filter_,
    )


def index_of(data: bytes, step: int) -> bytes:
    """A JPEG's index."""
    index = load().index_jpeg(data, step=step, options=OPTIONS)
    assert index is not None
    return index


def record_of(data: bytes) -> bytes:
    """A JPEG's record."""
    record = load().unpack(data, options=OPTIONS)
    assert record is not None
    return record


def with_checksum(record: bytearray) -> bytes:
    """A changed record that says it is not."""
    record[8:12] = google_crc32c.value(bytes(record[12:])).to_bytes(4, "little")
    return bytes(record)


@dataclass
class Packed:
    """N encoded images of one result size (width, height) with their views; `indexes` of JPEGs, b"" for none."""

    data: Sequence[bytes]
    views: Sequence[View]
    indexes: Sequence[bytes] = ()
    effects: EffectTable | None = None
    order: PassOrder = OPTIONS.pass_order
    same_as: Sequence[int] | None = None

    def fill(self, *, packed: bool) -> tuple[torch.Tensor, Results]:
        """The rows that the core decodes, uint8 (N, height, width, 3), zeros elsewhere, and its results."""
        height, width = self.views[0].size
        out = torch.zeros((len(self.data), height, width, 3), dtype=torch.uint8)
        recipes = Recipes(
            data=self.data,
            windows=windows_of(self.views),
            effects=self.effects,
            same_as=None if self.same_as is None else np.array(self.same_as, np.int64),
            format=Format(),
            out=addresses(out.data_ptr(), out.stride(0), len(out)),
            packed=packed,
        )
        options: Options = replace(OPTIONS, pass_order=self.order)
        return out, load().fill(recipes, options=options, indexes=self.c_indexes())

    def c_indexes(self) -> JpegIndexes | None:
        if not self.indexes:
            return None
        memory = [np.frombuffer(each or b"\0", np.uint8) for each in self.indexes]
        places = [own.ctypes.data if each else 0 for own, each in zip(memory, self.indexes, strict=True)]
        lengths = np.array([len(each) for each in self.indexes], np.int64)
        uses = np.zeros(len(memory), np.int32)
        return JpegIndexes(addresses=np.array(places, np.uint64), lengths=lengths, memory=memory, uses=uses)

    def decoded(self) -> torch.Tensor:
        """The images by the core, all of which it must decode."""
        out, results = self.fill(packed=False)
        assert not results.statuses.any(), [results.reason(row) for row in np.flatnonzero(results.statuses)]
        return out

    def arena(
        self, levels: torch.Tensor | None = None, memory_format: torch.memory_format = torch.contiguous_format
    ) -> tuple[torch.Tensor, DecodedBatch]:
        """The batch for a device."""
        out, results = self.fill(packed=True)
        assert not results.statuses.any(), [results.reason(row) for row in np.flatnonzero(results.statuses)]
        rows = range(len(self.data))
        return packed_batch(results.packed, out, rows, levels=levels, memory_format=memory_format, pin=False)
