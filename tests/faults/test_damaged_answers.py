"""A remote store answers with damaged bytes: asked again once, then named with both checksums."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from folders import flip
from http_stores import Handler, Store, store_of

from fastdata import ShardDataset, ShardError
from fastdata.shards import remote_files


@pytest.fixture
def server(own: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)
    with store_of(own) as store:
        yield store


def damaged_once(folder: Path, suffix: str) -> type[Handler]:
    """Flips a bit of the first answer with a file of this suffix."""
    damaged: list[str] = []

    class Damaging(Handler):
        def copyfile(self, source: object, outputfile: object) -> None:
            data = bytearray(source.read())
            if self.path.endswith(suffix) and not damaged and self.command == "GET":
                damaged.append(self.path)
                data[len(data) // 2] ^= 1
            outputfile.write(data)

    return Damaging


@pytest.mark.parametrize("suffix", ["manifest.json", ".idx", ".jpegindex"])
def test_damage_on_the_way_is_asked_for_again(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr("http_stores.Handler", damaged_once(own, suffix))
    with store_of(own) as (url, asked, _), warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = ShardDataset(url, cache_dir=tmp_path / "cache")
        assert dataset.read_encoded(0) == ShardDataset(own).read_encoded(0)
        first = next(path for path in asked if path.endswith(suffix))
        assert asked.count(first) == 2


@pytest.mark.parametrize(
    ("name", "checksums"),
    [
        ("manifest.json", r"damaged manifest: expected [0-9a-f]{8}, found [0-9a-f]{8}"),
        ("shard-000000.idx", r"not the one in the manifest.*: expected checksum [0-9a-f]{8}, found [0-9a-f]{8}"),
    ],
)
def test_damage_in_the_store_is_named_with_url_and_checksums(
    server: Store, own: Path, tmp_path: Path, name: str, checksums: str
) -> None:
    url, asked, _ = server
    content = (own / name).read_bytes()
    flip(own / name, content.index(b"apple") + 1 if name == "manifest.json" else len(content) // 2)
    with pytest.raises(ShardError, match=rf"^{url}/{name}: .*{checksums}"):
        ShardDataset(url, cache_dir=tmp_path / "cache")
    assert asked.count(f"/{name}") == 2


def test_a_damaged_index_of_a_shard_without_a_manifest_is_asked_for_again(
    server: Store, own: Path, tmp_path: Path
) -> None:
    url, asked, _ = server
    flip(own / "shard-000000.idx", 100)
    with pytest.raises(ShardError, match=rf"^{url}/shard-000000\.idx: damaged index.*expected [0-9a-f]+, found"):
        ShardDataset(f"{url}/shard-000000.tar", cache_dir=tmp_path / "cache")
    assert asked.count("/shard-000000.idx") == 2
