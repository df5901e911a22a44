"""Stores and caches that misbehave, over real HTTP: what passes is waited for, what does not is named."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data
import torchvision.transforms as v1
from folders import flip
from http_stores import Handler, Store, store_of
from names import name_of

from fastdata import DataLoader, EpochSampler, ShardDataset, ShardError
from fastdata.errors import NotInStore, StoreError
from fastdata.shards import remote_files

SMALL = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])


def hang_up(handler: Handler) -> None:
    """Resets the connection."""
    handler.connection.shutdown(socket.SHUT_RDWR)


def cut_short(handler: Handler) -> None:
    """Promises more than it sends."""
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b"x" * 1000)
    handler.close_connection = True


@pytest.fixture
def server(own: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A server of shards that may be damaged: its address, what was asked of it, what it will do wrong."""
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)
    with store_of(own) as store:
        yield store


def tars(asked: list[str]) -> list[str]:
    return [path for path in asked if path.endswith(".tar")]


# ---- what passes, and what does not


@pytest.mark.parametrize("failure", [503, 500, 429, hang_up, cut_short], ids=name_of)
def test_what_passes_is_tried_again(server: Store, tmp_path: Path, failure: Any) -> None:
    url, _, wrong = server
    wrong[:] = [failure] * 4
    dataset = ShardDataset(url, cache_dir=tmp_path / "cache")
    wrong[:] = [failure] * 4
    assert dataset.read_encoded(0)


@pytest.mark.parametrize(
    ("failure", "reason"), [(503, "503, message='Service Unavailable'"), (hang_up, "Disconnected")]
)
def test_what_stays_is_named_with_the_attempts(server: Store, tmp_path: Path, failure: Any, reason: str) -> None:
    url, _, wrong = server
    wrong[:] = [failure] * 1000
    with pytest.raises(StoreError, match=rf"could not be read in 5 attempts \(.*{reason}") as found:
        ShardDataset(url, cache_dir=tmp_path / "cache")
    assert not isinstance(found.value, NotInStore)


def test_a_refused_connection_is_no_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(StoreError, match=r"5 attempts \(ClientConnectorError: Cannot connect") as found:
            ShardDataset(f"http://127.0.0.1:{free.getsockname()[1]}/set", cache_dir=tmp_path)
    assert not isinstance(found.value, NotInStore)


@pytest.mark.parametrize("status", [404, 410])
def test_what_is_missing_is_said_at_once(server: Store, tmp_path: Path, status: int) -> None:
    url, asked, wrong = server
    wrong[:] = [status] * 1000
    with pytest.raises(NotInStore, match=r"manifest\.json is not in the store"):
        ShardDataset(url, cache_dir=tmp_path / "cache")
    assert len(asked) == 1


def test_what_is_forbidden_is_said_at_once(server: Store, tmp_path: Path) -> None:
    url, asked, wrong = server
    wrong[:] = [403] * 1000
    with pytest.raises(StoreError, match=r"the store refused access to .*403.*check the URL and the credentials"):
        ShardDataset(url, cache_dir=tmp_path / "cache")
    assert len(asked) == 1


# ---- a cache too small


def test_a_cache_too_small_for_the_order_is_named_once(server: Store, tmp_path: Path) -> None:
    url, _, _ = server
    dataset = ShardDataset(url, SMALL, cache_dir=tmp_path / "cache", cache_bytes=130_000)
    loader = DataLoader(dataset, 4, shuffle=True, seed=1, backend="pil")
    match = r"\.tar and other shards were downloaded again.*130000 holds about [12] of \d+ shards; use .*windowed"
    with pytest.warns(UserWarning, match=match) as told:
        [list(loader) for _ in range(3)]
    assert len(told) == 1


def test_a_cache_too_small_is_named_in_torchs_loader_too(server: Store, tmp_path: Path) -> None:
    dataset = ShardDataset(server[0], SMALL, cache_dir=tmp_path / "cache", cache_bytes=130_000)
    with pytest.warns(UserWarning, match=r"were downloaded again"):
        list(torch.utils.data.DataLoader(dataset, 4, shuffle=True))


@pytest.mark.parametrize("order", ["windowed", pytest.param("sequential", marks=pytest.mark.slow)])
def test_orders_that_suit_a_small_cache_are_not_warned_of(server: Store, tmp_path: Path, order: str) -> None:
    dataset = ShardDataset(server[0], SMALL, cache_dir=tmp_path / "cache", cache_bytes=130_000)
    sampler = EpochSampler(dataset, order=order, window=1) if order == "windowed" else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            batches = list(torch.utils.data.DataLoader(dataset, 2, sampler=sampler))
            assert sum(len(labels) for _, labels in batches) == len(dataset)


# ---- a damaged copy


def damage(cache: Path) -> Path:
    (copy,) = cache.glob("*shard-000000.tar")
    flip(copy, 3000)
    return copy


def test_a_damaged_copy_is_fetched_again(server: Store, own: Path, tmp_path: Path) -> None:
    url, asked, _ = server
    dataset = ShardDataset(url, cache_dir=tmp_path / "cache")
    dataset.read_encoded(0)
    copy = damage(tmp_path / "cache")
    with open(copy, "rb") as reader:
        before = copy.read_bytes()
        assert dataset.read_encoded(0) == ShardDataset(own).read_encoded(0)
        assert reader.read() == before  # whoever has it open keeps it
    assert copy.read_bytes() == (own / "shard-000000.tar").read_bytes()
    assert len(tars(asked)) == 2


@pytest.mark.parametrize("backend", ["native", "pil"])
def test_every_backend_goes_on_after_a_damaged_copy(server: Store, own: Path, tmp_path: Path, backend: str) -> None:
    url, asked, _ = server
    dataset = ShardDataset(url, SMALL, cache_dir=tmp_path / "cache")
    expected = list(DataLoader(ShardDataset(own, SMALL), 5, backend=backend))
    for _ in DataLoader(dataset, 5, backend=backend):
        pass
    fetched = len(tars(asked))
    damage(tmp_path / "cache")
    found = list(DataLoader(dataset, 5, backend=backend))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(found, expected, strict=True))
    assert len(tars(asked)) == fetched + 1


def test_damage_in_the_store_is_an_error_without_end_of_fetching(server: Store, own: Path, tmp_path: Path) -> None:
    url, asked, _ = server
    dataset = ShardDataset(url, cache_dir=tmp_path / "cache")
    dataset.read_encoded(0)
    damage(tmp_path / "cache")
    flip(own / "shard-000000.tar", 4000)
    with pytest.raises(ShardError, match=r"shard-000000\.tar: the copy in the store does not match its index"):
        dataset.read_encoded(0)
    fetched = len(tars(asked))
    with pytest.raises(ShardError, match="damaged image"):
        dataset.read_encoded(0)
    assert len(tars(asked)) == fetched
