"""Conversion to and from a remote store: the same shards as on a disk, whatever is interrupted or already there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from folders import SHARD_BYTES, tree
from places import ROOT

from fastdata import ConversionError, DatasetError, OptionError, ShardDataset, StoreError
from fastdata.cli.main import main
from fastdata.shards import remote_files
from fastdata.shards.conversion import job
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.verify import verify_folder
from fastdata.system.files import write_whole

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


def uploaded(system: Any, place: str = "/bucket/set") -> dict[str, bytes]:
    """Every file, by its path below a folder of the store."""
    return {name.removeprefix(place).lstrip("/"): system.cat_file(name) for name in system.find(place)}


def staged(cache: Path) -> list[Path]:
    return [path for path in (cache / "cache").rglob("*") if path.is_file() and "conversions" in path.parts]


@pytest.mark.parametrize("unpacked", [False, True])
def test_shards_in_a_store_are_those_on_a_disk(folder: Path, tmp_path: Path, store: Any, unpacked: bool) -> None:
    options = ConvertOptions(shard_bytes=SHARD_BYTES, recoding=Recoding(unpacked=unpacked))
    convert(str(folder), tmp_path / "local", options)
    summary = convert(str(folder), URL, options)
    assert uploaded(store) == tree(tmp_path / "local")
    assert staged(tmp_path) == []
    assert summary.manifests[""].samples == len(ShardDataset(URL, cache_dir=tmp_path / "shards"))
    assert list(verify_folder(URL, decode=True)) == []
    again = convert(str(folder), URL, options)
    assert again.was_finished
    assert again.unlabelled == summary.unlabelled


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
    convert("memory://bucket/from/", URL, OPTIONS)
    assert uploaded(store) == theirs


def test_a_dataset_in_a_store_is_read_by_its_manifest(folder: Path, tmp_path: Path, store: Any) -> None:
    (tmp_path / "source").mkdir()
    for name in ("train", "val"):
        (tmp_path / "source" / name).symlink_to(folder)
    for source, split in ((folder, ""), (tmp_path / "source", "/val")):
        url = f"memory://bucket/by/{len(split)}"
        convert(str(source), url, OPTIONS)
        store.pipe_file(f"/bucket/by/{len(split)}{split}/shard-000099.tar", b"of an earlier conversion")
        summary = convert(url, tmp_path / f"again{len(split)}", OPTIONS)
        again = ShardDataset(f"{tmp_path}/again{len(split)}{split}")
        assert len(again) == len(ShardDataset(f"{url}{split}", cache_dir=tmp_path / "shards"))
        assert summary.manifests[split.strip("/")].classes == ShardDataset(f"{url}{split}").classes


@pytest.mark.parametrize("given", ["folder", "pattern", "braces", "file"])
def test_parquet_files_in_a_store_give_the_same_shards(folder: Path, tmp_path: Path, store: Any, given: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "tables").mkdir()
    samples = [(data, name.partition("/")[0]) for name, data in tree(folder).items()]
    for number in range(1 if given == "file" else 2):
        data, names = zip(*samples[20 * number : 20 * number + 20], strict=True)
        rows = {"image": list(data), "label": list(names), "caption": [f"one of {name}" for name in names]}
        place = tmp_path / "tables" / f"train-{number:05}-of-00002.parquet"
        parquet.write_table(pyarrow.table(rows), place, row_group_size=6)
        store.pipe_file(f"/bucket/tables/data/{place.name}", place.read_bytes())
    convert(str(tmp_path / "tables"), tmp_path / "local", OPTIONS, fields={"txt": "caption"})
    url = {
        "folder": "memory://bucket/tables",
        "pattern": "memory://bucket/tables/data/train-*.parquet",
        "braces": "memory://bucket/tables/data/train-{00000..00001}-of-00002.parquet",
        "file": "memory://bucket/tables/data/train-00000-of-00002.parquet",
    }[given]
    convert(url, tmp_path / "out", OPTIONS, fields={"txt": "caption"})
    ours, theirs = tree(tmp_path / "out"), tree(tmp_path / "local")
    assert {name: data for name, data in ours.items() if not name.endswith(".json")} == {
        name: data for name, data in theirs.items() if not name.endswith(".json")
    }
    assert convert(url, tmp_path / "out", OPTIONS, fields={"txt": "caption"}).was_finished


def test_what_was_uploaded_is_neither_made_nor_sent_again(
    folder: Path, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    upload = remote_files.RemoteFiles.upload

    def failing(self: Any, path: Path, url: str) -> None:
        if path.name == "shard-000002.tar" and "fails" in os.environ:
            raise StoreError("the store is down")
        sent.append(path.name)
        upload(self, path, url)

    monkeypatch.setattr(remote_files.RemoteFiles, "upload", failing)
    monkeypatch.setenv("fails", "1")
    with pytest.raises(StoreError, match="the store is down"):
        convert(str(folder), URL, OPTIONS)
    tars = [path.name for path in staged(tmp_path) if path.suffix == ".tar"]
    assert tars == ["shard-000002.tar"]  # those before are in the store, and nowhere else
    assert "manifest.json" not in "".join(uploaded(store))
    monkeypatch.delenv("fails")
    monkeypatch.setattr(job, "_make_shard", _only_from(3, job._make_shard))
    convert(str(folder), URL, OPTIONS, resume=True)
    assert len(sent) == len(set(sent))
    monkeypatch.undo()
    convert(str(folder), tmp_path / "local", OPTIONS)
    assert uploaded(store) == tree(tmp_path / "local")


def _only_from(first: int, make: Any) -> Any:
    def made(each: job.ShardJob) -> Any:
        assert int(each.name[6:12]) >= first, each.name
        return make(each)

    return made


def test_what_has_left_the_store_is_made_again(
    folder: Path, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fastdata.shards.conversion.convert.write_whole", _killed)
        with pytest.raises(RuntimeError, match="killed"):
            convert(str(folder), URL, OPTIONS)
    store.rm_file("/bucket/set/shard-000000.tar")
    store.rm_file("/bucket/set/shard-000002.idx")
    convert(str(folder), URL, OPTIONS)
    convert(str(folder), tmp_path / "local", OPTIONS)
    assert uploaded(store) == tree(tmp_path / "local")


def test_no_manifest_is_uploaded_for_shards_that_are_gone(
    folder: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def then_removed(place: Path, data: bytes) -> None:
        if store.exists("/bucket/set/shard-000001.tar"):
            store.rm_file("/bucket/set/shard-000001.tar")
        write_whole(place, data)

    monkeypatch.setattr("fastdata.shards.conversion.convert.write_whole", then_removed)
    with pytest.raises(StoreError, match=r"shard-000001\.tar is no longer in the store, and 0 others; run the same"):
        convert(str(folder), URL, OPTIONS)
    assert not store.exists("/bucket/set/manifest.json")


def test_a_replacement_that_was_interrupted_leaves_no_old_shards(
    folder: Path, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(str(folder), URL, ConvertOptions(shard_bytes=SHARD_BYTES // 3))
    removed: list[str] = []
    remove = remote_files.RemoteFiles.remove

    def failing(self: Any, url: str) -> None:
        remove(self, url)
        removed.append(url)
        if len(removed) == 3:
            raise StoreError("the store is down")

    with monkeypatch.context() as patch:
        patch.setattr(remote_files.RemoteFiles, "remove", failing)
        with pytest.raises(StoreError, match="the store is down"):
            convert(str(folder), URL, OPTIONS, overwrite=True)
    convert(str(folder), URL, OPTIONS, overwrite=True)
    convert(str(folder), tmp_path / "local", OPTIONS)
    assert uploaded(store) == tree(tmp_path / "local")


def test_a_dataset_with_a_damaged_manifest_can_be_replaced(folder: Path, tmp_path: Path, store: Any) -> None:
    convert(str(folder), URL, ConvertOptions(shard_bytes=SHARD_BYTES // 3))
    store.pipe_file("/bucket/set/manifest.json", b"{")
    convert(str(folder), URL, OPTIONS, overwrite=True)
    convert(str(folder), tmp_path / "local", OPTIONS)
    assert uploaded(store) == tree(tmp_path / "local")


def test_an_answer_that_is_lost_does_not_end_a_removal(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pipe_file("/bucket/set/a.txt", b"1")
    rm_file = type(store).rm_file

    def lost(self: Any, path: str) -> None:
        rm_file(self, path)
        raise ConnectionResetError("the answer was lost")

    monkeypatch.setattr(type(store), "rm_file", lost)
    remote_files.RemoteFiles().remove(f"{URL}/a.txt")
    monkeypatch.undo()
    assert not store.exists("/bucket/set/a.txt")


def test_splits_that_are_there_are_a_dataset_too(folder: Path, tmp_path: Path, store: Any) -> None:
    for name in ("train", "val"):
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "source" / name).symlink_to(folder)
    convert(str(tmp_path / "source"), URL, OPTIONS)
    with pytest.raises(ConversionError, match="already holds a converted dataset"):
        convert(str(folder), URL, OPTIONS)


def test_files_of_others_in_a_staging_folder_stay(folder: Path, tmp_path: Path, store: Any) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years")
    convert(str(folder), URL, OPTIONS, staging=tmp_path / "home", overwrite=True)
    assert tree(tmp_path / "home") == {"thesis.txt": b"years"}


def test_what_a_kill_at_the_very_end_leaves_is_no_hindrance(folder: Path, tmp_path: Path, store: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastdata.shards.conversion.convert.shutil.rmtree", lambda *_, **__: None)
        convert(str(folder), URL, OPTIONS)
    assert staged(tmp_path)
    store.rm("/bucket/set", recursive=True)
    convert(str(folder), URL, OPTIONS)
    assert staged(tmp_path) == []


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("memory://bucket/set", "memory://bucket/set/"),
        ("memory://bucket/set", "memory://bucket/set/train"),
        ("memory://bucket/set/part", "memory://bucket/set"),
        ("memory://bucket/set/shard-{000000..000001}.tar", "memory://bucket/set"),
        ("FOLDER", "file://FOLDER"),
        ("FOLDER", "file://FOLDER/out"),
        ("file://FOLDER", "FOLDER"),
    ],
)
def test_source_and_destination_lie_apart(folder: Path, store: Any, source: str, destination: str) -> None:
    convert(str(folder), URL, OPTIONS)
    before = uploaded(store), tree(folder)
    places = [place.replace("FOLDER", str(folder)) for place in (source, destination)]
    with pytest.raises(ConversionError, match="must not lie inside of each other"):
        convert(*places, OPTIONS, overwrite=True)
    assert before == (uploaded(store), tree(folder))


@pytest.mark.parametrize("url", ["memory://", "simplecache::memory://bucket/set"])
def test_urls_that_name_no_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="names no folder of a store"):
        convert(str(folder), url, OPTIONS)
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_store_is_not_overwritten_unasked(folder: Path, tmp_path: Path, store: Any) -> None:
    store.pipe_file("/bucket/set/notes.txt", b"mine")
    with pytest.raises(ConversionError, match=r"bucket/set already holds 1 other files and folders; choose another"):
        convert(str(folder), URL, OPTIONS)
    store.rm_file("/bucket/set/notes.txt")
    convert(str(folder), URL, ConvertOptions(shard_bytes=SHARD_BYTES // 2))
    before = uploaded(store)
    with pytest.raises(ConversionError, match="already holds a converted dataset; choose another"):
        convert(str(folder), URL, OPTIONS)
    assert uploaded(store) == before
    store.pipe_file("/bucket/set/notes.txt", b"mine")
    convert(str(folder), URL, OPTIONS, overwrite=True)
    convert(str(folder), tmp_path / "local", OPTIONS)
    assert uploaded(store) == {**tree(tmp_path / "local"), "notes.txt": b"mine"}


def test_shards_that_are_no_longer_planned_leave_the_store(
    folder: Path, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source got smaller while a conversion was interrupted."""
    source = tmp_path / "source"
    for name, data in tree(folder).items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    with monkeypatch.context() as patch:
        patch.setattr("fastdata.shards.conversion.convert.write_whole", _killed)
        with pytest.raises(RuntimeError, match="killed"):
            convert(str(source), URL, OPTIONS)
    for path in [*source.glob("bear/*"), *source.glob("cup/*")]:
        if path.name > "01.jpg":
            path.unlink()
    convert(str(source), URL, OPTIONS)
    convert(str(source), tmp_path / "local", OPTIONS)
    assert uploaded(store) == tree(tmp_path / "local")


