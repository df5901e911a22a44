"""Two adjacent members of a tar file with one name: neither command guesses which of them is meant."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import images
import pytest

from fastdata.cli.main import main

NAMES = ["a.jpg", "a.cls", "b.jpg", "b.jpg", "b.cls", "c.jpg"]


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "some.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as archive:
        for number, name in enumerate(NAMES):
            data = b"1" if name.endswith("cls") else images.jpeg(40, 30, seed=number)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("command", ["index", "convert"])
def test_index_and_convert_name_both_offsets(tar: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(tar) as archive:
        first, second = (member.offset_data for member in archive.getmembers() if member.name == "b.jpg")
    given = [str(tar.parent)] if command == "index" else [str(tar), str(tar.parent.parent / "out")]
    assert main([command, *given]) != 0
    told = capsys.readouterr().err
    assert f"two members are called b.jpg, with data at bytes {first} and {second}" in told
    assert str(tar) in told


def test_parts_of_one_name_in_different_samples_are_accepted(tar: Path) -> None:
    with tarfile.open(tar, "w") as archive:
        for name in ("x/a.jpg", "y/a.jpg"):
            data = images.jpeg(40, 30)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    assert main(["index", str(tar.parent)]) == 0
