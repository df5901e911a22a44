"""Index, manifest and tar header: golden bytes, and nothing damaged or malicious is believed."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import GOLDEN

from fastdata import ShardError
from fastdata.shards.format import RECORD, Manifest, ShardIndex, ShardInfo, crc32c
from fastdata.shards.tar import END_OF_ARCHIVE, members, padding, split_name, tar_header


def index() -> ShardIndex:
    records = np.array([(512, 4, 7, 100, 30, 20, 0xDEADBEEF), (1536, 6, -1, 50, 9, 8, 1)], RECORD)
    return ShardIndex(records, b"a/bcxy", 10240, 0x12345678)


def manifest() -> Manifest:
    shard = ShardInfo(name="shard-000000.tar", samples=2, tar_bytes=10240, tar_crc32c=1, index_crc32c=2)
    return Manifest(classes=["ä", "b"], shards=[shard], options={"raw": None}, skipped=[("k", "why")], source={"x": 1})


def test_crc32c_gives_the_published_answers() -> None:
    """RFC 3720, B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"world", crc32c(b"hello ")) == crc32c(b"hello world")


def test_the_bytes_of_an_index_are_frozen() -> None:
    assert index().to_bytes().hex() == (GOLDEN / "index.hex").read_text().strip()


def test_an_index_comes_back() -> None:
    back = ShardIndex.from_bytes(index().to_bytes(), "a.idx")
    assert (back.records == index().records).all()
    assert [back.key(0), back.key(1)] == ["a/bc", "xy"]
    assert (back.tar_bytes, back.tar_crc32c) == (10240, 0x12345678)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(index().to_bytes()) - 1), st.integers(1, 255))
def test_any_changed_byte_of_an_index_is_found(at: int, change: int) -> None:
    data = bytearray(index().to_bytes())
    data[at] ^= change
    with pytest.raises(ShardError, match=r"a\.idx"):
        ShardIndex.from_bytes(bytes(data), "a.idx")


@given(st.integers(0, len(index().to_bytes()) - 1))
def test_an_index_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ShardError):
        ShardIndex.from_bytes(index().to_bytes()[:length], "a.idx")


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_refused_as_an_index(data: bytes) -> None:
    with pytest.raises(ShardError):
        ShardIndex.from_bytes(data, "a.idx")


@pytest.mark.parametrize(
    "record",
    [
        (10000, 4, 0, 300, 1, 1, 0),  # ends behind the tar file
        (512, 7, 0, 100, 1, 1, 0),  # a key behind the keys
        ((1 << 64) - 50, 4, 0, 100, 1, 1, 0),  # offset + size wraps
    ],
)
def test_a_record_with_right_checksums_that_points_elsewhere_is_refused(record: tuple[int, ...]) -> None:
    wrong = ShardIndex(np.array([record], RECORD), b"a/bcxy", 10240, 0)
    with pytest.raises(ShardError, match="record 0 is invalid"):
        ShardIndex.from_bytes(wrong.to_bytes(), "a.idx")


def test_errors_name_what_was_expected_and_found() -> None:
    data = bytearray(index().to_bytes())
    data[70] ^= 1
    with pytest.raises(ShardError, match=r"a\.idx: damaged index at byte 64: expected [0-9a-f]{8}, found [0-9a-f]{8}"):
        ShardIndex.from_bytes(bytes(data), "a.idx")
    with pytest.raises(ShardError, match="unsupported version at byte 8: expected 1 or 2, found 9"):
        ShardIndex.from_bytes(data[:8] + b"\x09" + data[9:], "a.idx")


def test_a_manifest_comes_back() -> None:
    assert Manifest.from_text(manifest().to_text(), "m") == manifest()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_changed_character_of_a_manifest_is_found(data: st.DataObject) -> None:
    text = manifest().to_text()
    at = data.draw(st.integers(0, len(text) - 2))
    changed = text[:at] + data.draw(st.characters(codec="utf-8")) + text[at + 1 :]
    if json.loads(text) != _parsed(changed):
        with pytest.raises(ShardError):
            Manifest.from_text(changed, "m")


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"format": "fastdata-shards"}', "\x00", '{"format": 1}'])
def test_anything_else_is_no_manifest(content: str) -> None:
    with pytest.raises(ShardError):
        Manifest.from_text(content, "m")


