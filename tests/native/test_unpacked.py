"""JPEGs whose coefficients lie open: the same pixels, the same file again, and nothing read outside of a record."""

from __future__ import annotations

import io
import itertools
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import core_alone
import google_crc32c
import images
import numpy as np
import pytest
from core_alone import reference, view_of, windows
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from places import GOLDEN

from fastdata.loaders import resample
from fastdata.native import Status
from fastdata.tables import Format, Recipes, addresses
from fastdata.views.view import View, windows_of

HEAD = struct.Struct("<8sIIIIIHBB")
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12)


def unpack(data: bytes) -> bytes | None:
    core, order = resample.exact_core()
    return core.unpack(data, options=resample.options_for(order, "exact"))


def restore(record: bytes) -> bytes | None:
    core, order = resample.exact_core()
    return core.restore(record, options=resample.options_for(order, "exact"))


def made(data: bytes) -> bytes:
    record = unpack(data)
    assert record is not None
    return record


def status_of(record: bytes, view: View) -> Status:
    core, order = resample.exact_core()
    out = np.zeros((*view.size, 3), np.uint8)
    place = addresses(out.ctypes.data, 1, 1)
    recipes = Recipes(data=[record], windows=windows_of([view]), format=Format(), out=place)
    results = core.fill(recipes, options=resample.options_for(order, "exact"))
    return Status(int(results.statuses[0]))


# ---- what it is for


@settings(max_examples=200, deadline=None)
@given(
    st.data(),
    st.sampled_from(images.SAMPLINGS),
    st.integers(1, 300),
    st.integers(1, 200),
    st.sampled_from([1, 30, 75, 90, 100]),
)
def test_any_window_of_any_sampling(data: st.DataObject, sampling: str, width: int, height: int, quality: int) -> None:
    encoded = images.jpeg(width, height, seed=quality, sampling=sampling, quality=quality)
    record = made(encoded)
    view = view_of(data.draw(windows(width, height)))
    assert (core_alone.decode(record, view) == reference(encoded, view)).all()
    assert restore(record) == encoded


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["restart_marker_blocks", "restart_marker_rows"]),
    st.integers(1, 40),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
    st.integers(1, 150),
    st.integers(1, 150),
)
def test_restart_markers_and_tables_of_ones_own(
    kind: str, distance: int, subsampling: int, optimize: bool, width: int, height: int
) -> None:
    options: dict[str, Any] = {kind: distance, "subsampling": subsampling, "optimize": optimize}
    encoded = images.saved(width, height, quality=70, **options)
    record = made(encoded)
    assert restore(record) == encoded
    view = view_of((0, 0, width, height))
    assert (core_alone.decode(record, view) == reference(encoded, view)).all()


# ---- several scans


@settings(max_examples=120, deadline=None)
@given(
    st.data(),
    st.sampled_from([{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"mode": "L"}]),
    st.sampled_from([{}, {"restart_marker_blocks": 5}, {"restart_marker_rows": 1}]),
    st.integers(1, 300),
    st.integers(1, 200),
    st.sampled_from([1, 30, 75, 90, 100]),
)
def test_any_window_of_progressive_files(
    data: st.DataObject, kind: Any, restarts: Any, width: int, height: int, quality: int
) -> None:
    encoded = images.saved(width, height, quality=quality, progressive=True, **kind, **restarts)
    record = made(encoded)
    view = view_of(data.draw(windows(width, height)))
    assert (core_alone.decode(record, view) == reference(encoded, view)).all()
    assert restore(record) == encoded


@pytest.mark.parametrize("width", [2000, 8])
def test_runs_of_blocks(width: int) -> None:
    """Of many blocks that have ended, and of more bits behind them than an encoder keeps."""
    pixels = np.full((1200, width, 3), 77, np.uint8)
    pixels[-64:, :8] = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (64, 8, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=100, progressive=True, subsampling=0)
    encoded, view = buffer.getvalue(), view_of((0, 1100, 8, 1200))
    record = made(encoded)
    assert restore(record) == encoded
    assert (core_alone.decode(record, view) == reference(encoded, view)).all()


def test_scans_that_are_not_progressive() -> None:
    encoded, view = (GOLDEN / "multi-scan.jpg").read_bytes(), view_of((37, 20, 64, 51))
    record = made(encoded)
    assert restore(record) == encoded
    assert (core_alone.decode(record, view) == reference(encoded, view)).all()


def test_everything_around_scans_is_kept() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = images.saved(90, 70, progressive=True, exif=exif.tobytes(), comment=b"words", icc_profile=b"profile")
    encoded += b"something behind"
    record = made(encoded)
    assert restore(record) == encoded
    assert record[31] == 1
    head = record[HEAD.size : HEAD.size + HEAD.unpack_from(record)[4]]
    assert b"words" not in head  # but in the tail


