"""Something else empties the cache folder of a remote store: shards are downloaded again, or the folder is named."""

from __future__ import annotations

import http.server
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torchvision.transforms as v1
from http_stores import Handler, Store, store_of

from fastdata import DataLoader, ShardDataset
from fastdata.errors import NotInStore, StoreError
from fastdata.shards import cache, remote_files
from fastdata.shards.remote_files import RemoteFiles

SMALL = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])


@pytest.fixture
def server(converted: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(cache, "_LOOK_AGAIN_S", 0.005)
    with store_of(converted) as store:
        yield store


def first_doing(damage: Callable[[], None]) -> Callable[[Handler], None]:
    """Answers a request rightly, after some damage to the cache."""

    def answer(handler: Handler) -> None:
        damage()
        kind = http.server.SimpleHTTPRequestHandler
        (kind.do_HEAD if handler.command == "HEAD" else kind.do_GET)(handler)

    return answer


def damages(folder: Path) -> dict[str, Callable[[], None]]:
    def remove_files() -> None:
        for path in folder.glob("*"):
            path.unlink()

    return {
        "folder": lambda: shutil.rmtree(folder, ignore_errors=True),
        "files": remove_files,
        "partial": lambda: [path.unlink() for path in folder.glob("*.partial")] and None,
    }


@pytest.mark.parametrize("what", ["folder", "files", "partial"])
def test_a_cache_emptied_during_a_download_is_filled_again(
    server: Store, converted: Path, tmp_path: Path, what: str
) -> None:
    url, asked, wrong = server
    dataset = ShardDataset(url, cache_dir=tmp_path / "cache")
    before = len(asked)
    wrong[:] = [first_doing(damages(tmp_path / "cache")[what])] * 2
    assert dataset.read_encoded(0) == ShardDataset(converted).read_encoded(0)
    assert len([path for path in asked[before:] if path.endswith(".tar")]) > 1
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_a_cache_that_is_emptied_every_time_is_named(server: Store, tmp_path: Path) -> None:
    url, _, wrong = server
    folder = tmp_path / "cache"
    dataset = ShardDataset(url, cache_dir=folder)
    wrong[:] = [first_doing(damages(folder)["folder"])] * 1000
    with pytest.raises(StoreError, match=rf"shard-000000\.tar could.*in 6 attempts: .*cache folder {folder} ") as found:
        dataset.read_encoded(0)
    assert not isinstance(found.value, NotInStore)


def test_what_a_killed_process_was_writing_is_removed_after_an_hour(server: Store, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    dataset = ShardDataset(server[0], cache_dir=folder)
    for name in ("fastdata-new-old", "fastdata-new-young", "tmp-of-others"):
        (folder / name).write_bytes(b"half")
    for name in ("fastdata-new-old", "tmp-of-others"):
        os.utime(folder / name, (0, 0))
    assert dataset.read_encoded(0)
    assert not (folder / "fastdata-new-old").exists()
    assert (folder / "fastdata-new-young").exists()
    assert (folder / "tmp-of-others").exists()


def test_a_cache_emptied_while_indexes_are_read_is_filled_again(server: Store, tmp_path: Path) -> None:
    url, _, wrong = server
    wrong[:] = [first_doing(damages(tmp_path / "cache")["folder"])] * 8
    dataset = ShardDataset(url, cache_dir=tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert dataset.key(0)
    assert dataset.read_encoded(0)


def test_a_copy_that_another_process_has_begun_anew_is_not_taken_for_a_whole_one(
    server: Store, converted: Path, tmp_path: Path
) -> None:
    """The removed lock lets another process begin the same download; what it has so far must not be given its name."""
    url, _, wrong = server
    folder = tmp_path / "cache"
    dataset = ShardDataset(url, cache_dir=folder)

    def begin_anew() -> None:
        for partial in folder.glob("*.partial"):
            size = partial.stat().st_size
            partial.unlink()
            partial.write_bytes(bytes(size))

    wrong[:] = [first_doing(begin_anew)]
    dataset.read_encoded(0)
    (copy,) = folder.glob("*shard-000000.tar")
    assert copy.read_bytes() == (converted / "shard-000000.tar").read_bytes()


def test_a_folder_that_is_removed_while_it_is_made_is_no_error(server: Store, tmp_path: Path) -> None:
    """mkdir finds that the folder exists, and is told a moment later that it does not."""
    folder, stop = tmp_path / "cache", threading.Event()

    def remove() -> None:
        while not stop.is_set():
            shutil.rmtree(folder, ignore_errors=True)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for _ in range(2000):
            assert cache.ShardCache(folder, 1 << 20, RemoteFiles()).folder == folder
    finally:
        stop.set()
        remover.join()


def test_a_file_in_the_place_of_the_folder_is_named(server: Store, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(FileExistsError, match="cache"):
        ShardDataset(server[0], cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("backend", ["native", "pil"])
def test_an_epoch_while_the_cache_is_emptied_again_and_again(
    server: Store, converted: Path, tmp_path: Path, backend: str
) -> None:
    folder, stop = tmp_path / "cache", threading.Event()

    def empty() -> None:
        pause_s = 0.05
        while not stop.wait(pause_s):
            shutil.rmtree(folder, ignore_errors=True)
            pause_s *= 1.3  # however slow the machine is, there is time for a download in the end

    expected = list(DataLoader(ShardDataset(converted, SMALL), 5, backend=backend))
    dataset = ShardDataset(server[0], SMALL, cache_dir=folder)
    emptier = threading.Thread(target=empty)
    emptier.start()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = list(DataLoader(dataset, 5, backend=backend, num_workers=2))
    finally:
        stop.set()
        emptier.join()
    assert all(torch.equal(a[0], b[0]) for a, b in zip(found, expected, strict=True))
    assert all(f"something else removes files from the cache folder {folder}" in str(each.message) for each in told)
