"""`fastdata verify` lists every fault; `fastdata inspect` shows what is there."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import images
import numpy as np
import numpy.typing as npt
import pytest
from folders import flip
from PIL import Image

from fastdata import DatasetError, ShardDataset
from fastdata.cli.main import main
from fastdata.loaders.pillow_files import write_sheet
from fastdata.shards import make_index
from fastdata.shards.verify import verify_folder
from fastdata.shards.writer import TarWriter


def faults(folder: Path, **options: object) -> list[str]:
    return [str(fault).removeprefix(f"{folder}/") for fault in verify_folder(folder, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_sound_dataset_has_none(converted: Path, workers: int) -> None:
    assert faults(converted, decode=True, workers=workers) == []


def test_all_faults_are_found_at_once(own: Path) -> None:
    first = ShardDataset(own)
    offset = int(first._offsets[int(first.shard_ends[0])])
    flip(own / "shard-000001.tar", offset + 30)
    flip(own / "shard-000002.idx", 100)
    path = own / "shard-000003.tar"
    path.write_bytes(path.read_bytes()[:-2000])
    os.remove(own / "shard-000004.tar")
    found = faults(own)
    assert [fault.split(":")[0] for fault in found].count("shard-000001.tar") == 1
    assert any(f"shard-000001.tar at byte {offset}: checksum of " in fault for fault in found)
    assert any("shard-000002" in fault and "damaged index" in fault for fault in found)
    assert any("shard-000003.tar" in fault and "cut short" in fault for fault in found)
    assert any("shard-000004.tar: " in fault and "No such file" in fault for fault in found)


def test_a_tar_file_that_was_exchanged_is_found(own: Path) -> None:
    os.replace(own / "shard-000001.tar", own / "shard-000000.tar")
    assert any("checksum of the tar file: expected" in fault for fault in faults(own))


def test_images_that_no_one_can_decode_are_found_on_request(tmp_path: Path) -> None:
    from fastdata.shards.format import Manifest

    with TarWriter(tmp_path, "a.tar") as writer:
        writer.add("good", "jpg", images.jpeg(40, 30), 0, 40, 30)
        writer.add("bad", "jpg", b"\xff\xd8 nothing", 1, 40, 30)
        writer.add("other", "jpg", images.jpeg(40, 30), 5, 41, 30)
        info = writer.finish()
    (tmp_path / "manifest.json").write_text(Manifest(classes=["x", "y"], shards=[info]).to_text())
    assert [fault.partition(": ")[2] for fault in faults(tmp_path)] == ["label 5 is out of range for 2 classes"]
    found = faults(tmp_path, decode=True)
    assert any("cannot be decoded: UnidentifiedImageError" in fault for fault in found)
    assert any("size: expected 41 × 30, found 40 × 30" in fault for fault in found)


def test_the_command_fails_when_there_are_faults(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(own), "--workers", "1"]) == 0
    flip(own / "shard-000001.tar", 3000)
    assert main(["verify", str(own), "--workers", "1"]) == 1
    captured = capsys.readouterr()
    assert "shard-000001.tar at byte" in captured.out
    assert "listed above; copy or convert these shards again" in captured.err


def test_index_does_not_make_damage_official(own: Path) -> None:
    flip(own / "shard-000001.tar", 3000)
    assert main(["index", str(own), "--workers", "1"]) == 1
    assert faults(own) != []
    assert main(["index", str(own), "--workers", "1", "--force"]) == 0
    assert faults(own) == []


@pytest.mark.parametrize("name", ["manifest.json", "shard-000000.idx"])
def test_index_does_not_take_what_cannot_be_read_for_missing(
    own: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read = make_index.read_shard_file

    def failing(path: str | Path) -> bytes:
        if Path(path).name == name:
            raise OSError(errno.EIO, "Input/output error", os.fspath(path))
        return read(path)

    monkeypatch.setattr(make_index, "read_shard_file", failing)
    before = (own / name).read_bytes()
    with pytest.raises(OSError, match="Input/output error"):
        make_index.index_folder(own)
    assert (own / name).read_bytes() == before


def test_without_a_manifest_there_is_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="holds no shards"):
        faults(tmp_path)


def test_inspect_writes_nothing_unasked(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(own.parent.rglob("*"))
    assert main(["inspect", str(own)]) == 0
    assert sorted(own.parent.rglob("*")) == before
    assert "--sheet PNG draws a contact sheet" in capsys.readouterr().out


def test_inspect_draws_a_sheet_for_each_split(own: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(own, tmp_path / "set" / split)
    assert main(["inspect", str(tmp_path / "set"), "--sheet", str(tmp_path / "sheet.png")]) == 0
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["sheet-train.png", "sheet-val.png"]


def test_a_sheet_has_the_names_and_sizes_of_its_images(tmp_path: Path) -> None:
    data = images.jpeg(40, 30)

    def drawn(*shown: tuple[bytes, str]) -> npt.NDArray[np.uint8]:
        write_sheet(shown, tmp_path / "sheet.png")
        with Image.open(tmp_path / "sheet.png") as sheet:
            return np.asarray(sheet)

    apple, pear = drawn((data, "apple")), drawn((data, "pear"))
    differs = np.flatnonzero((apple != pear).any((1, 2)))
    assert differs.size > 0
    assert differs.min() > 120  # below the picture
    smaller = drawn((images.jpeg(40, 31), "apple"))
    assert (apple[-20:] != smaller[-20:]).any()  # the size
    for name in ("x" * 300, "äpfel 苹果", "", "a\nb"):
        assert drawn((data, name), (b"no image", name)).shape == drawn((data, "a"), (data, "b")).shape


def test_inspect_shows_what_is_inside(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(own), "--sheet", str(tmp_path / "sheet.png")]) == 0
    text = capsys.readouterr().out
    assert "39 images" in text
    assert "3 classes, with 13 to 13 images each" in text
    assert "apple" in text
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 900


def test_index_makes_a_dataset_of_tar_files(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in [*own.glob("*.idx"), own / "manifest.json"]:
        path.unlink()
    assert main(["index", str(own), "--workers", "2"]) == 0
    assert "39 images" in capsys.readouterr().out
    assert len(ShardDataset(own)) == 39
