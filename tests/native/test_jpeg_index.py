"""Windows of JPEGs decoded by an index: the same pixels, and never others where the index is wrong."""

from __future__ import annotations

import struct

import core_alone
import google_crc32c
import images
import numpy as np
import pytest
from core_alone import reference, view_of, windows
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata import native
from fastdata.loaders import resample
from fastdata.native import IndexUse
from fastdata.views.view import View

HEAD = struct.Struct("<IIHHHH4B")  # scan_begin, file_crc, columns, rows, step, components, widths of numbers


def index_of(data: bytes, step: int = 0) -> bytes | None:
    core, order = resample.exact_core()
    return core.index_jpeg(data, step=step, options=resample.options_for(order, "exact"))


def made(data: bytes, step: int = 0) -> bytes:
    index = index_of(data, step)
    assert index is not None
    return index


def decode(data: bytes, view: View, index: bytes) -> tuple[np.ndarray, IndexUse]:
    indexes = native.JpegIndexes.of([index])
    pixels = core_alone.decode(data, view, indexes=indexes)
    return pixels, IndexUse(int(indexes.uses[0]))


@settings(max_examples=200, deadline=None)
@given(
    st.data(),
    st.sampled_from(images.SAMPLINGS),
    st.integers(1, 200),
    st.integers(1, 200),
    st.integers(5, 98),
    st.integers(0, 12),
)
def test_any_window_of_any_sampling(
    data: st.DataObject, sampling: str, width: int, height: int, quality: int, step: int
) -> None:
    encoded = images.jpeg(width, height, seed=quality, sampling=sampling, quality=quality)
    view = view_of(data.draw(windows(width, height)))
    pixels, use = decode(encoded, view, made(encoded, step))
    assert use == IndexUse.USED
    assert (pixels == reference(encoded, view)).all()


@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    st.sampled_from(["restart_marker_blocks", "restart_marker_rows"]),
    st.integers(1, 40),
    st.sampled_from([0, 1, 2]),
    st.integers(17, 150),
    st.integers(17, 150),
    st.integers(0, 5),
)
def test_any_window_between_restart_markers(
    data: st.DataObject, kind: str, distance: int, subsampling: int, width: int, height: int, step: int
) -> None:
    encoded = images.saved(width, height, subsampling=subsampling, quality=70, **{kind: distance})
    view = view_of(data.draw(windows(width, height)))
    pixels, use = decode(encoded, view, made(encoded, step))
    assert use == IndexUse.USED
    assert (pixels == reference(encoded, view)).all()


