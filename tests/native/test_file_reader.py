"""Files read by the core, many at once: their bytes, or None for what Python must read to say what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import google_crc32c
import images
import numpy as np
import pytest

from fastdata import native
from fastdata.native import FileReader, Options, PassOrder, Pool


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(1)
    paths = [tmp_path / f"{number} ü.bin" for number in range(9)]
    for number, path in enumerate(paths):
        path.write_bytes(rng.bytes(1000 * number))
    return paths


def reader(threads: int = 0, most: int | None = None) -> FileReader:
    core = native.load()
    pool = Pool(core, threads) if threads else None
    return FileReader(core, pool, Options(pass_order=PassOrder.HORIZONTAL_FIRST, max_file_bytes=most))


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_bytes_are_those_of_the_files(files: list[Path], threads: int) -> None:
    ours = reader(threads)
    found, whole, read_s = ours.read(files)
    ours.close(ended=True)
    assert found == [path.read_bytes() for path in files]
    assert found[0] == b""
    assert not any(whole)
    assert read_s > 0


def test_ranges_and_checksums(files: list[Path]) -> None:
    data = files[5].read_bytes()
    crc = google_crc32c.value(data[10:30])
    offsets, lengths = np.array([10, 10, 10, 4990, 4990]), np.array([20, 20, 20, -1, 11])
    found, *_ = reader().read([files[5]] * 5, offsets, lengths, np.array([crc, crc + 1, -1, -1, -1]))
    assert found == [data[10:30], None, data[10:30], data[4990:], None]


def test_what_cannot_be_read_is_none_and_the_others_are_there(files: list[Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    paths = [files[3], tmp_path / "missing", tmp_path, tmp_path / "pipe", files[4]]
    found, *_ = reader(2).read(paths)
    assert [data is None for data in found] == [False, True, True, True, False]
    found, *_ = reader(most=3000).read(files[3:5])
    assert found == [files[3].read_bytes(), None]


def test_columns_of_other_lengths_are_refused(files: list[Path]) -> None:
    with pytest.raises(ValueError, match="a column of shape"):
        reader().read(files, np.zeros(8, np.int64))


def test_a_file_that_becomes_shorter_gives_what_is_left(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are asked for first; between that and reading anything may happen to a file."""
    library, before = native.load().library, files[4].read_bytes()
    called = library.fd_read

    class Library:
        def __getattr__(self, name: str) -> object:
            return getattr(library, name)

        def fd_read(self, *arguments: object) -> None:
            if arguments[-2] is not None:
                os.truncate(files[4], 100)
                files[5].unlink()
            called(*arguments)

    ours = reader()
    monkeypatch.setattr(ours, "_library", Library())
    found, *_ = ours.read(files[3:7])
    assert found == [files[3].read_bytes(), before[:100], None, files[6].read_bytes()]


def test_no_files_at_all() -> None:
    assert reader().read([])[0] == []


def test_jpegs_with_whole_scans_are_told_apart(tmp_path: Path) -> None:
    whole = [images.jpeg(40, 30), images.saved(mode="RGB", kind="JPEG", progressive=True)]
    damaged = [data[:-40] for data in whole] + [
        whole[0].replace(b"\xff\xd9", b"\xff\xc3"),
        b"\xff\xd8\xff",
        whole[0][:200],
    ]
    paths = [tmp_path / f"{number}.jpg" for number in range(7)]
    for path, data in zip(paths, whole + damaged, strict=True):
        path.write_bytes(data)
    _, found, _ = reader(2).read(paths)
    assert found == [True, True] + [False] * 5
