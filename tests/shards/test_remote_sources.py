"""Sources in a store: the same shards as from a disk, whatever fails or is gone meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import images
import pytest
from folders import SHARD_BYTES, tree
from http_stores import store_of

from fastdata import DatasetError, OptionError, ShardDataset
from fastdata.cli.main import main
from fastdata.errors import ConversionError
from fastdata.shards import remote_files
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding

OPTIONS = ConvertOptions(shard_bytes=SHARD_BYTES)
URL = "memory://bucket/set"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """fsspec's memory, where failures cost no time; the user's cache is of this test."""
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/bucket"):
        system.rm("/bucket", recursive=True)


@pytest.mark.parametrize("place", ["", "train"])
def test_folders_in_a_store_become_the_same_shards(folder: Path, tmp_path: Path, store: Any, place: str) -> None:
    source = tmp_path / "source"
    (source / place).parent.mkdir(parents=True, exist_ok=True)
    (source / place).symlink_to(folder) if place else source.symlink_to(folder)
    for name in tree(source / place):
        store.pipe_file(f"/bucket/from/{place}/{name}".replace("//", "/"), (source / place / name).read_bytes())
    store.pipe_file(f"/bucket/from/{place}/apple/.hidden.txt".replace("//", "/"), b"no image")
    convert(str(source), tmp_path / "local", OPTIONS)
    summary = convert("memory://bucket/from", tmp_path / "out", OPTIONS)
    ours, theirs = tree(tmp_path / "out"), tree(tmp_path / "local")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name] == theirs[name], name
    assert summary.ignored[place] == 1
    assert convert("memory://bucket/from", tmp_path / "out", OPTIONS).was_finished


def test_a_dataset_in_a_store_is_read_by_its_manifest(folder: Path, tmp_path: Path, store: Any) -> None:
    (tmp_path / "source").mkdir()
    for name in ("train", "val"):
        (tmp_path / "source" / name).symlink_to(folder)
    for source, split in ((folder, ""), (tmp_path / "source", "/val")):
        url = f"memory://bucket/by/{len(split)}"
        convert(str(source), tmp_path / f"made{len(split)}", OPTIONS)
        store.put(f"{tmp_path}/made{len(split)}/", f"/bucket/by/{len(split)}/", recursive=True)
        store.pipe_file(f"/bucket/by/{len(split)}{split}/shard-000099.tar", b"of an earlier conversion")
        summary = convert(url, tmp_path / f"again{len(split)}", OPTIONS)
        again = ShardDataset(f"{tmp_path}/again{len(split)}{split}")
        assert len(again) == len(ShardDataset(f"{url}{split}", cache_dir=tmp_path / "shards"))
        assert summary.manifests[split.strip("/")].classes == ShardDataset(f"{url}{split}").classes


def test_a_file_that_goes_while_it_is_read_is_told_or_skipped(
    folder: Path, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in tree(folder).items():
        store.pipe_file(f"/bucket/from/{name}", data)
    listed = remote_files.RemoteFiles.files_below

    def then_removed(self: Any, url: str) -> dict[str, int]:
        found = listed(self, url)
        if store.exists("/bucket/from/bear/01.jpg"):
            store.rm_file("/bucket/from/bear/01.jpg")
        return {"bear/01.jpg": 5, **found}

    monkeypatch.setattr(remote_files.RemoteFiles, "files_below", then_removed)
    with pytest.raises(ConversionError, match=r"bear/01\.jpg is gone"):
        convert("memory://bucket/from", tmp_path / "out", OPTIONS)
    skipping = ConvertOptions(shard_bytes=SHARD_BYTES, on_error="skip")
    (skipped,) = convert("memory://bucket/from", tmp_path / "out", skipping).manifests[""].skipped
    assert skipped[0] == "bear/01"


def test_files_are_restored_from_a_store(folder: Path, tmp_path: Path, store: Any) -> None:
    convert(str(folder), tmp_path / "shards", ConvertOptions(shard_bytes=SHARD_BYTES, recoding=Recoding(unpacked=True)))
    store.put(f"{tmp_path}/shards/", "/bucket/set/", recursive=True)
    assert main(["restore", URL, str(tmp_path / "again")]) == 0
    assert tree(tmp_path / "again") == tree(folder)


def test_nothing_is_written_to_stores(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"memory://bucket/set is a URL, but shards are written to a local folder"):
        convert(str(folder), "memory://bucket/set", OPTIONS)
    with pytest.raises(DatasetError, match="there are no files at memory://bucket/nothing"):
        convert("memory://bucket/nothing", tmp_path / "out", OPTIONS)


@pytest.mark.parametrize("below", ["", "train/"])
def test_hidden_tar_files_are_none_wherever_they_are(folder: Path, tmp_path: Path, store: Any, below: str) -> None:
    convert(str(folder), tmp_path / "from" / below, OPTIONS)
    for path in [*(tmp_path / "from" / below).glob("shard-00000[1-9].*"), tmp_path / "from" / below / "manifest.json"]:
        path.rename(path.with_name(f".{path.name}"))
    store.put(f"{tmp_path}/from/", "/bucket/from/", recursive=True)
    convert(str(tmp_path / "from"), tmp_path / "local", OPTIONS)
    convert("memory://bucket/from", tmp_path / "remote", OPTIONS)
    local, remote = ([*(tmp_path / to).rglob("*.tar")] for to in ("local", "remote"))
    assert [path.read_bytes() for path in local] == [path.read_bytes() for path in remote]
    assert len(local) == 1


def test_a_folder_of_images_and_tar_files_is_refused_wherever_it_is(folder: Path, tmp_path: Path, store: Any) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "b.tar").write_bytes(bytes(1024))
    (tmp_path / "from" / "cat").mkdir()
    (tmp_path / "from" / "cat" / "a.jpg").write_bytes(images.jpeg(40, 30))
    store.put(f"{tmp_path}/from/", "/bucket/from/", recursive=True)
    for source in (str(tmp_path / "from"), "memory://bucket/from"):
        with pytest.raises(ConversionError, match=r"contains both folders of images and b\.tar"):
            convert(source, tmp_path / "out", OPTIONS)


def test_names_in_urls_are_those_of_the_files(tmp_path: Path) -> None:
    for number, name in enumerate(("my cat", "d#g", "pct%20x")):
        (tmp_path / "from" / name).mkdir(parents=True)
        (tmp_path / "from" / name / f"{number} a.jpg").write_bytes(images.jpeg(40 + number, 30))
    convert(str(tmp_path / "from"), tmp_path / "local", OPTIONS)
    with store_of(tmp_path / "from") as (address, _, _):
        convert(f"{address}/", tmp_path / "remote", OPTIONS)
    local, remote = tree(tmp_path / "local"), tree(tmp_path / "remote")
    assert local.keys() == remote.keys()
    assert all(local[name] == remote[name] for name in local if name != "manifest.json")
    assert ShardDataset(tmp_path / "remote").classes == ["d#g", "my cat", "pct%20x"]


def test_a_pattern_is_looked_up_over_http(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path / "shards", OPTIONS)
    with store_of(tmp_path / "shards") as (address, _, _):
        summary = convert(f"{address}/shard-*.tar", tmp_path / "out", OPTIONS)
    assert summary.manifests[""].samples == len(ShardDataset(tmp_path / "shards"))