@pytest.mark.parametrize("name", ["../secret.tar", "/etc/passwd", "a/b.tar"])
def test_a_manifest_cannot_name_files_elsewhere(name: str) -> None:
    shard = ShardInfo(name=name, samples=0, tar_bytes=0, tar_crc32c=0, index_crc32c=0)
    with pytest.raises(ShardError, match="outside of its folder"):
        Manifest.from_text(Manifest(classes=None, shards=[shard]).to_text(), "m")


# ---- tar


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1, max_size=150), st.integers(0, 3000))
def test_headers_are_what_the_standard_library_reads(name: str, size: int) -> None:
    data = bytes(size)
    archive = tar_header(name, size) + data + bytes(padding(size)) + END_OF_ARCHIVE
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        (info,) = tar.getmembers()
        assert (info.name, info.size, info.mode, info.mtime, info.uid) == (name, size, 0o644, 0, 0)


def archive_of(*names: str) -> bytes:
    return b"".join(tar_header(name, 700) + bytes(700 + padding(700)) for name in names) + END_OF_ARCHIVE


def test_members_are_found() -> None:
    found = list(members(io.BytesIO(archive_of("a.jpg", "x" * 200 + ".jpg", "b.cls")), "a.tar"))
    assert [(member.name, member.size) for member in found] == [
        ("a.jpg", 700),
        ("x" * 200 + ".jpg", 700),
        ("b.cls", 700),
    ]
    assert found[0].offset == 512


@given(st.integers(1, len(archive_of("a.jpg", "b.jpg")) - len(END_OF_ARCHIVE) // 2 - 1))
def test_a_tar_file_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ShardError):
        list(members(io.BytesIO(archive_of("a.jpg", "b.jpg")[:length]), "a.tar"))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 511), st.integers(1, 255))
def test_a_damaged_header_is_refused_or_harmless(at: int, change: int) -> None:
    data = bytearray(archive_of("a.jpg", "b.jpg"))
    data[at] ^= change
    try:
        for member in members(io.BytesIO(bytes(data)), "a.tar"):
            assert 0 <= member.offset <= member.offset + member.size <= len(data)
    except ShardError:
        pass


def test_a_header_with_a_negative_size_ends() -> None:
    """The standard library has gone round in circles for one."""
    header = bytearray(tar_header("a.jpg", 0))
    header[124:136] = b"\xff" * 11 + b"\x00"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(ShardError):
        list(members(io.BytesIO(bytes(header) + archive_of("b.jpg")), "a.tar"))


class Asked(io.BytesIO):
    """Notes the most that was asked for at once."""

    most = 0

    def read(self, size: int | None = -1) -> bytes:
        self.most = max(self.most, size or 0)
        return super().read(size)


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_header_that_claims_gigabytes_takes_no_memory(kind: bytes) -> None:
    header = bytearray(tar_header("a.jpg", 8**11 - 1))
    header[156:157] = kind
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    file = Asked(bytes(header) + archive_of("b.jpg"))
    with pytest.raises(ShardError):
        list(members(file, "a.tar"))
    assert file.most <= len(file.getvalue())


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=2000))
def test_any_bytes_are_refused_as_a_tar_file(data: bytes) -> None:
    with pytest.raises(ShardError):
        list(members(io.BytesIO(data + b"\1"), "a.tar"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("d.ir/a.seg.PNG", ("d.ir/a", "seg.png")),
        ("a", ("a", "")),
        (".hidden", (".hidden", "")),
    ],
)
def test_names_are_cut_as_webdataset_cuts_them(name: str, expected: tuple[str, str]) -> None:
    assert split_name(name) == expected
