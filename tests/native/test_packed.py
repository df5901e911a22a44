"""Images that the core hands over for a device, without one: which, what is decoded instead, and their memory."""

from __future__ import annotations

import gc

import images
import numpy as np
import psutil
import pytest
import torch
from packed import Packed, index_of, record_of, view_of, with_checksum

from fastdata.native import PassOrder, Status
from fastdata.tables import EFFECT, PACKED_HEAD, EffectKind
from fastdata.views.resampling import Interpolation
from fastdata.views.view import Outside, Padding

SIZE, OUT = (70, 50), (24, 20)
JPEG = images.jpeg(*SIZE, sampling="4:2:0")
VIEW = view_of(SIZE, (10, 9, 61, 44), OUT, flips="x")


def head_of(batch: Packed, row: int = 0) -> dict[str, int]:
    """The head of a packed row."""
    import ctypes

    _, results = batch.fill(packed=True)
    assert results.packed is not None
    memory = ctypes.string_at(int(results.packed.addresses[row]), int(results.packed.sizes[row]))
    return dict(zip(PACKED_HEAD, np.frombuffer(memory, np.int32, len(PACKED_HEAD)).tolist(), strict=True))


def test_a_head_says_what_is_there() -> None:
    head = head_of(Packed([record_of(JPEG)], [VIEW]))
    assert head["bytes"] % 16 == 0
    assert (head["width"], head["height"], head["components"]) == (*SIZE, 3)
    assert (head["left"], head["top"], head["source_width"], head["source_height"]) == (10, 9, 51, 35)
    assert (head["result_width"], head["result_height"], head["flip_x"], head["flip_y"]) == (*OUT, 1, 0)
    assert (head["first_row"], head["rows"], head["is_entropy_coded"]) == (0, 3, 0)
    head = head_of(Packed([JPEG], [VIEW], [index_of(JPEG, 2)]))
    assert (head["first_column"], head["columns"], head["tile"], head["tiles"]) == (0, 4, 2, 6)
    assert head["is_entropy_coded"] == 1


def test_pixels_of_other_windows_need_fewer_bytes() -> None:
    record = record_of(images.jpeg(300, 300))
    small, whole = view_of((300, 300), (100, 100, 140, 140), OUT), view_of((300, 300), (0, 0, 300, 300), OUT)
    sizes = [Packed([record], [view]).fill(packed=True)[1].packed for view in (small, whole)]
    assert all(each is not None for each in sizes)
    few, many = (int(each.sizes[0]) for each in sizes if each is not None)
    assert few < many / 3


def effects(rows: int, *which: int, kind: EffectKind = EffectKind.BOX_BLUR) -> np.ndarray:
    """An effect for some rows, and none for the others."""
    table = np.zeros((rows, 1), EFFECT)
    table["kind"][list(which)] = kind
    table["values"][list(which), 0, 0] = 1.5
    return table


def test_effects_that_a_device_does_go_with_their_image() -> None:
    kinds = EffectKind.INVERT, EffectKind.EQUALIZE, EffectKind.NONE
    heads = [head_of(Packed([record_of(JPEG)], [VIEW], effects=effects(1, 0, kind=kind))) for kind in kinds]
    assert [head["steps"] for head in heads] == [1, 1, 0]
    assert heads[0]["bytes"] >= heads[1]["bytes"] + 3 * 256  # a table of levels


def test_what_a_device_does_not_take_is_decoded() -> None:
    record = record_of(JPEG)
    reaching_out = view_of(SIZE, (0, 0, *SIZE), OUT)
    reaching_out = reaching_out.__class__(
        **{**vars(reaching_out), "crop_px": (-2, 0, 22, 20), "outside": Outside(Padding.CONSTANT, 1, 2, 3)}
    )
    mirrored = VIEW.__class__(**{**vars(VIEW), "window_flips": (True, False)})
    narrow = images.jpeg(4, 40, sampling="4:2:0")  # of which chroma is widened in another way
    data = [record, JPEG, record, record, images.saved(*SIZE, kind="PNG"), record_of(narrow), record]
    data.append(record_of(images.jpeg(*SIZE, sampling="4:4:0")))
    views = [VIEW, VIEW, reaching_out, mirrored, VIEW, view_of((4, 40), (0, 0, 4, 40), OUT), VIEW, VIEW]
    batch = Packed(data, views, effects=effects(len(data), 6))
    out, results = batch.fill(packed=True)
    assert not results.statuses.any()
    assert results.packed is not None
    assert np.flatnonzero(results.packed.sizes).tolist() == [0]
    expected = batch.decoded()
    assert torch.equal(out[1:], expected[1:])
    assert not out[0].any()  # nothing is written


def test_rows_of_one_image_are_packed_one_by_one() -> None:
    """The second has an effect, so it alone is decoded."""
    other = view_of(SIZE, (0, 0, 30, 30), OUT)
    batch = Packed([record_of(JPEG)] * 3, [VIEW, other, other], effects=effects(3, 1), same_as=[0, 0, 0])
    out, results = batch.fill(packed=True)
    assert results.packed is not None
    assert np.flatnonzero(results.packed.sizes).tolist() == [0, 2]
    assert torch.equal(out[1], batch.decoded()[1])


@pytest.mark.parametrize("order", PassOrder)
def test_the_order_of_passes_is_told(order: PassOrder) -> None:
    tall = images.jpeg(30, 300)
    view = view_of((30, 300), (0, 0, 30, 300), OUT, filter_=Interpolation.BICUBIC)
    head = head_of(Packed([record_of(tall)], [view], order=order))
    assert head["down_first"] == (order is PassOrder.SHRINK_FIRST)


def test_damage_that_is_seen_without_values_is_told_at_once() -> None:
    record = bytearray(record_of(JPEG))
    begins = 32 + sum(int.from_bytes(record[at : at + 4], "little") for at in (20, 24))
    record[begins + 4 : begins + 8] = (1 << 30).to_bytes(4, "little")  # where the second tile begins
    good = record_of(images.jpeg(*SIZE))
    _, results = Packed([with_checksum(record), good], [VIEW, VIEW]).fill(packed=True)
    assert results.statuses.tolist() == [Status.CORRUPT, Status.OK]
    assert results.packed is not None
    assert (results.packed.sizes > 0).tolist() == [False, True]


def test_an_index_of_another_file_is_not_used() -> None:
    other = images.jpeg(*SIZE, seed=9)
    batch = Packed([JPEG], [VIEW], [index_of(other, 1)])
    out, results = batch.fill(packed=True)
    assert results.packed is not None
    assert not results.packed.sizes.any()
    assert torch.equal(out, batch.decoded())


@pytest.mark.bounded_memory
def test_memory_goes_with_its_rows() -> None:
    batch = Packed([record_of(images.jpeg(900, 900, quality=97))] * 8, [view_of((900, 900), (0, 0, 900, 900), OUT)] * 8)
    process = psutil.Process()
    for number in range(30):
        _, results = batch.fill(packed=True)
        assert results.packed is not None
        taken = type(results.packed)(1, lambda address: None)
        if number % 2:
            taken.take(0, results.packed, 3)
            assert results.packed.sizes[3] == 0
            results.packed.take(3, taken, 0)
        if number == 10:
            gc.collect()
            before = process.memory_info().rss
    each_mb = sum(results.packed.sizes.tolist()) / 1e6
    assert each_mb > 3
    assert process.memory_info().rss - before < 4e6 * each_mb
