"""Shards of unpacked JPEGs: the same batches from every backend, checked like others, and the files again."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import google_crc32c
import images
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from folders import SHARD_BYTES, flip

from fastdata import DataLoader, ImageFolder, OptionError, ShardDataset
from fastdata.cli import main
from fastdata.errors import ConversionError
from fastdata.loaders import pillow, unpacked
from fastdata.native import NativeMissing
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.conversion.restore import restore_folder

CROP = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])
OPTIONS = ConvertOptions(shard_bytes=SHARD_BYTES, recoding=Recoding(unpacked=True))


@pytest.fixture(scope="module")
def mixed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image folder, with files that stay as they are among the others."""
    copy = tmp_path_factory.mktemp("mixed") / "folder"
    shutil.copytree(folder, copy)
    (copy / "apple" / "progressive.jpg").write_bytes(images.saved(90, 70, progressive=True))
    (copy / "bear" / "picture.png").write_bytes(images.saved(80, 60, kind="PNG"))
    (copy / "cup" / "grey.jpg").write_bytes(images.saved(50, 40, mode="L"))
    return copy


@pytest.fixture(scope="module")
def shards(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    destination = tmp_path_factory.mktemp("unpacked") / "set"
    convert(str(mixed), destination, OPTIONS)
    return destination


def batches(dataset: Any, **options: Any) -> list[torch.Tensor]:
    return [images for images, _ in DataLoader(dataset, 7, seed=5, **options)]


def extensions(shards: Path) -> list[str]:
    names = []
    for path in sorted(shards.glob("*.tar")):
        with tarfile.open(path) as archive:
            names += archive.getnames()
    return [name.rpartition(".")[2] for name in names if not name.endswith(".cls")]


def test_what_is_stored(mixed: Path, shards: Path) -> None:
    found = extensions(shards)
    assert (found.count("fdc"), found.count("jpg"), found.count("png")) == (41, 0, 1)
    dataset, files = ShardDataset(shards), ImageFolder(mixed)
    assert [dataset.read_encoded(index) for index in range(len(dataset))] == [
        files.read_encoded(index) for index in range(len(files))
    ]
    with_sizes = [list(pillow.size_of(dataset.read_encoded(index))) for index in range(len(dataset))]
    assert dataset.sizes_px.tolist() == with_sizes


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", ["native", "pil", "turbojpeg"])
def test_batches_are_those_of_the_files(mixed: Path, shards: Path, backend: str, workers: int) -> None:
    expected = batches(ImageFolder(mixed, CROP), backend="native")
    found = batches(ShardDataset(shards, CROP), backend=backend, num_workers=workers)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("backend", ["opencv", "dali"])
def test_batches_are_nearly_those_of_the_files(mixed: Path, shards: Path, backend: str) -> None:
    of_files = batches(ImageFolder(mixed, CROP), backend=backend)
    found = batches(ShardDataset(shards, CROP), backend=backend)
    assert all(torch.equal(*pair) for pair in zip(found, of_files, strict=True))


@pytest.mark.parametrize(
    "steps",
    [
        [v1.RandomResizedCrop(24), v1.Lambda(lambda image: image.rotate(30)), v1.ToTensor()],
        [v1.Resize(50), v1.RandomCrop(40), v1.Resize(20), v1.RandomCrop(16), v1.ToTensor()],
        [v1.RandomRotation(20, expand=True), v1.CenterCrop(20), v1.ToTensor()],
    ],
    ids=["a step that is not fused", "two resizes", "before the crop"],
)
@pytest.mark.parametrize("backend", ["native", "pil"])
def test_other_plans(mixed: Path, shards: Path, steps: list[Any], backend: str) -> None:
    made = []
    for dataset in (ImageFolder(mixed, v1.Compose(steps)), ShardDataset(shards, v1.Compose(steps))):
        torch.manual_seed(3)
        made.append(batches(dataset, backend=backend))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


def test_torchs_own_loader_reads_them(mixed: Path, shards: Path) -> None:
    size = v1.Compose([v1.Resize((20, 20)), v1.ToTensor()])
    datasets = ShardDataset(shards, size), ImageFolder(mixed, size)
    found, expected = (list(torch.utils.data.DataLoader(dataset, 7)) for dataset in datasets)
    assert all(torch.equal(a[0], b[0]) and a[1].tolist() == b[1].tolist() for a, b in zip(found, expected, strict=True))


def test_remote_shards(shards: Path, tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    system.put(f"{shards}/", "/unpacked/set/", recursive=True)
    try:
        remote = ShardDataset("memory://unpacked/set", CROP, cache_dir=tmp_path)
        found = batches(remote, backend="native", num_workers=2)
    finally:
        system.rm("/unpacked", recursive=True)
    assert all(torch.equal(*pair) for pair in zip(found, batches(ShardDataset(shards, CROP)), strict=True))


def test_explain_says_so(shards: Path) -> None:
    loader = DataLoader(ShardDataset(shards, CROP), 4, backend="native")
    next(iter(loader))
    assert "not needed: JPEGs are unpacked" in loader.explain()


# ---- the commands


def test_the_commands(mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, again = tmp_path / "made", tmp_path / "again"
    assert main(["convert", str(mixed), str(made), "--unpacked", "--workers", "2", "--verify"]) == 0
    assert "41 JPEGs unpacked; 1 image stored as they are" in capsys.readouterr().out
    assert main(["verify", str(made), "--decode"]) == 0
    assert main(["index", str(made)]) == 0  # from the tar files alone
    assert main(["verify", str(made), "--decode"]) == 0
    assert main(["inspect", str(made), "--sheet", str(tmp_path / "sheet.png")]) == 0
    assert "unpacked=True" in capsys.readouterr().out
    assert main(["restore", str(made), str(again), "--workers", "2"]) == 0
    assert "again: 42 files" in capsys.readouterr().out
    files = sorted(path.relative_to(mixed) for path in mixed.rglob("*.*"))
    assert sorted(path.relative_to(again) for path in again.rglob("*.*")) == files
    assert all((again / name).read_bytes() == (mixed / name).read_bytes() for name in files)
    assert main(["restore", str(made), str(again)]) == 1
    assert "is not an empty folder" in capsys.readouterr().err
    (again / files[7]).unlink()
    assert main(["restore", str(made), str(again), "--resume"]) == 0
    assert (again / files[7]).read_bytes() == (mixed / files[7]).read_bytes()
    (again / files[7]).write_bytes(b"something else")
    assert main(["restore", str(made), str(again), "--resume"]) == 1
    assert "is there and has other bytes" in capsys.readouterr().err


def test_splits_are_restored_into_folders_of_their_own(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(folder, tmp_path / "source" / split)
    assert main(["convert", str(tmp_path / "source"), str(tmp_path / "made"), "--unpacked"]) == 0
    assert main(["restore", str(tmp_path / "made"), str(tmp_path / "again")]) == 0
    for path in (tmp_path / "source").rglob("*.jpg"):
        assert (tmp_path / "again" / path.relative_to(tmp_path / "source")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "recoding",
    [
        Recoding(),
        Recoding(lossless=True),
        Recoding(max_side=100),
        Recoding(max_side=100, unpacked=True),
        Recoding(raw=64),
    ],
    ids=str,
)
def test_shards_of_unpacked_jpegs_are_converted_like_others(
    mixed: Path, shards: Path, recoding: Recoding, tmp_path: Path
) -> None:
    options = ConvertOptions(recoding=recoding)
    convert(str(shards), tmp_path / "from shards", options)
    convert(str(mixed), tmp_path / "from files", options)
    ours, theirs = ShardDataset(tmp_path / "from shards"), ShardDataset(tmp_path / "from files")
    assert len(ours) == len(theirs)
    assert all(ours.read_encoded(index) == theirs.read_encoded(index) for index in range(len(ours)))
    if not recoding.keeps_bytes:
        assert extensions(tmp_path / "from shards") == extensions(tmp_path / "from files")


def test_the_result_does_not_depend_on_the_number_of_workers(mixed: Path, shards: Path, tmp_path: Path) -> None:
    convert(str(mixed), tmp_path / "made", OPTIONS, workers=3)
    for path in shards.iterdir():
        assert (tmp_path / "made" / path.name).read_bytes() == path.read_bytes()


# ---- what goes wrong


def test_a_damaged_record_is_named(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = Path(shutil.copytree(shards, tmp_path / "own"))
    dataset = ShardDataset(own)
    path, offset, length, _ = dataset.file_range(3)
    flip(Path(path), offset + length // 2)
    with pytest.raises(OSError, match=r"damaged image at byte \d+: expected checksum"):
        dataset.read_encoded(3)
    with pytest.raises(OSError, match=r"sample 3 \(.*shard-\d+\.tar at byte .*damaged image at byte"):
        batches(ShardDataset(own, CROP), backend="native")
    seen = batches(ShardDataset(own, CROP), backend="native", on_error="skip")
    assert sum(map(len, seen)) == len(dataset) - 1
    assert main(["restore", str(own), str(tmp_path / "files")]) == 1
    assert "damaged image" in capsys.readouterr().err
    assert main(["restore", str(own), str(tmp_path / "files"), "--resume", "--on-error", "skip"]) == 0
    out = capsys.readouterr().out
    assert f"skipped {list(dataset.keys())[3]}: " in out
    assert f"files: {len(dataset) - 1} files" in out


def test_a_record_that_was_made_wrong_is_an_error(shards: Path) -> None:
    """Its own checksum is right, and the shard's; what it says of the file is not."""
    record = bytearray(next(data for data in map(raw_of(shards), range(40)) if unpacked.is_unpacked(data)))
    record[16] ^= 1  # of the file's checksum
    record[8:12] = google_crc32c.value(bytes(record[12:])).to_bytes(4, "little")
    with pytest.raises(OSError, match=r"damaged record of an unpacked JPEG, of \d+ bytes"):
        unpacked.as_file(bytes(record))


def raw_of(shards: Path) -> Any:
    dataset = ShardDataset(shards)

    def raw(index: int) -> bytes:
        path, offset, length, _ = dataset.file_range(index)
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)

    return raw


def write_tar(path: Path, name: str) -> None:
    data = images.jpeg(30, 20)
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))


def test_keys_that_lead_out_of_the_destination(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    write_tar(tmp_path / "own" / "a.tar", "../outside.jpg")
    assert main(["index", str(tmp_path / "own")]) == 0
    with pytest.raises(ConversionError, match="leads out of"):
        restore_folder(ShardDataset(tmp_path / "own"), tmp_path / "there")
    assert not (tmp_path / "outside.jpg").exists()


def test_equal_keys_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for name in "ab":
        write_tar(tmp_path / "own" / f"{name}.tar", "000000.jpg")
    assert main(["index", str(tmp_path / "own")]) == 0
    with pytest.raises(ConversionError, match=r"two images would be .*000000\.jpg"):
        restore_folder(ShardDataset(tmp_path / "own"), tmp_path / "there")


def test_names_as_long_as_they_may_be(tmp_path: Path) -> None:
    (tmp_path / "source" / "a").mkdir(parents=True)
    name = "a" * 248 + ".jpg"
    (tmp_path / "source" / "a" / name).write_bytes(images.jpeg(30, 20))
    convert(str(tmp_path / "source"), tmp_path / "own", OPTIONS)
    restore_folder(ShardDataset(tmp_path / "own"), tmp_path / "there")
    assert (tmp_path / "there" / "a" / name).read_bytes() == images.jpeg(30, 20)


def test_keys_that_are_one_file_name_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `IMG` and `img` are on many systems: here every file is said to be there already."""
    (tmp_path / "own").mkdir()
    write_tar(tmp_path / "own" / "a.tar", "000000.jpg")
    assert main(["index", str(tmp_path / "own")]) == 0
    monkeypatch.setattr(Path, "exists", lambda path: path.suffix == ".jpg" or os.path.exists(path))
    with pytest.raises(ConversionError, match="has a name that is the same in this file system"):
        restore_folder(ShardDataset(tmp_path / "own"), tmp_path / "there")
    assert not list((tmp_path / "there").rglob("*.partial"))


def test_without_the_native_core(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise NativeMissing("it was not built")

    monkeypatch.setattr(unpacked, "exact_core", missing)
    with pytest.raises(RuntimeError, match=r"unpacked JPEGs need the native backend, .*: it was not built"):
        ShardDataset(shards).read_encoded(0)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match=r"raw=.* and unpacked=True cannot be combined"):
        Recoding(raw=64, unpacked=True)
    assert main(["restore", str(tmp_path / "nothing"), str(tmp_path / "there")]) == 1
    assert "no such folder" in capsys.readouterr().err
