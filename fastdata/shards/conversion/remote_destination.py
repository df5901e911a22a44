"""Conversion into a remote store: each shard is uploaded when it is finished, and then leaves the local disk.

A staging folder on this machine stands for the destination until the end.  It holds the shards that are being written,
the index and the note of every shard, and the lock; so an interrupted conversion goes on there, and what has been
uploaded is neither made nor sent again.  The manifests are uploaded last: a dataset in the store that has one is whole.
Two machines that convert into one URL do not notice each other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fastdata.errors import ConversionError, NotInStore, OptionError, ShardError, StoreError
from fastdata.jpeg_index.index_file import path_beside
from fastdata.shards.conversion.folders import SPLIT_NAMES
from fastdata.shards.format import MANIFEST_NAME, Manifest, ShardInfo, crc32c, index_name
from fastdata.shards.remote_files import RemoteFiles
from fastdata.system.files import cache_folder

__all__ = ["RemoteDestination", "is_url", "upload_shard"]


_OWN_NAMES = re.compile(r"shard-\d{6,}\.\w+")  # of shards and their indexes


def is_url(place: str | os.PathLike[str]) -> bool:
    """True for URLs; a path may have made one slash of two, and C:/ is a disk."""
    text = os.fspath(place)
    return "://" in text or re.match(r"[A-Za-z][\w+.-]+:/", text) is not None


class RemoteDestination:
    """A destination in a store that fsspec can write.

    Attributes:
        url: the destination.
        folder: its staging folder, of which nothing else is.

    Args:
        url: URL of a folder.
        staging: local folder for staging folders; None for one in the user's cache.

    Raises:
        OptionError: it names no folder of a store.
    """

    def __init__(self, url: str, staging: str | os.PathLike[str] | None = None) -> None:
        self.url = url.rstrip("/")
        if "://" not in url:
            raise OptionError(f"{url} is a URL that has lost a slash as a path; pass it as text")
        if "::" in url or not url.partition("://")[2].strip("/"):
            raise OptionError(f"the destination {url} names no folder of a store; write one like s3://bucket/shards")
        place = Path(staging) if staging is not None else cache_folder() / "conversions"
        self.folder = place / f"fastdata-conversion-{crc32c(self.url.encode()):08x}"
        self._store = RemoteFiles()

    def url_of(self, split: str) -> str:
        """URL of a split; "" names a dataset without splits."""
        return f"{self.url}/{split}" if split else self.url

    def manifest(self, split: str) -> Manifest | None:
        """The manifest of a split that is whole in the store, with all its shards; None if it is not.

        Raises:
            ShardError: the manifest is damaged.
            StoreError: the store cannot be read.
        """
        place = f"{self.url_of(split)}/{MANIFEST_NAME}"
        try:
            found = Manifest.from_text(self._store.read(place), place)
        except NotInStore:
            return None
        return None if self.missing(split, found.shards) else found

    def missing(self, split: str, shards: Iterable[ShardInfo]) -> list[str]:
        """Names of the shards that are not in the store as they were made."""
        there = self._store.sizes(self.url_of(split))
        return [
            shard.name
            for shard in shards
            if there.get(shard.name) != shard.tar_bytes or index_name(shard.name) not in there
        ]

    def read_index(self, split: str, shard: str) -> bytes:
        """The bytes of a shard's index."""
        return self._store.read(f"{self.url_of(split)}/{index_name(shard)}")

    def claim(self, splits: Iterable[str], *, replaces: bool) -> None:
        """Makes sure that nothing else is in the store, before a conversion begins.

        Args:
            splits: names of the splits that will be written.
            replaces: remove the datasets that are there, and shards of conversions that were interrupted.

        Raises:
            ConversionError: there is something else.
        """
        if replaces:
            for split in sorted({"", *splits, *SPLIT_NAMES}):
                self._remove_dataset(split)
        elif found := self._store.names(self.url):
            what = "a converted dataset" if self._is_dataset(found) else f"{len(found)} other files and folders"
            raise ConversionError(
                f"{self.url} already holds {what}; choose another destination, or use --overwrite to replace an "
                f"earlier conversion in it.  If one was interrupted there, its staging folder is not {self.folder}"
            )

    def _is_dataset(self, names: Sequence[str]) -> bool:
        inside = (self._store.names(self.url_of(name)) for name in names if name in SPLIT_NAMES)
        return MANIFEST_NAME in names or any(MANIFEST_NAME in each for each in inside)

    def _remove_dataset(self, split: str) -> None:
        """Removes what conversions have written; the manifest goes first: with it the dataset seems whole."""
        url = self.url_of(split)
        there = self._store.sizes(url)
        own = {name for name in there if _OWN_NAMES.fullmatch(name)}
        if MANIFEST_NAME in there:
            with suppress(NotInStore, ShardError):
                for shard in Manifest.from_text(self._store.read(f"{url}/{MANIFEST_NAME}"), url).shards:
                    own |= set(_files_of(shard.name))
            self._store.remove(f"{url}/{MANIFEST_NAME}")
        for name in sorted(own & there.keys()):
            self._store.remove(f"{url}/{name}")

    def remove_shards(self, split: str, names: Iterable[str]) -> None:
        """Removes shards, with their indexes; those that are not there are passed over."""
        there = self._store.sizes(self.url_of(split))
        for file in (file for name in names for file in _files_of(name)):
            if file in there:
                self._store.remove(f"{self.url_of(split)}/{file}")

    def upload_manifests(self, manifests: Mapping[str, Manifest]) -> None:
        """Uploads the manifests, with which the datasets are whole.

        Raises:
            StoreError: shards are no longer in the store.
        """
        for split, manifest in manifests.items():
            if gone := self.missing(split, manifest.shards):
                raise StoreError(
                    f"{self.url_of(split)}/{gone[0]} is no longer in the store, and {len(gone) - 1} others; run the "
                    "same command again to upload them anew"
                )
        for split in manifests:
            self._store.upload(self.folder / split / MANIFEST_NAME, f"{self.url_of(split)}/{MANIFEST_NAME}")


def _files_of(shard: str) -> tuple[str, str, str]:
    return shard, index_name(shard), path_beside(Path(shard)).name


def upload_shard(folder: Path, name: str, url: str) -> None:
    """Uploads a finished shard with its indexes.

    Raises:
        StoreError: the store cannot be written.
    """
    store = RemoteFiles()
    for path in (folder / file for file in _files_of(name)):
        if path.exists():
            store.upload(path, f"{url}/{path.name}")