def _killed(*_: object) -> None:
    raise RuntimeError("killed")


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


@pytest.mark.parametrize(
    ("source", "destination", "error", "message"),
    [
        ("memory://bucket/nothing", "out", DatasetError, "there are no files at memory://bucket/nothing"),
        ("FOLDER", "https://127.0.0.1:9/set", StoreError, "could not be|cannot be"),
        ("FOLDER", "nosuch://bucket/set", StoreError, "cannot be opened"),
    ],
)
def test_mistakes(
    folder: Path, tmp_path: Path, store: Any, source: str, destination: str, error: Any, message: str
) -> None:
    to = destination if "://" in destination else tmp_path / destination
    with pytest.raises(error, match=message):
        convert(source.replace("FOLDER", str(folder)), to, OPTIONS)


def test_staging_is_for_urls(folder: Path, tmp_path: Path, store: Any) -> None:
    with pytest.raises(OptionError, match="is for a destination that is a URL"):
        convert(str(folder), tmp_path / "out", OPTIONS, staging=tmp_path / "staging")
    convert(str(folder), URL, OPTIONS, staging=tmp_path / "staging")
    assert tree(tmp_path / "staging") == {}
    assert uploaded(store)


def test_the_command_takes_urls(folder: Path, tmp_path: Path, store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    to = f"file://{tmp_path}/store/set"
    assert main(["convert", str(folder), to, "--verify", "--json", "--shard-size", str(SHARD_BYTES)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["destination"] == to
    assert told["faults"] == []
    assert main(["convert", str(folder), f"{to}2", "--dry-run"]) == 0
    assert not Path(f"{tmp_path}/store/set2").exists()


def test_files_are_restored_from_a_store(folder: Path, tmp_path: Path, store: Any) -> None:
    convert(str(folder), URL, ConvertOptions(shard_bytes=SHARD_BYTES, recoding=Recoding(unpacked=True)))
    assert main(["restore", URL, str(tmp_path / "again")]) == 0
    assert tree(tmp_path / "again") == tree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.3, 0.6, 1.0])
def test_a_conversion_that_is_killed_goes_on(folder: Path, tmp_path: Path, delay_s: float) -> None:
    """kill -9 of the whole group, wherever it is; workers upload from their own processes."""
    to, environment = f"file://{tmp_path}/store/set", {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "fastdata", "convert", str(folder), to, "--workers", "2", "--quiet"]
    command += ["--shard-size", str(SHARD_BYTES // 4)]
    for _ in range(2):
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
        time.sleep(delay_s)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    convert(str(folder), tmp_path / "local", ConvertOptions(shard_bytes=SHARD_BYTES // 4))
    assert tree(tmp_path / "store" / "set") == tree(tmp_path / "local")