def entries_of(encoded: bytes, index: bytes) -> tuple[int, list[tuple[int, ...]]]:
    """The scan's beginning and all entries, read as docs/format.md describes them."""
    begin, file_crc, columns, rows, step, components, *widths = HEAD.unpack_from(index)
    assert file_crc == google_crc32c.value(encoded)
    assert google_crc32c.value(index[:-4]) == int.from_bytes(index[-4:], "little")
    count = rows * -(-columns // step)
    used = widths[: 1 + components]
    assert widths == [*used, *(4 - len(used)) * [0]]
    assert len(index) == HEAD.size + (count * sum(used) + 7) // 8 + 4
    packed, entry, entries = int.from_bytes(index[HEAD.size : -4], "little"), (1 + components) * (0,), []
    for _ in range(count):
        differences = []
        for width in used:
            differences.append(packed & ((1 << width) - 1))
            packed >>= width
        dcs = [number // 2 if number % 2 == 0 else -(number + 1) // 2 for number in differences[1:]]
        entry = tuple(old + new for old, new in zip(entry, [differences[0], *dcs], strict=True))
        entries.append(entry)
    assert packed == 0
    return begin, entries


def test_the_file_is_as_documented() -> None:
    """The data begins at the first entry, and goes on from entry to entry."""
    encoded = images.jpeg(200, 120)
    index = made(encoded, 4)
    begin, entries = entries_of(encoded, index)
    assert encoded[begin - 14 : begin - 12] == b"\xff\xda"  # the scan's header, of 12 bytes for three components
    assert HEAD.unpack_from(index)[2:6] == (13, 8, 4, 3)
    assert entries[0] == (0, 0, 0, 0)
    bits = [entry[0] for entry in entries]
    assert bits == sorted(set(bits))
    assert bits[-1] < 8 * (len(encoded) - begin)


@pytest.mark.parametrize("step", [0, 3])
def test_every_flipped_bit_is_found(step: int) -> None:
    encoded, view = images.jpeg(70, 50), view_of((20, 18, 60, 45))
    index, expected = made(encoded, step), reference(encoded, view)
    for at in range(8 * len(index)):
        damaged = bytearray(index)
        damaged[at // 8] ^= 1 << at % 8
        pixels, use = decode(encoded, view, bytes(damaged))
        assert use == IndexUse.WRONG, at
        assert (pixels == expected).all(), at


def with_entry(index: bytes, entries: list[tuple[int, ...]], number: int, changed: tuple[int, ...]) -> bytes:
    """The index with another entry, and a checksum that is right."""
    head = HEAD.unpack_from(index)[:6]
    entries = [*entries, (0, 0, 0, 0)[: 1 + head[5]]]  # so that the first one's differences are its numbers
    entries[number] = changed
    differences = []
    for entry, before in zip(entries[:-1], [entries[-1], *entries], strict=False):
        bit, *dcs = (new - old for new, old in zip(entry, before, strict=True))
        differences += [bit % (1 << 32), *(2 * dc if dc >= 0 else -2 * dc - 1 for dc in dcs)]
    widths = [max(each.bit_length() for each in differences[column :: 1 + head[5]]) for column in range(1 + head[5])]
    packed = at = 0
    for row, each in enumerate(differences):
        packed |= each << at
        at += widths[row % len(widths)]
    body = HEAD.pack(*head, *(*widths, 0, 0, 0)[:4]) + packed.to_bytes((at + 7) // 8, "little")
    return body + google_crc32c.value(body).to_bytes(4, "little")


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["4:2:0", "4:4:4", "grey"]), st.integers(0, 4))
def test_an_entry_that_is_reached_by_reading_is_compared(data: st.DataObject, sampling: str, step: int) -> None:
    """Whole rows are read, so that every entry but the first is reached."""
    encoded = images.jpeg(150, 100, sampling=sampling)
    index, view = made(encoded, step), view_of((0, 0, 150, 100))
    _, entries = entries_of(encoded, index)
    number = data.draw(st.integers(1, len(entries) - 1))
    column = data.draw(st.integers(0, len(entries[0]) - 1))
    changed = list(entries[number])
    changed[column] += data.draw(st.sampled_from([1, -1, 8, 1000]))
    changed[0] = max(0, changed[0])
    pixels, use = decode(encoded, view, with_entry(index, entries, number, tuple(changed)))
    assert use == IndexUse.WRONG
    assert (pixels == reference(encoded, view)).all()


@pytest.mark.parametrize("bit", [0, 1, 7, 12345, 8 * 10**6, 2**32 - 1])
def test_a_place_anywhere_is_never_read_outside_of_the_data(bit: int) -> None:
    encoded = images.jpeg(150, 100)
    index, view = made(encoded), view_of((0, 60, 150, 100))
    _, entries = entries_of(encoded, index)
    for number in range(len(entries)):
        pixels, use = decode(encoded, view, with_entry(index, entries, number, (bit, *entries[number][1:])))
        assert use in (IndexUse.USED, IndexUse.WRONG)  # rows above the window are not looked at
        assert (pixels == reference(encoded, view)).all()


def test_the_index_of_another_file_is_not_used() -> None:
    """Not even if a single bit of the file differs, above the window."""
    one, view = images.jpeg(120, 90, seed=1), view_of((30, 60, 110, 80))
    others = [images.jpeg(120, 90, seed=2), images.jpeg(120, 60, seed=1), images.jpeg(120, 90, seed=1, quality=40)]
    changed = bytearray(one)
    changed[6] ^= 1  # in the first segment, which no decoder heeds
    for other in (*others, bytes(changed)):
        pixels, use = decode(one, view, made(other))
        assert use == IndexUse.WRONG
        assert (pixels == reference(one, view)).all()


def test_images_that_begin_alike_are_found_by_their_own_index() -> None:
    """What a decoder remembers of one image is not taken for the next."""
    rng, same = np.random.default_rng(0), images.picture(1024, 8, seed=3)
    view = view_of((400, 0, 600, 8))
    for _ in range(20):
        pixels = same.copy()
        pixels[:, 390:] = rng.integers(0, 256, (8, 634, 3))
        encoded = images.encoded(pixels, sampling="4:4:4", quality=90)
        found, use = decode(encoded, view, made(encoded, 16))
        assert use == IndexUse.USED
        assert (found == reference(encoded, view)).all()


@pytest.mark.parametrize("name", ["progressive", *images.no_whole_jpegs()])
def test_what_has_no_index(name: str) -> None:
    assert index_of((images.no_whole_jpegs() | {"progressive": images.saved(progressive=True)})[name]) is None
