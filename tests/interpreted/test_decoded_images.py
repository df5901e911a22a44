"""What kernels make of packed images, against the core, which has Pillow's pixels."""

from __future__ import annotations

import ctypes
import io
import mmap
from collections.abc import Iterator
from typing import Any

import google_crc32c
import images
import numpy as np
import pytest
import torch
from packed import Packed, index_of, record_of, view_of, with_checksum
from PIL import Image

from fastdata.device import packed_batch as module
from fastdata.native import PassOrder, Status
from fastdata.views.levels import Levels
from fastdata.views.plan import Normalisation
from fastdata.views.resampling import Interpolation

OUT = (17, 14)


def by_pillow(width: int, height: int, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(images.picture(width, height, 5)).save(file, "JPEG", **options)
    return file.getvalue()


# For each image its size, the window in it, and more for `view_of`.
RECORDS = [
    (images.jpeg(50, 37, sampling="4:4:4", quality=95), (50, 37), (3, 2, 47, 30), {"flips": "x"}),
    (images.jpeg(63, 41, sampling="4:2:2", quality=75), (63, 41), (9, 1, 63, 41), {"flips": "y"}),
    (images.jpeg(71, 66, sampling="4:2:0", quality=30), (71, 66), (17, 15, 70, 64), {"filter_": Interpolation.BICUBIC}),
    (images.jpeg(33, 90, sampling="4:2:0", quality=100), (33, 90), (0, 0, 33, 90), {"filter_": Interpolation.LANCZOS}),
    (images.jpeg(45, 61, sampling="grey"), (45, 61), (5, 5, 40, 60), {"flips": "xy"}),
    (by_pillow(49, 55, progressive=True), (49, 55), (7, 0, 49, 48), {"filter_": Interpolation.BOX}),
    (images.jpeg(40, 40, sampling="4:2:2"), (40, 40), (11, 13, 28, 27), {}),  # as large as the result
    (images.jpeg(60, 31, sampling="4:2:0"), (60, 31), (20, 9, 40, 12), {"filter_": Interpolation.NEAREST}),
]
INDEXED = [
    (images.jpeg(41, 38, sampling="4:2:0"), (41, 38), (14, 13, 38, 37), 2, {"flips": "x"}),
    (by_pillow(33, 21, quality=100, subsampling=1, optimize=True), (33, 21), (0, 0, 33, 21), 1, {}),
    (
        by_pillow(27, 26, subsampling=0, restart_marker_rows=1),
        (27, 26),
        (2, 7, 26, 25),
        3,
        {"filter_": Interpolation.BICUBIC},
    ),
    (images.jpeg(24, 33, sampling="grey", quality=60), (24, 33), (1, 1, 24, 20), 2, {}),
]


def all_kinds(order: PassOrder = PassOrder.HORIZONTAL_FIRST) -> Packed:
    """Records, files with an index, and two that the host decodes: a PNG, and a file without an index."""
    data = [record_of(each) for each, *_ in RECORDS] + [each for each, *_ in INDEXED]
    views = [view_of(size, window, OUT, **more) for _, size, window, more in RECORDS]
    views += [view_of(size, window, OUT, **more) for _, size, window, _, more in INDEXED]
    indexes = [b""] * len(RECORDS) + [index_of(each, step) for each, _, _, step, _ in INDEXED]
    for other in (images.saved(30, 20, kind="PNG"), images.jpeg(30, 20)):
        data.append(other)
        views.append(view_of((30, 20), (4, 4, 28, 18), OUT, flips="x"))
        indexes.append(b"")
    return Packed(data, views, indexes, order=order)


@pytest.mark.parametrize("order", PassOrder)
def test_pixels_are_those_of_the_core(order: PassOrder) -> None:
    batch = all_kinds(order)
    if order is PassOrder.SHRINK_FIRST:  # one, whose second pass is along rows
        tall = [at for at, view in enumerate(batch.views) if view.window_px[3] - view.window_px[1] > 60]
        batch = Packed([batch.data[at] for at in tall], [batch.views[at] for at in tall], order=order)
    arena, decoded = batch.arena()
    before = arena.clone()
    pixels, wrong = decoded.run(arena)
    assert decoded.packed == len(batch.data) - (2 if order is PassOrder.HORIZONTAL_FIRST else 0)
    assert not wrong.any()
    assert torch.equal(pixels.permute(0, 2, 3, 1), batch.decoded())
    assert torch.equal(arena, before)


def noise(width: int, height: int, seed: int, **options: Any) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def test_rows_of_data_that_end_with_a_stuffed_byte() -> None:
    """The last byte of a row that is needed may be 0xFF, whose stuffed zero is not there."""
    data = [noise(24, 16, seed, quality=100, subsampling=0) for seed in range(3)]
    batch = Packed(data, [view_of((24, 16), (8, 0, 24, 16), OUT)] * 3, [index_of(each, 1) for each in data])
    arena, decoded = batch.arena()
    pixels, wrong = decoded.run(arena)
    assert not wrong.any()
    assert torch.equal(pixels.permute(0, 2, 3, 1), batch.decoded())


def saved(picture: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", **options)
    return file.getvalue()


def test_flat_images_whose_segments_end_near_a_marker() -> None:
    """What is read ahead of a short segment may cross the marker behind it, which is one byte more than it seems."""
    bordered = Image.new("RGB", (40, 16), "white")
    bordered.paste(Image.fromarray(images.picture(24, 16)), (0, 0))
    grey = Image.new("L", (40, 24), 200)
    data = [
        saved(bordered, subsampling=0, quality=75),
        saved(bordered, optimize=True),
        saved(grey),
        saved(grey, optimize=True),
        saved(grey, restart_marker_rows=1),
        saved(bordered, subsampling=2, optimize=True, restart_marker_rows=1) + bytes(5000),
    ]
    sizes = [(40, 16), (40, 16), (40, 24), (40, 24), (40, 24), (40, 16)]
    views = [view_of(size, (0, 0, *size), OUT) for size in sizes]
    batch = Packed(data, views, [index_of(each, 1) for each in data])
    arena, decoded = batch.arena()
    assert arena.nbytes < 6 * 15_000  # nothing of what is behind the last image's end
    pixels, wrong = decoded.run(arena)
    assert not wrong.any()
    assert torch.equal(pixels.permute(0, 2, 3, 1), batch.decoded())


@pytest.mark.parametrize("step", [9, 32, 255])
def test_coefficients_beyond_16_bits_wrap_as_the_cores_do(step: int) -> None:
    """Of which libjpeg-turbo's vector code has two ways: for blocks with zeros below their first row, and others."""
    file = bytearray(noise(24, 16, 3, quality=100, subsampling=0))
    table = file.index(b"\xff\xdb") + 5
    file[table] = step  # of the DC values, which are large here
    flat = bytearray(by_pillow(24, 16, quality=100, subsampling=0))
    flat[flat.index(b"\xff\xdb") + 5] = step
    data = [record_of(bytes(file)), record_of(bytes(flat))]
    batch = Packed(data, [view_of((24, 16), (0, 0, 24, 16), OUT)] * 2)
    arena, decoded = batch.arena()
    assert torch.equal(decoded.run(arena)[0].permute(0, 2, 3, 1), batch.decoded())


def test_floats_are_those_of_the_host() -> None:
    levels = Levels.of(Normalisation(dtype=torch.float32, scaling="divide", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1)))
    everything = all_kinds()
    some = [0, 8, 12, 13]  # a record, a file with an index, and two by the host
    batch = Packed(*([each[at] for at in some] for each in (everything.data, everything.views, everything.indexes)))
    arena, decoded = batch.arena(levels.table(), torch.channels_last)
    floats, _ = decoded.run(arena)
    assert floats.is_contiguous(memory_format=torch.channels_last)
    table, pixels = levels.table(), batch.decoded().permute(0, 3, 1, 2).long()
    assert torch.equal(floats, torch.stack([table[channel][pixels[:, channel]] for channel in range(3)], 1))


def test_what_does_not_fit_at_once_is_decoded_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES_BETWEEN", 40_000)
    batch = all_kinds()
    arena, decoded = batch.arena()
    assert 3 < len(decoded.turns) < decoded.packed
    assert torch.equal(decoded.run(arena)[0].permute(0, 2, 3, 1), batch.decoded())


CANARY, AROUND = 0xA5, 64


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that is made for kernels lies between canaries, which are looked at in the end."""
    made, empty = list[torch.Tensor](), torch.empty

    def between_canaries(shape: Any, *, dtype: torch.dtype, device: Any, **layout: Any) -> torch.Tensor:
        like = empty(shape, dtype=dtype, device=device, **layout)
        memory = torch.full((2 * AROUND + like.nbytes,), CANARY, dtype=torch.uint8)
        made.append(memory)
        inside = memory[AROUND : AROUND + like.nbytes].view(dtype)
        return inside.as_strided(like.shape, like.stride(), AROUND // dtype.itemsize)

    yield monkeypatch.setattr(torch, "empty", between_canaries)
    assert made
    assert all(bool((memory[:AROUND] == CANARY).all() and (memory[-AROUND:] == CANARY).all()) for memory in made)


def ends_at_a_wall(arena: torch.Tensor) -> torch.Tensor:
    """A copy whose last byte is followed by memory that nobody may read."""
    pages = -(-arena.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + pages * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    copy = torch.frombuffer(memory, dtype=torch.uint8)[pages * mmap.PAGESIZE - arena.nbytes :][: arena.nbytes]
    return copy.copy_(arena)


@pytest.mark.usefixtures("guarded")
def test_damaged_records_are_told_and_hurt_nobody() -> None:
    """Whoever writes a record can give it the right checksum: the core and the kernels agree on what is wrong."""
    rng = np.random.default_rng(3)
    whole = record_of(images.jpeg(40, 33, sampling="4:2:0", quality=90))
    view = view_of((40, 33), (0, 0, 40, 33), OUT)
    told, agreed = 0, 0
    good = record_of(images.jpeg(30, 30))
    damaged = []
    for _ in range(14):
        record = bytearray(whole)
        for at in rng.integers(len(whole) // 2, len(whole) - 16, 3).tolist():
            record[at] = int(rng.integers(256))
        damaged.append(with_checksum(record))
    batch = Packed([*damaged, good], [*[view] * len(damaged), view_of((30, 30), (0, 0, 30, 30), OUT)])
    packed_rows, results = batch.fill(packed=True)
    by_core, expected = batch.fill(packed=False)
    rows = np.flatnonzero(results.statuses == Status.OK).tolist()
    arena, decoded = module.packed_batch(
        results.packed, packed_rows, rows, levels=None, memory_format=torch.contiguous_format, pin=False
    )
    pixels, wrong = decoded.run(ends_at_a_wall(arena))
    wrong_rows = {rows[decoded.order[at]] for at in torch.nonzero(wrong).flatten().tolist()}
    for place, row in enumerate(rows):
        if expected.statuses[row] != Status.OK:
            told += 1
            assert row in wrong_rows, row
        elif row not in wrong_rows:
            agreed += 1
            assert torch.equal(pixels[place].permute(1, 2, 0), by_core[row]), row
    assert told >= 2
    assert agreed >= 2
    assert len(batch.data) - 1 in rows
    assert len(batch.data) - 1 not in wrong_rows


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("what", ["index", "data"])
def test_a_wrong_index_is_told(what: str) -> None:
    data = images.jpeg(40, 33, sampling="4:2:0", quality=90)
    index = bytearray(index_of(data, 1))
    if what == "index":
        index[20 + (len(index) - 24) // 2] ^= 0x10  # an entry in the middle
    else:
        changed = bytearray(data)
        changed[-len(data) // 4] ^= 0x04
        data = bytes(changed)
        index[4:8] = google_crc32c.value(data).to_bytes(4, "little")
    index[-4:] = google_crc32c.value(bytes(index[:-4])).to_bytes(4, "little")
    batch = Packed([data], [view_of((40, 33), (0, 0, 40, 33), OUT)], [bytes(index)])
    out, results = batch.fill(packed=True)
    assert results.packed is not None
    assert results.packed.sizes[0]
    arena, decoded = module.packed_batch(
        results.packed, out, [0], levels=None, memory_format=torch.contiguous_format, pin=False
    )
    _, wrong = decoded.run(ends_at_a_wall(arena))
    assert wrong.tolist() == [1]