def test_files_whose_scans_are_coded_otherwise_are_no_records() -> None:
    """A run of blocks that ends early, which other encoders may write; coefficients that are left out."""
    encoded = images.saved(96, 80, progressive=True)
    second = encoded.index(b"\xff\xda", encoded.index(b"\xff\xda") + 2)
    assert unpack(encoded[:second] + b"\xff\xd9") is None
    for name in ("arithmetic", "arithmetic-progressive"):
        assert unpack((GOLDEN / f"{name}.jpg").read_bytes()) is None


def noisy(width: int, height: int, quality: int) -> bytes:
    """Large coefficients everywhere."""
    pixels = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (height, width, 3))
    return images.encoded(pixels, quality=quality, sampling="4:4:4")


@pytest.mark.parametrize("quality", [1, 50, 100])
def test_extremes(quality: int) -> None:
    encoded = noisy(70, 50, quality)
    record, view = made(encoded), view_of((3, 5, 66, 49))
    assert (core_alone.decode(record, view) == reference(encoded, view)).all()
    assert restore(record) == encoded


@pytest.mark.parametrize("resize", [(10, 9), (60, 50)])
@pytest.mark.parametrize("fidelity", ["exact", "fast"])
def test_resized_windows(resize: tuple[int, int], fidelity: str) -> None:
    encoded = images.jpeg(300, 200)
    view = view_of((20, 30, 290, 190), resize)
    of_file, of_record = (core_alone.decode(data, view, fidelity=fidelity) for data in (encoded, made(encoded)))
    assert (of_file == of_record).all()


def test_bytes_around_the_image_are_kept() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = images.saved(90, 70, exif=exif.tobytes(), comment=b"words", icc_profile=b"profile") + b"something behind"
    assert restore(made(encoded)) == encoded


def test_files_that_fill_bytes_with_zeros() -> None:
    """The last byte before the end marker holds bits that mean nothing; most files have ones there."""
    others = 0
    for seed in range(30):
        encoded = bytearray(images.jpeg(40, 30, seed=seed))
        last = encoded[-3]
        for ones in range(1, (last ^ (last + 1)).bit_length()):  # at its end
            encoded[-3] = last & ~((1 << ones) - 1)
            if (record := unpack(bytes(encoded))) is not None:  # else some of them do mean something
                others += 1
                assert restore(record) == encoded
    assert others > 5


def test_a_last_byte_that_is_stuffed() -> None:
    stuffed = [images.jpeg(6 + seed, 7, seed=seed, sampling="4:4:4", quality=100) for seed in range(100)]
    stuffed = [data for data in stuffed if data.endswith(b"\xff\x00\xff\xd9")]
    assert stuffed
    assert all(restore(made(data)) == data for data in stuffed)


@pytest.mark.parametrize("name", images.no_whole_jpegs())
def test_what_is_no_record(name: str) -> None:
    data = images.no_whole_jpegs()[name]
    assert unpack(data) is None
    assert restore(data) is None


def test_a_record_of_a_record() -> None:
    assert unpack(made(images.jpeg(20, 20))) is None


# ---- as docs/format.md describes it


class Bits:
    """Numbers of some bits, from the lowest of each byte on."""

    def __init__(self, data: bytes) -> None:
        self.held = int.from_bytes(data, "little")

    def take(self, width: int) -> int:
        number = self.held & ((1 << width) - 1)
        self.held >>= width
        return number


def zigzag(number: int) -> int:
    return number // 2 if number % 2 == 0 else -(number + 1) // 2


