"""Remote stores: fetched once, checked, evicted, shared by processes; a store that fails is named."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from http_stores import store_of

from fastdata import DataLoader, EpochSampler, OptionError, ShardDataset, ShardError
from fastdata.cli.main import main
from fastdata.errors import StoreError
from fastdata.jpeg_index.find import open_indexes
from fastdata.jpeg_index.index_file import index_beside
from fastdata.shards import remote_files
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.verify import verify_folder
from fastdata.system.files import locked

CROP = v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor()])
URL = "memory://bucket/set"


@pytest.fixture
def store(converted: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The dataset in fsspec's memory, where failures cost no time."""
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)
    system = fsspec.filesystem("memory")
    system.put(f"{converted}/", "/bucket/set/", recursive=True)
    yield system
    system.rm("/bucket", recursive=True)


def tars(cache: Path) -> list[str]:
    return sorted(path.name[26:] for path in cache.glob("*.tar"))


def batches(loader: Any) -> list[torch.Tensor]:
    return [images for images, _ in loader]


@pytest.mark.parametrize("backend", ["native", "pil"])
@pytest.mark.parametrize("order", ["random", "windowed"])
def test_batches_are_those_of_the_local_dataset(
    store: Any, converted: Path, tmp_path: Path, backend: str, order: str
) -> None:
    found = []
    for path in (URL, converted):
        dataset = ShardDataset(path, CROP, cache_dir=tmp_path / "cache")
        sampler = EpochSampler(dataset, order=order, window=2)
        found.append(batches(DataLoader(dataset, 7, sampler=sampler, seed=1, num_workers=2, backend=backend)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_pattern_of_urls(store: Any, converted: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(f"{URL}/shard-{{000000..000001}}.tar", cache_dir=tmp_path)
    assert len(dataset) == int(ShardDataset(converted).shard_ends[1])


def test_only_what_is_read_is_fetched_and_only_once(store: Any, tmp_path: Path) -> None:
    dataset = ShardDataset(URL, cache_dir=tmp_path)
    assert tars(tmp_path) == []
    dataset.read_encoded(0)
    assert tars(tmp_path) == ["shard-000000.tar"]
    store.rm("/bucket/set/shard-000000.tar")
    again = ShardDataset(URL, cache_dir=tmp_path)
    assert again.read_encoded(0) == dataset.read_encoded(0)


def test_indexes_of_jpegs_come_with_their_shard_and_go_with_it(store: Any, converted: Path, tmp_path: Path) -> None:
    expected = batches(DataLoader(ShardDataset(converted, CROP), 7, seed=1, backend="native"))
    before = open_indexes().uses.used
    dataset = ShardDataset(URL, CROP, cache_dir=tmp_path)
    assert list(tmp_path.glob("*.jpegindex")) == []
    found = batches(DataLoader(dataset, 7, seed=1, backend="native"))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert open_indexes().uses.used - before == len(dataset)
    beside = [Path(index_beside(str(path))) for path in tmp_path.glob("*.tar")]
    assert sorted(tmp_path.glob("*.jpegindex")) == sorted(beside)
    small = ShardDataset(URL, CROP, cache_dir=tmp_path, cache_bytes=65_000)  # of one shard
    small.read_encoded(0)
    for path in tmp_path.glob("*.tar"):
        path.unlink()
    small.read_encoded(len(small) - 1)
    small.read_encoded(0)
    assert tars(tmp_path) == ["shard-000000.tar"]
    (index,) = (path for path in tmp_path.glob("*.jpegindex") if "000000" in path.name)
    assert index.read_bytes() == (converted / "shard-000000.jpegindex").read_bytes()


def test_an_index_that_was_made_later_is_fetched_to_a_shard_that_is_there(
    store: Any, converted: Path, tmp_path: Path
) -> None:
    ShardDataset(URL, cache_dir=tmp_path).read_encoded(0)
    (index,) = tmp_path.glob("*.jpegindex")
    index.unlink()
    (tmp_path / "0-0-gone.jpegindex").write_bytes(b"of a shard that is gone")
    dataset = ShardDataset(URL, cache_dir=tmp_path)
    dataset.read_encoded(0)
    assert index.read_bytes() == (converted / "shard-000000.jpegindex").read_bytes()
    dataset.read_encoded(len(dataset) - 1)
    assert not (tmp_path / "0-0-gone.jpegindex").exists()


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_shards_are_read_without_an_index_that_the_store_cannot_give(
    store: Any, converted: Path, tmp_path: Path, state: str
) -> None:
    place = "/bucket/set/shard-000001.jpegindex"
    if state == "missing":
        store.rm(place)
    else:
        store.pipe(place, store.cat(place)[:-1])
    expected = batches(DataLoader(ShardDataset(converted, CROP), 7, seed=1, backend="native"))
    with pytest.warns(UserWarning, match=r"JPEGs are decoded without their index: .*shard-000001.jpegindex"):
        found = batches(DataLoader(ShardDataset(URL, CROP, cache_dir=tmp_path), 7, seed=1, backend="native"))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len(list(tmp_path.glob("*.jpegindex"))) == len(tars(tmp_path)) - 1


@pytest.mark.filterwarnings("ignore:.*were downloaded again")  # a thread that is held up may need an old shard
def test_the_cache_stays_within_its_bounds(store: Any, converted: Path, tmp_path: Path) -> None:
    most = 130_000  # two shards
    dataset = ShardDataset(URL, CROP, cache_dir=tmp_path, cache_bytes=most)
    sampler = EpochSampler(dataset, order="windowed", window=1)
    loader = DataLoader(dataset, 3, sampler=sampler, num_workers=2, backend="native")
    seen = 0
    for images, _ in loader:
        seen += len(images)
        assert sum(map(_size, tmp_path.glob("*.tar"))) <= most  # some go while they are counted
    assert seen == len(dataset)
    with pytest.warns(UserWarning, match="random order reads from all shards at once"):
        EpochSampler(dataset)


def test_the_least_recently_used_goes_first(store: Any, tmp_path: Path) -> None:
    dataset = ShardDataset(URL, cache_dir=tmp_path, cache_bytes=130_000)
    firsts = [0, *dataset.shard_ends[:-1].tolist()]
    for shard in (0, 1):
        dataset.read_encoded(firsts[shard])
    past = time.time() - 100
    for path in tmp_path.glob("*.tar"):
        os.utime(path, (past, past + (1 if "000001" in path.name else 0)))
    dataset.read_encoded(firsts[0])  # which makes it the newest
    dataset.read_encoded(firsts[2])
    assert tars(tmp_path) == ["shard-000000.tar", "shard-000002.tar"]


def test_a_cache_without_room_for_one_shard_is_refused(store: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cache_bytes=1000 is too small for one shard: .* has \d+ bytes"):
        ShardDataset(URL, cache_dir=tmp_path, cache_bytes=1000).read_encoded(0)


def test_a_dataset_that_was_written_anew_is_another_one(store: Any, folder: Path, tmp_path: Path) -> None:
    old = ShardDataset(URL, cache_dir=tmp_path / "cache")
    [old.read_encoded(index) for index in range(len(old))]
    convert(str(folder), tmp_path / "anew", ConvertOptions(shard_bytes=60_000, shuffle_seed=3))
    store.rm("/bucket/set", recursive=True)
    store.put(f"{tmp_path / 'anew'}/", "/bucket/set/", recursive=True)
    ours, local = ShardDataset(URL, cache_dir=tmp_path / "cache"), ShardDataset(tmp_path / "anew")
    assert [ours.read_encoded(i) for i in range(len(ours))] == [local.read_encoded(i) for i in range(len(local))]
    assert ours.targets == local.targets


def test_an_emptied_cache_is_filled_again(store: Any, converted: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(URL, cache_dir=tmp_path / "cache")
    copy = pickle.loads(pickle.dumps(dataset))
    shutil.rmtree(tmp_path / "cache")
    local = ShardDataset(converted)
    assert copy.read_encoded(0) == dataset.read_encoded(0) == local.read_encoded(0)
    assert copy.key(3) == local.key(3)


def test_a_forked_child_does_not_keep_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    with locked(lock):
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
    with locked(lock):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it lives, and the lock came without its end
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_downloads_of_others_count(store: Any, tmp_path: Path) -> None:
    """Two at once, where there is room for one and a half."""
    dataset = ShardDataset(URL, cache_dir=tmp_path, cache_bytes=90_000)
    firsts = [0, *dataset.shard_ends[:-1].tolist()]
    most = [0]

    def watch() -> None:
        is_done = False
        while not is_done:
            is_done = done.is_set()  # then once more: what is left in the cache
            files = [*tmp_path.glob("*.tar"), *tmp_path.glob("*.partial")]
            most[0] = max(most[0], sum(map(_size, files)))

    done = threading.Event()
    threads = [threading.Thread(target=lambda s=shard: dataset.read_encoded(firsts[s])) for shard in range(6)]
    watcher = threading.Thread(target=watch)
    for thread in [watcher, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    assert 0 < most[0] <= 90_000


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_choosing_a_backend_fetches_one_shard(store: Any, tmp_path: Path) -> None:
    dataset = ShardDataset(URL, CROP, cache_dir=tmp_path)
    DataLoader(dataset, 2, sampler=[0, 1]).explain()
    for _ in DataLoader(dataset, 2, sampler=[0, 1]):
        pass
    assert tars(tmp_path) == ["shard-000000.tar"]


def test_shards_come_ahead_of_need(store: Any, tmp_path: Path) -> None:
    dataset = ShardDataset(URL, cache_dir=tmp_path)
    firsts = [0, *dataset.shard_ends[:-1].tolist()]
    dataset.expect(np.array([firsts[shard] for shard in (3, 3, 1, 3, 2)]))
    for _ in range(5000):
        if len(tars(tmp_path)) == 3:
            break
        time.sleep(0.02)
    assert tars(tmp_path) == ["shard-000001.tar", "shard-000002.tar", "shard-000003.tar"]


def test_the_fetching_thread_ends_with_the_dataset(store: Any, tmp_path: Path) -> None:
    dataset = ShardDataset(URL, cache_dir=tmp_path, cache_bytes=130_000)
    dataset.expect(np.arange(len(dataset)))
    assert [thread.name for thread in threading.enumerate()].count("fastdata-fetch") == 1
    del dataset
    for thread in threading.enumerate():
        if thread.name == "fastdata-fetch":
            thread.join(100)
    assert "fastdata-fetch" not in [thread.name for thread in threading.enumerate()]


def test_what_arrives_damaged_is_refused_and_not_kept(store: Any, tmp_path: Path) -> None:
    dataset = ShardDataset(URL, cache_dir=tmp_path)
    data = bytearray(store.cat("/bucket/set/shard-000000.tar"))
    data[5000] ^= 1
    store.pipe("/bucket/set/shard-000000.tar", bytes(data))
    with pytest.raises(ShardError, match=r"does not match its index .*: expected \d+ bytes, checksum \w+, found"):
        dataset.read_encoded(0)
    assert list(tmp_path.glob("*.tar")) == list(tmp_path.glob("*.partial")) == []


def test_a_store_that_is_gone_is_named(store: Any, tmp_path: Path) -> None:
    dataset = ShardDataset(URL, cache_dir=tmp_path)
    store.rm("/bucket/set", recursive=True)
    with pytest.raises(StoreError, match=r"shard-000000\.tar is not in the store"):
        dataset.read_encoded(0)
    with pytest.raises(StoreError, match=r"manifest\.json is not in the store"):
        ShardDataset(URL, cache_dir=tmp_path)
    with pytest.raises(StoreError, match="nosuchscheme"):
        ShardDataset("nosuchscheme://bucket/set", cache_dir=tmp_path)
    store.pipe("/bucket/set/x", b"")


def test_a_store_that_fails_for_a_while_is_asked_again(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(URL, cache_dir=tmp_path)
    genuine, failures = type(store).open, [3]

    def failing(self: Any, *arguments: Any, **options: Any) -> Any:
        if failures[0] > 0:
            failures[0] -= 1
            raise ConnectionResetError("connection reset by peer")
        return genuine(self, *arguments, **options)

    monkeypatch.setattr(type(store), "open", failing)
    assert dataset.read_encoded(0)
    failures[0] = 1000
    with pytest.raises(StoreError, match=r"could not be read in 5 attempts \(ConnectionResetError.*may be down"):
        dataset.read_encoded(len(dataset) - 1)


# ---- several processes, over HTTP


@pytest.fixture
def server(converted: Path) -> Iterator[tuple[str, list[str]]]:
    """A real server, and what was asked of it."""
    with store_of(converted) as (url, asked, _):
        yield url, asked


def read_all(url: str, cache: Path, results: Any) -> None:
    dataset = ShardDataset(url, cache_dir=cache)
    results.put(sum(len(dataset.read_encoded(index)) for index in range(len(dataset))))


def fetch_and_hang(url: str, cache: Path, started: Any) -> None:
    remote_files._CHUNK_BYTES = 1000
    genuine = remote_files.crc32c

    def slowly(data: bytes, crc: int = 0) -> int:
        if crc:  # in the middle of a shard
            started.set()
            time.sleep(600)
        return genuine(data, crc)

    remote_files.crc32c = slowly
    ShardDataset(url, cache_dir=cache).read_encoded(0)


@pytest.mark.slow
def test_processes_share_one_cache(server: tuple[str, list[str]], converted: Path, tmp_path: Path) -> None:
    url, asked = server
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=read_all, args=(url, tmp_path, results)) for _ in range(3)]
    for process in processes:
        process.start()
    sizes = [results.get(timeout=100) for _ in processes]
    for process in processes:
        process.join()
    local = ShardDataset(converted)
    assert sizes == [sum(len(local.read_encoded(index)) for index in range(len(local)))] * 3
    fetched = [path for path in asked if path.endswith(".tar")]
    assert len(fetched) == len(set(fetched)) == len(local.shard_ends)


@pytest.mark.slow
def test_a_process_that_dies_while_fetching_holds_up_nobody(server: tuple[str, list[str]], tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=fetch_and_hang, args=(server[0], tmp_path, started))
    process.start()
    assert started.wait(100)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert ShardDataset(server[0], cache_dir=tmp_path).read_encoded(0)
    assert list(tmp_path.glob("*.partial")) == []


def test_a_dataset_in_a_store_is_verified(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", URL, "--decode", "--workers", "1"]) == 0
    place = "/bucket/set/shard-000001.tar"
    data = bytearray(store.cat(place))
    data[700] ^= 1
    store.pipe(place, bytes(data))
    assert main(["verify", URL, "--workers", "1"]) == 1
    told = capsys.readouterr().out
    assert f"{URL}/shard-000001.tar: checksum of the tar file: expected " in told
    assert "fastdata-verify-" not in told
    store.rm("/bucket/set/shard-000000.tar")
    assert any(f"{URL}/shard-000000.tar is not in the store" in str(fault) for fault in verify_folder(URL))


def test_a_dataset_in_a_store_is_shown(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", URL]) == 0
    assert f"{URL}: 39 images in " in capsys.readouterr().out
    assert main(["inspect", "memory://bucket/nothing"]) == 1
