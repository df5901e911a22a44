"""Conversion into a remote store: each shard is uploaded when it is finished, and then leaves the local disk.

A staging folder on this machine stands for the destination until the end.  It holds the shards that are being written,
the index and the note of every shard, and the lock; so an interrupted conversion goes on there, and what has been
uploaded is neither made nor sent again.  The manifests are uploaded last: a dataset in the store that has one is whole.
Two machines that convert into one URL do not notice each other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from fastdata.errors import ConversionError, NotInStore, OptionError
from fastdata.jpeg_index.index_file import path_beside
from fastdata.shards.conversion.folders import SPLIT_NAMES
from fastdata.shards.format import MANIFEST_NAME, Manifest, crc32c, index_name
from fastdata.shards.remote_files import RemoteFiles
from fastdata.system.files import cache_folder

__all__ = ["RemoteDestination", "is_url", "upload_shard"]


def is_url(place: str | os.PathLike[str]) -> bool:
    """True for URLs; a path may have made one slash of two, and C:/ is a disk."""
    return re.match(r"[A-Za-z][\w+.-]+:/", os.fspath(place)) is not None


class RemoteDestination:
    """A destination in a store that fsspec can write.

    Attributes:
        url: the destination.
        folder: its staging folder.

    Args:
        url: URL of a folder.
        staging: local folder for staging; None for one in the user's cache.

    Raises:
        OptionError: it is a path that was a URL.
    """

    def __init__(self, url: str, staging: str | os.PathLike[str] | None = None) -> None:
        if "://" not in url:
            raise OptionError(f"{url} is a URL that has lost a slash as a path; pass it as text")
        self.url = url.rstrip("/")
        default = cache_folder() / "conversions" / f"{crc32c(self.url.encode()):08x}"
        self.folder = Path(staging) if staging is not None else default
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
        sizes = self._store.sizes(self.url_of(split))
        return found if all(sizes.get(shard.name) == shard.tar_bytes for shard in found.shards) else None

    def read_index(self, split: str, shard: str) -> bytes:
        """The bytes of a shard's index."""
        return self._store.read(f"{self.url_of(split)}/{index_name(shard)}")

    def claim(self, splits: Iterable[str], *, replaces: bool) -> None:
        """Makes sure that nothing else is in the store, before a conversion begins.

        Args:
            splits: names of the splits that will be written.
            replaces: remove the datasets that are there.

        Raises:
            ConversionError: there is something else.
        """
        if replaces:
            for split in sorted({"", *splits, *SPLIT_NAMES}):
                self._remove_dataset(split)
            return
        if found := [name for split in {"", *splits} for name in self._store.sizes(self.url_of(split))]:
            what = "a converted dataset" if MANIFEST_NAME in found else f"{len(found)} other files"
            raise ConversionError(
                f"{self.url} already holds {what}; choose another destination, or use --overwrite to replace an "
                f"earlier conversion in it.  If one was interrupted there, its staging folder is not {self.folder}"
            )

    def _remove_dataset(self, split: str) -> None:
        """Removes what a conversion has written, by its manifest, which goes first: with it the dataset seems whole."""
        url = self.url_of(split)
        try:
            manifest = Manifest.from_text(self._store.read(f"{url}/{MANIFEST_NAME}"), url)
        except NotInStore:
            return
        self._store.remove(f"{url}/{MANIFEST_NAME}")
        self.remove_shards(split, [shard.name for shard in manifest.shards])

    def remove_shards(self, split: str, names: Iterable[str]) -> None:
        """Removes shards, with their indexes; those that are not there are passed over."""
        there = self._store.sizes(self.url_of(split))
        for name in names:
            for file in (name, index_name(name), path_beside(Path(name)).name):
                if file in there:
                    self._store.remove(f"{self.url_of(split)}/{file}")

    def upload_manifests(self, splits: Iterable[str]) -> None:
        """Uploads the manifests, with which the datasets are whole."""
        for split in splits:
            self._store.upload(self.folder / split / MANIFEST_NAME, f"{self.url_of(split)}/{MANIFEST_NAME}")


def upload_shard(folder: Path, name: str, url: str) -> None:
    """Uploads a finished shard with its indexes.

    Raises:
        StoreError: the store cannot be written.
    """
    store, beside = RemoteFiles(), path_beside(folder / name)
    for path in (folder / name, folder / index_name(name), *([beside] if beside.exists() else [])):
        store.upload(path, f"{url}/{path.name}")