def tile_of(data: bytes, components: list[int], blocks: int) -> list[np.ndarray]:
    """The blocks of a tile, int16 (8, 8) each; components: of the blocks of an MCU."""
    count, at = max(components) + 1, 0
    last, widths = [], []
    for _ in range(count):
        first, width = struct.unpack_from("<hB", data, at)
        last.append(first)
        widths.append(width)
        at += 3
    groups = data[at : at + blocks]
    at += blocks
    of_block = [components[number % len(components)] for number in range(blocks)]
    size = (sum(widths[component] for component in of_block) + 7) // 8
    differences = Bits(data[at : at + size])
    at += size
    there = sum(each.bit_count() for each in groups)
    classes = Bits(data[at : at + (3 * there + 7) // 8])
    at += (3 * there + 7) // 8
    masks = iter(data[at : at + there])
    values = Bits(data[at + there :])
    found = []
    for number, component in enumerate(of_block):
        block = np.zeros((8, 8), np.int16)
        last[component] += zigzag(differences.take(widths[component]))
        for group in range(8):
            if groups[number] >> group & 1:
                width, mask = WIDTHS[classes.take(3)], next(masks)
                for place in range(8):
                    if mask >> place & 1:
                        stored = values.take(width)
                        value = stored - (1 << width) if stored >> (width - 1) else stored + 1
                        block[2 * (group % 4) + place // 4, 4 * (group // 4) + place % 4] = value
        block[0, 0] = last[component]
        found.append(block)
    assert values.held == 0
    return found


def coefficients_of(record: bytes, columns: int, rows: int, components: list[int]) -> list[list[np.ndarray]]:
    """The blocks of every MCU."""
    magic, crc, jpeg_bytes, jpeg_crc, head, tail, tile, _, kind = HEAD.unpack_from(record)
    assert (magic, kind, record[-16:]) == (b"FDCOEF01", 0, bytes(16))
    assert crc == google_crc32c.value(record[12:])
    restored = restore(record)
    assert restored is not None
    assert (jpeg_bytes, jpeg_crc) == (len(restored), google_crc32c.value(restored))
    assert restored[:head] == record[HEAD.size : HEAD.size + head]
    assert restored[len(restored) - tail :] == record[HEAD.size + head : HEAD.size + head + tail]
    at = HEAD.size + head + tail
    per_row = -(-columns // tile)
    begins = np.frombuffer(record, "<u4", rows * per_row + 1, at)
    tiles = record[at + begins.nbytes : -16]
    assert begins[-1] == len(tiles)
    found = []
    for number, (begin, end) in enumerate(itertools.pairwise(begins)):
        mcus = min(tile, columns - number % per_row * tile)
        blocks = tile_of(tiles[begin:end], components, mcus * len(components))
        found += [blocks[i : i + len(components)] for i in range(0, len(blocks), len(components))]
    return found


def idct(coefficients: np.ndarray) -> np.ndarray:
    """In floating point; ITU T.81, A.3.3."""
    n = np.arange(8)
    basis = np.cos((2 * n[:, None] + 1) * n * np.pi / 16) * np.where(n == 0, np.sqrt(1 / 8), 0.5)
    return basis @ coefficients @ basis.T  # type: ignore[no-any-return]


@pytest.mark.parametrize(("sampling", "width", "height"), [("grey", 150, 41), ("4:4:4", 100, 40), ("4:2:0", 200, 70)])
def test_a_record_is_as_documented(sampling: str, width: int, height: int) -> None:
    encoded = images.jpeg(width, height, sampling=sampling, quality=95)
    side = 16 if sampling == "4:2:0" else 8
    components = {"grey": [0], "4:4:4": [0, 1, 2], "4:2:0": [0, 0, 0, 0, 1, 2]}[sampling]
    columns, rows = -(-width // side), -(-height // side)
    mcus = coefficients_of(made(encoded), columns, rows, components)
    assert len(mcus) == columns * rows
    with Image.open(io.BytesIO(encoded)) as image:
        image.draft("L", image.size)
        expected = np.asarray(image.convert("L"))
        zigzagged = image.quantization[0]  # type: ignore[attr-defined]
    table = np.array(zigzagged, float).reshape(8, 8)
    luma = np.zeros((rows * side, columns * side))
    for number, blocks in enumerate(mcus):
        top, left = number // columns * side, number % columns * side
        for place, block in enumerate(blocks[: components.count(0)]):
            y, x = top + place // 2 * 8, left + place % 2 * 8
            luma[y : y + 8, x : x + 8] = idct(block * table) + 128
    assert abs(np.clip(luma, 0, 255)[:height, :width] - expected).max() <= 1


# ---- damage


def test_every_flipped_bit_is_found() -> None:
    record, view = made(images.jpeg(70, 50)), view_of((20, 18, 60, 45))
    for at in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[at // 8] ^= 1 << at % 8
        assert status_of(bytes(damaged), view) != Status.OK, at
        if at % 50 == 0:
            assert restore(bytes(damaged)) is None


@pytest.mark.parametrize("kept", [0, 7, 8, 31, 32, 100, 700, -17, -1])
def test_what_is_cut_is_refused(kept: int) -> None:
    record = made(images.jpeg(70, 50))
    assert status_of(record[:kept], view_of((20, 18, 60, 45))) != Status.OK
    assert restore(record[:kept]) is None


def test_a_small_record_of_a_huge_image_is_refused_before_memory_is_taken() -> None:
    record = bytearray(made(images.saved(64, 64, progressive=True, subsampling=0)))
    frame = record.index(b"\xff\xc1")
    record[frame + 5 : frame + 9] = struct.pack(">HH", 2720, 65500)
    head_and_tail = sum(HEAD.unpack_from(record)[4:6])
    for tile, tiles in ((16, 340 * 4094), (65535, 340)):
        huge = record[: HEAD.size + head_and_tail] + bytes(4 * (tiles + 1)) + bytes(16)
        huge[28:30] = tile.to_bytes(2, "little")
        huge[8:12] = google_crc32c.value(bytes(huge[12:])).to_bytes(4, "little")
        assert restore(bytes(huge)) is None
        assert status_of(bytes(huge), view_of((0, 0, 8, 8))) == Status.CORRUPT


def test_a_head_with_data_of_its_own_is_refused() -> None:
    """Its file would begin with other blocks than the record has."""
    record = bytearray(made(images.jpeg(60, 50)))
    head = HEAD.unpack_from(record)[4]
    record[HEAD.size + head : HEAD.size + head] = b"\x12\x34"
    record[20:24] = (head + 2).to_bytes(4, "little")
    record[8:12] = google_crc32c.value(bytes(record[12:])).to_bytes(4, "little")
    assert restore(bytes(record)) is None
    assert status_of(bytes(record), view_of((0, 0, 8, 8))) == Status.CORRUPT


@settings(max_examples=600, deadline=None)
@given(st.data(), st.sampled_from(["4:2:0", "4:4:4", "grey", "progressive"]))
def test_made_up_records_are_never_read_outside_of_their_bytes(data: st.DataObject, kind: str) -> None:
    """With checksums that are right; a sanitizer watches when the suite runs under one."""
    progressive = kind == "progressive"
    encoded = images.saved(60, 50, progressive=True) if progressive else images.jpeg(60, 50, sampling=kind)
    record = bytearray(made(encoded))
    for _ in range(data.draw(st.integers(1, 4))):
        record[data.draw(st.integers(12, len(record) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del record[-data.draw(st.integers(1, 40)) :]
    record[8:12] = google_crc32c.value(bytes(record[12:])).to_bytes(4, "little")
    status = status_of(bytes(record), view_of(data.draw(windows(60, 50))))
    assert status in (Status.OK, Status.CORRUPT, Status.UNSUPPORTED, Status.LIMIT, Status.BAD_REQUEST)
    restore(bytes(record))


# ---- made while a file is decoded


def test_records_made_beside_the_pixels_are_the_same(tmp_path: Path) -> None:
    files = [images.jpeg(90, 70), images.saved(kind="PNG"), images.jpeg(64, 64, seed=2), images.jpeg(50, 40)[:-300]]
    paths = []
    for number, data in enumerate(files):
        paths.append(str(tmp_path / str(number)))
        Path(paths[-1]).write_bytes(data)
    out = np.zeros((4, 24, 24, 3), np.uint8)
    recipes = core_alone.of_files(paths, out)
    loaded = core_alone.fill(replace(recipes, kept=np.array([True, True, False, True])))
    assert loaded.statuses.tolist()[:3] == [Status.OK] * 3
    assert loaded.records == (made(files[0]), b"", None, None)
    assert core_alone.fill(recipes).records == ()


def test_what_pillow_refuses_for_what_follows_the_scan_is_no_record() -> None:
    core, order = resample.exact_core()
    for marker in (0xD8, 0x7E, 0xFE):
        damaged = images.saved(60, 50)[:-2] + bytes((0xFF, marker)) + b"\xff\xd9"
        assert core.unpack(damaged, options=resample.options_for(order, "exact")) is None


def test_parts_of_files_and_images_in_memory_give_records_with_their_pixels(tmp_path: Path) -> None:
    """Three rows: a part of a file, seen twice, the same image in memory, and a part with another checksum."""
    core, order = resample.exact_core()
    options, data = resample.options_for(order, "exact"), images.jpeg(60, 40, seed=3)
    path, view = tmp_path / "two.bin", View.whole(60, 40)
    path.write_bytes(b"before" + data + b"after")
    rows, crc = 4, google_crc32c.value(data)
    out = np.zeros((rows, 40, 60, 3), np.uint8)
    recipes = Recipes(
        paths=[str(path), str(path), "", str(path)],
        offsets=np.array([6, 6, 0, 6]),
        lengths=np.array([len(data), len(data), -1, len(data)]),
        crcs=np.array([crc, crc, -1, 1]),
        data=[None, None, data, None],
        same_as=np.array([0, 0, 2, 3]),
        windows=windows_of([view] * rows),
        format=Format(),
        out=addresses(out.ctypes.data, out.strides[0], rows),
        kept=np.array([True, False, True, True]),
    )
    results = core.fill(recipes, options=options)
    assert results.statuses.tolist() == [Status.OK, Status.OK, Status.OK, Status.CORRUPT]
    assert results.reason(3) == "wrong checksum"
    assert all(np.array_equal(out[row], np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))) for row in range(3))
    made_of_file, other_view, made_of_bytes, of_damaged = results.records
    assert made_of_file == made_of_bytes == unpack(data)
    assert (other_view, of_damaged) == (None, None)
