"""Batches that a device decodes: packed images in one block of memory, and the kernels that make pixels of them.

A batch goes to the device by one copy of its arena:

    int64 table[N][PLACES]    where things of each image lie (`decode_kernels`): packed images first, then decoded ones
    int32 zigzag[64]          place of each coefficient in natural order
    levels                    the batch's element for each channel's level, if it is not uint8
    images                    packed (`fastdata/native/jpeg/packed.h`), or RGB pixels that the host has decoded

There the kernels run one after the other on the copy stream, with memory between them that is theirs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata.device.left_to_device import LeftToDevice
from fastdata.device.prefetch import index_of
from fastdata.native import load
from fastdata.system import cuda
from fastdata.tables import PACKED_HEAD, PackedRows

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["DecodedBatch", "kernels", "packed_batch", "problem"]

_MOST_IMAGES = 65_535  # of a launch

_ALIGNED_BYTES = 16
_MOST_BYTES_BETWEEN = 1 << 30  # of the memory between kernels, but for one larger image
_HEAD_BYTES = 4 * len(PACKED_HEAD)
_LANES, _TILE_BLOCKS, _PIXELS = 32, 32, 512  # of one program

# Source: ITU T.81, figure A.6.
_DIAGONALS = [[(at, s - at) for at in range(8) if 0 <= s - at < 8] for s in range(15)]
_ORDER = [8 * y + x for s, diagonal in enumerate(_DIAGONALS) for y, x in (diagonal if s % 2 else diagonal[::-1])]
_ZIGZAG = np.array(_ORDER, np.int32)

_Ints = npt.NDArray[np.int64]


def kernels() -> ModuleType:
    """Returns `fastdata.device.decode_kernels`.

    Raises:
        ImportError: Triton is not installed.
    """
    from fastdata.device import decode_kernels

    return decode_kernels


def effect_kernels() -> ModuleType:
    """Returns `fastdata.device.effect_kernels`; see `kernels`."""
    from fastdata.device import effect_kernels

    return effect_kernels


def problem(device: torch.device) -> str | None:
    """Returns why the kernels cannot run on a device, and what to do; None if they can.

    The first call compiles one of them, which takes a second or two; Triton keeps what it has compiled on disk.
    """
    try:
        by = kernels()
    except ImportError as error:
        return f"Triton cannot be imported ({error}); torch's builds for CUDA bring it, or: pip install triton"
    if by.IS_INTERPRETED or device in _usable:
        return None
    try:
        with cuda.device(index_of(device)):
            tensors = {dtype: torch.zeros(64, dtype=dtype, device=device) for dtype in (torch.uint8, torch.int64)}
            memory, table = tensors[torch.uint8], tensors[torch.int64]
            by.copy_rows[(1, 1)](
                memory, table, memory.clone(), memory, 1, 1, 3, 1, 1, 1, HAS_LEVELS=False, PIXELS=_PIXELS
            )
            cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001 - Triton, its compilers and drivers raise many kinds
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return (
            f"Triton cannot start a kernel on {device} ({first}); it needs a C compiler (apt-get install gcc, or set "
            "CC), and some memory there"
        )
    _usable.add(device)
    return None


_usable = set[torch.device]()


@dataclass(frozen=True)
class _Turn:
    """Images that are decoded at once.

    Attributes:
        first, count: rows of the table.
        has_segments: some are entropy-coded.
        effects: most effects of one image.
        blurs: one of them is a blur.
        parts: most tiles, blocks, pixels of the source, and pixels behind the first pass, of one image.
        bytes_between: of coefficients, samples, pixels, what is behind the first pass, and images before effects.
    """

    first: int
    count: int
    has_segments: bool
    effects: int
    blurs: bool
    parts: tuple[int, ...]
    bytes_between: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class DecodedBatch:
    """Description of a batch in an arena, and the kernels that a device runs for it.

    Attributes:
        images: N.
        size: (height, width) of each.
        dtype: dtype of the batch.
        memory_format: its memory format.
        has_levels: the arena has the elements of levels.
        turns: the packed images.
        order: their places in the batch, and behind them those of images that are decoded.
        packed: how many are packed.
    """

    images: int
    size: tuple[int, int]
    dtype: torch.dtype
    memory_format: torch.memory_format
    has_levels: bool
    turns: tuple[_Turn, ...]
    order: tuple[int, ...]
    packed: int

    def of(
        self,
        arena: torch.Tensor,
        then: Callable[[torch.Tensor], torch.Tensor],
        failed: Callable[[list[int]], Exception],
    ) -> LeftToDevice:
        """The batch of an arena on the host, which the device decodes.

        Args:
            arena: uint8, the arena.
            then: what it does to the decoded batch.
            failed: returns the error for damaged images, given by their places in the batch.
        """
        found: list[torch.Tensor] = []

        def run(copy: torch.Tensor) -> torch.Tensor:
            batch, wrong = self.run(copy)
            found[:] = [cuda.copied(wrong, torch.device("cpu"))]
            return then(batch)

        def error() -> Exception | None:
            wrong = torch.nonzero(found[0]).flatten().tolist()
            return failed([self.order[at] for at in wrong]) if wrong else None

        return LeftToDevice(arena, run, error)

    def run(self, arena: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Decodes; does not wait for the device.

        Args:
            arena: uint8, the arena on the device.

        Returns:
            The batch (N, 3, H, W), and int32 (packed images,): not 0 for one whose record is damaged, whose pixels
            are wrong.
        """
        by, (height, width) = kernels(), self.size
        places = len(by.PLACES)
        table = arena[: 8 * places * self.images].view(torch.int64)
        words, halves = arena.view(torch.int32), arena.view(torch.int16)
        zigzag_at = 8 * places * self.images
        zigzag = arena[zigzag_at : zigzag_at + _ZIGZAG.nbytes].view(torch.int32)
        shape = (self.images, 3, height, width)
        batch = torch.empty(shape, dtype=self.dtype, device=arena.device, memory_format=self.memory_format)
        levels_at, size = zigzag_at + _ZIGZAG.nbytes, 3 * 256 * self.dtype.itemsize
        levels = arena[levels_at : levels_at + size].view(self.dtype) if self.has_levels else arena
        wrong = torch.zeros(self.packed, dtype=torch.int32, device=arena.device)
        stored = {"HAS_LEVELS": self.has_levels, "PIXELS": _PIXELS}
        for turn in self.turns:
            coefficients, samples, pixels, between, canvas = (
                torch.empty(size, dtype=torch.uint8, device=arena.device) for size in turn.bytes_between
            )
            coefficients = coefficients.view(torch.int16)
            tiles, blocks, seen, halfway = turn.parts
            of, n = table[places * turn.first :], turn.count
            own = wrong[turn.first :]
            if turn.has_segments:
                coefficients.zero_()
                by.huffman[(-(-tiles // _LANES), n)](
                    arena, words, halves, of, zigzag, coefficients, own, LANES=_LANES, num_warps=1
                )
            by.unpack[(tiles, n)](arena, words, of, coefficients, own)
            by.idct[(-(-blocks // _TILE_BLOCKS), n)](words, of, coefficients, samples, BLOCKS=_TILE_BLOCKS)
            by.to_rgb[(-(-seen // _PIXELS), n)](words, of, samples, pixels, PIXELS=_PIXELS)
            strides = batch.stride()
            by.resample[(-(-halfway // _PIXELS), n)](
                words, of, pixels, between, canvas, levels, *strides, LAST=False, **stored
            )
            by.resample[(-(-height * width // _PIXELS), n)](
                words, of, between, batch, canvas, levels, *strides, LAST=True, **stored
            )
            if turn.effects:
                canvases = self._do_effects(turn, arena, words, of, canvas)
                effect_kernels().store[(-(-height * width // _PIXELS), n)](
                    words, of, *canvases, batch, levels, *strides, **stored
                )
        for first in range(self.packed, self.images, _MOST_IMAGES):
            decoded = min(_MOST_IMAGES, self.images - first)
            by.copy_rows[(-(-height * width // _PIXELS), decoded)](
                arena, table[places * first :], batch, levels, width, height, *batch.stride(), **stored
            )
        return batch, wrong

    def _do_effects(
        self, turn: _Turn, arena: torch.Tensor, words: torch.Tensor, of: torch.Tensor, canvas: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Does the effects of images on a canvas; returns those after an even and an odd number of effects."""
        by, parts, n = effect_kernels(), -(-self.size[0] * self.size[1] // _PIXELS), turn.count
        even, odd = canvas, torch.empty_like(canvas)
        counts = torch.empty((n, by.COUNTS), dtype=torch.int32, device=arena.device)
        tables = torch.empty(n * 768, dtype=torch.uint8, device=arena.device)
        sums = torch.empty(canvas.nbytes if turn.blurs else 0, dtype=torch.float32, device=arena.device)
        floats, doubles = arena.view(torch.float32), arena.view(torch.float64)
        exactly = {"PIXELS": _PIXELS, "enable_fp_fusion": False}
        for number in range(turn.effects):
            counts.zero_()
            by.measure[(parts, n)](words, floats, of, even, counts, sums, number, **exactly)
            by.tabulate[(3, n)](words, of, counts, tables, number, enable_fp_fusion=False)
            by.change[(parts, n)](arena, words, floats, doubles, of, even, sums, odd, tables, number, **exactly)
            even, odd = odd, even
        return (even, odd) if turn.effects % 2 == 0 else (odd, even)


def packed_batch(
    packed: PackedRows | None,
    pixels: torch.Tensor,
    rows: Sequence[int],
    *,
    levels: torch.Tensor | None,
    memory_format: torch.memory_format,
    pin: bool,
) -> tuple[torch.Tensor, DecodedBatch]:
    """Puts a batch's images into one arena.

    Args:
        packed: images that the device decodes; None for none.
        pixels: uint8 (M, H, W, 3), contiguous, on the host: the other images.
        rows: the images that are in the batch, in order.
        levels: (3, 256): the batch's element for each level; None for a batch of levels.
        memory_format: memory format of the batch.
        pin: take pinned memory.

    Returns:
        The arena, uint8, and what the device does with it.
    """
    by = kernels()
    height, width = pixels.shape[1:3]
    at = np.asarray(rows, np.intp)
    sizes = packed.sizes[at] if packed is not None else np.zeros(len(at), np.int64)
    order = np.argsort(sizes == 0, kind="stable")  # those that are packed come first
    at, sizes = at[order], sizes[order]
    count = int(np.count_nonzero(sizes))
    pieces = np.empty(len(at), np.uint64)
    if packed is not None:
        pieces[:count] = packed.addresses[at[:count]]
    row_bytes = 3 * height * width
    pieces[count:] = (pixels.data_ptr() + at[count:] * row_bytes).astype(np.uint64)
    sizes[count:] = row_bytes

    table_bytes = 8 * len(by.PLACES) * len(at)
    levels_at = table_bytes + _ZIGZAG.nbytes
    levels_bytes = levels.nbytes if levels is not None else 0
    begins = _rounded(levels_at + levels_bytes) + _begins(sizes)
    end = int(begins[-1])
    arena = torch.empty(end, dtype=torch.uint8, device="cpu", pin_memory=pin)
    memory = arena.numpy()
    load().gather(pieces, sizes, (arena.data_ptr() + begins[:-1]).astype(np.uint64))
    memory[table_bytes:levels_at] = _ZIGZAG.view(np.uint8)
    if levels is not None:
        memory[levels_at : levels_at + levels_bytes] = levels.contiguous().view(torch.uint8).numpy().ravel()
    table = memory[:table_bytes].view(np.int64).reshape(len(at), len(by.PLACES))
    table[:, by.PLACES.index("head")] = begins[:-1]
    table[:, by.PLACES.index("row")] = order
    heads = memory[begins[:count, None] + np.arange(_HEAD_BYTES)].view(np.int32).astype(np.int64)
    turns = _turns({name: heads[:, column] for column, name in enumerate(PACKED_HEAD)}, table, by)
    return arena, DecodedBatch(
        images=len(at),
        size=(height, width),
        dtype=levels.dtype if levels is not None else torch.uint8,
        memory_format=memory_format,
        has_levels=levels is not None,
        turns=tuple(turns),
        order=tuple(order.tolist()),
        packed=count,
    )


def _turns(head: dict[str, _Ints], table: _Ints, by: Any) -> list[_Turn]:
    """Divides packed images so that what lies between kernels fits, and writes into the table where that is."""
    source = head["source_width"] * head["source_height"]
    down_first = head["down_first"] == 1
    halfway = np.where(down_first, head["source_width"], head["result_width"])
    halfway = halfway * np.where(down_first, head["result_height"], head["source_height"])
    luma = np.where(head["components"] == 1, 1, (1 + head["halved_x"]) * (1 + head["halved_y"]))
    blocks = head["columns"] * head["rows"] * (luma + head["components"] - 1)
    drawn = np.where(head["steps"] > 0, 3 * head["result_width"] * head["result_height"], 0)
    needed = np.stack([blocks * 128, blocks * 64, 3 * source, 3 * halfway, drawn])
    beside = 4096 * (head["steps"] > 0) + drawn * (1 + 4 * head["blurs"])  # counts, tables, a canvas, sums
    parts = np.stack([head["tiles"], blocks, source, halfway])
    first, turns = 0, []
    while first < len(blocks):
        begins = np.stack([_begins(each) for each in needed[:, first:]])
        all_bytes = begins.sum(0) + np.concatenate([[0], np.cumsum(beside[first:])])
        count = max(1, int(np.searchsorted(all_bytes, _MOST_BYTES_BETWEEN, "right")) - 1)
        count = min(count, _MOST_IMAGES)
        rows = slice(first, first + count)
        for column, unit, each in zip(
            ("coefficients", "samples", "pixels", "between", "canvas"), (128, 1, 1, 1, 1), begins, strict=True
        ):
            table[rows, by.PLACES.index(column)] = each[:count] // unit
        has_segments = bool(head["is_entropy_coded"][rows].any())
        turns.append(
            _Turn(
                first,
                count,
                has_segments,
                int(head["steps"][rows].max()),
                bool(head["blurs"][rows].any()),
                tuple(parts[:, rows].max(1).tolist()),
                tuple(begins[:, count].tolist()),
            )
        )
        first += count
    return turns


def _rounded(size: Any) -> Any:
    return -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _begins(sizes: _Ints) -> _Ints:
    """Returns where each of some pieces begins, one behind the other, and the end of the last."""
    return np.concatenate([[0], np.cumsum(_rounded(sizes))])
