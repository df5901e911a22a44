"""Files that cannot be used are met alike by all commands that read folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import images
import pytest

from fastdata import ImageFolder, ShardDataset
from fastdata.cli import main
from fastdata.cli.problems import problems_in

KINDS = {
    "apple/broken.jpg": "broken symbolic link (to nowhere.jpg)",
    "apple/empty.jpg": "empty file",
    "bear/phone.jpg": "unsupported format HEIC",
    "bear/web.png": "unsupported format AVIF",
    "cup/text.jpg": "not an image",
}


@pytest.fixture
def spoilt(folder: Path, tmp_path: Path) -> Path:
    root = Path(shutil.copytree(folder, tmp_path / "spoilt"))
    (root / "apple" / "broken.jpg").symlink_to("nowhere.jpg")
    (root / "apple" / "empty.jpg").touch()
    (root / "bear" / "phone.jpg").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    (root / "bear" / "web.png").write_bytes(b"\0\0\0\x18ftypavif" + bytes(40))
    (root / "cup" / "text.jpg").write_text("nothing to see")
    return root


def arguments(command: str, root: Path) -> list[str]:
    more = {"convert": [str(root.parent / "made"), "--workers", "1"], "bench": ["--rounds", "1", "--workers", "0"]}
    return [command, str(root), *more.get(command, [])]


@pytest.mark.parametrize("command", ["index", "convert", "explain", "bench"])
def test_all_are_listed_before_the_work_begins(spoilt: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(command, spoilt), "--on-error", "raise"]) == 1
    told = capsys.readouterr().err
    assert f"5 files in {spoilt} cannot be used" in told
    assert all(f"{spoilt}/{name}: {kind}" in told for name, kind in KINDS.items())
    assert not (spoilt.parent / "made").exists()


@pytest.mark.parametrize("command", ["index", "convert", "explain", "bench"])
def test_they_are_left_out_and_counted(spoilt: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(command, spoilt), "--on-error", "skip"]) == 0
    assert "left out 5 files: " in capsys.readouterr().out
    if command == "convert":
        assert len(ShardDataset(spoilt.parent / "made")) == 39


def test_long_lists_end_with_a_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    for number in range(23):
        (tmp_path / "a" / f"{number:02}.jpg").touch()
    assert main(["index", str(tmp_path), "--on-error", "raise"]) == 1
    told = capsys.readouterr().err
    assert told.count("empty file") == 20
    assert "… and 3 more" in told


def test_truncated_images_are_found_by_decoding(folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(folder, tmp_path / "cut"))
    path = root / "bear" / "03.jpg"
    path.write_bytes(images.jpeg(200, 150)[:-900])
    assert problems_in(root) == []
    (problem,) = problems_in(root, decode=True)
    assert (problem.path, problem.kind) == (str(path), "damaged image")
    assert main(["convert", str(root), str(tmp_path / "made"), "--check", "decode", "--on-error", "skip"]) == 0
    assert len(ShardDataset(tmp_path / "made")) == len(ImageFolder(root)) - 1
