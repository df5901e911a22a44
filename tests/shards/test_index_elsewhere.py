"""Tar files of other programs, in place: read-only, compressed, or in a store, with their indexes in another folder."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from io import BytesIO
from pathlib import Path

import fsspec
import images
import pytest
from folders import flip, tree

from fastdata import DatasetError, ShardDataset, ShardError
from fastdata.cli.main import main
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.make_index import index_elsewhere
from fastdata.shards.verify import verify_folder

COUNT = 12


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Tar files of another program, with captions."""
    folder = tmp_path / "tars"
    folder.mkdir()
    for number in range(3):
        with tarfile.open(folder / f"data-{number:03}.tar", "w") as archive:
            for sample in range(number * 4, number * 4 + 4):
                parts = {
                    "jpg": images.jpeg(40, 30, seed=sample),
                    "txt": f"caption {sample}".encode(),
                    "cls": b"%d" % sample,
                }
                for name, data in parts.items():
                    member = tarfile.TarInfo(f"{sample:04}.{name}")
                    member.size = len(data)
                    archive.addfile(member, BytesIO(data))
    return folder


def check(dataset: ShardDataset) -> None:
    assert [(label, text) for label, text in dataset] == [(number, f"caption {number}") for number in range(COUNT)]
    whole = ShardDataset.__new__(ShardDataset)
    whole.__dict__ = {**dataset.__dict__, "fields": ("image",)}
    assert whole[5][0].size == (40, 30)


@pytest.mark.parametrize("given", ["folder", "pattern", "braces"])
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_written_beside_the_tar_files(tars: Path, tmp_path: Path, given: str, workers: int) -> None:
    before = tree(tars)
    named = {"folder": tars, "pattern": tars / "*.tar", "braces": tars / "data-{000..002}.tar"}[given]
    command = ["index", str(named), "--to", str(tmp_path / "index"), "--workers", str(workers)]
    assert main(command) == 0
    assert tree(tars) == before
    assert sorted(tree(tmp_path / "index")) == [*(f"data-{number:03}.idx" for number in range(3)), "manifest.json"]
    check(ShardDataset(tmp_path / "index", fields=("cls", "txt")))
    assert list(verify_folder(tmp_path / "index", decode=True)) == []
    assert main(["inspect", str(tmp_path / "index")]) == 0
    assert main(command) == 0  # again


def test_a_store_is_indexed_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("memory://nothing/here", "memory://nothing/here/set.csv"):
        with pytest.raises(DatasetError, match="no tar files at memory://nothing/here"):
            index_elsewhere(url, tmp_path / "index")
    assert main(["index", "memory://nothing/here"]) == 1
    assert "nothing is written to stores; name a local folder for its index with --to" in capsys.readouterr().err


def test_damage_that_came_later_is_found(tars: Path, tmp_path: Path) -> None:
    index_elsewhere(str(tars), tmp_path / "index")
    dataset = ShardDataset(tmp_path / "index", fields=("txt",))
    flip(tars / "data-001.tar", next(iter(dataset.members()))["txt"].offset)
    with pytest.raises(ShardError, match=r"data-001\.tar: damaged txt"):
        dataset[4]
    assert any("checksum of 0004.txt" in str(fault) for fault in verify_folder(tmp_path / "index"))
    with open(tars / "data-002.tar", "ab") as file:
        file.write(bytes(512))
    with pytest.raises(ShardError, match="wrong length"):
        ShardDataset(tmp_path / "index")


def test_tar_files_that_are_gone_are_named(tars: Path, tmp_path: Path) -> None:
    index_elsewhere(str(tars), tmp_path / "index")
    shutil.move(tars, tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match=r"data-000\.tar is missing"):
        ShardDataset(tmp_path / "index")


@pytest.mark.parametrize("named", ["memory://foreign/data-{000..002}.tar", "memory://foreign", "memory://foreign/"])
def test_tar_files_in_a_store(tars: Path, tmp_path: Path, named: str) -> None:
    store = fsspec.filesystem("memory")
    for path in tars.glob("*.tar"):
        store.pipe(f"/foreign/{path.name}", path.read_bytes())
    store.pipe("/foreign/deeper/data-009.tar", b"of another dataset")
    index_elsewhere(named, tmp_path / "index")
    assert sorted(tree(tmp_path / "index")) == [*(f"data-{number:03}.idx" for number in range(3)), "manifest.json"]
    check(ShardDataset(tmp_path / "index", fields=("cls", "txt"), cache_dir=tmp_path / "cache"))
    assert list(verify_folder(tmp_path / "index", decode=True)) == []
    store.rm("/foreign", recursive=True)


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz"])
def test_compressed_tar_files_are_refused_with_the_reason(tars: Path, tmp_path: Path, suffix: str) -> None:
    packed = tmp_path / "packed" / f"data{suffix}"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress((tars / "data-000.tar").read_bytes()))
    reason = "is compressed as a whole, so no image in it can be read without all that is before it; unpack"
    with pytest.raises(DatasetError, match=reason):
        ShardDataset(packed)
    with pytest.raises(DatasetError, match=reason):
        index_elsewhere(str(packed), tmp_path / "index")
    with pytest.raises(DatasetError, match=reason):
        convert(str(packed), tmp_path / "out", ConvertOptions())
    with pytest.raises(DatasetError, match=reason):
        ShardDataset(f"memory://foreign/data{suffix}")


def test_what_is_no_place_of_tar_files_is_refused(tars: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no tar files in"):
        index_elsewhere(str(tmp_path / "nothing"), tmp_path / "index")
    with pytest.raises(DatasetError, match=r"no tar files at memory:.*or write their names"):
        index_elsewhere("memory://foreign", tmp_path / "index")
    shutil.copytree(tars, tmp_path / "others")
    with pytest.raises(DatasetError, match="names tar files in 2 places"):
        index_elsewhere(f"{tmp_path}/{{tars,others}}/*.tar", tmp_path / "index")
    index_elsewhere(str(tars), tmp_path / "index")
    with pytest.raises(DatasetError, match="open it as a dataset of its own"):
        ShardDataset([tmp_path / "index", tars / "data-000.tar"])


def test_tar_files_in_a_store_are_converted(tars: Path, tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    for path in tars.glob("*.tar"):
        store.pipe(f"/foreign/{path.name}", path.read_bytes())
    options = ConvertOptions(shard_bytes=10_000)
    convert("memory://foreign/data-{000..002}.tar", tmp_path / "remote", options)
    convert(str(tars), tmp_path / "local", options)
    found, wanted = (tree(tmp_path / name) for name in ("remote", "local"))
    assert len([name for name in found if name.endswith(".tar")]) > 1
    assert {**found, "manifest.json": b""} == {**wanted, "manifest.json": b""}
    store.rm("/foreign", recursive=True)
