"""A bounded local cache for shards of a remote store, shared by all processes of the machine."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from fastdata.errors import OptionError, ShardError, StoreError
from fastdata.jpeg_index.index_file import SUFFIX, index_beside, is_beside, path_beside
from fastdata.shards.format import ShardIndex, crc32c, file_crc32c, index_name
from fastdata.shards.part_files import read_shard_file
from fastdata.shards.remote_files import RemoteFiles
from fastdata.system.files import cache_folder, locked, try_lock
from fastdata.system.stack_level import users_level

__all__ = ["ShardCache"]

Result = TypeVar("Result")

_LOOK_AGAIN_S = 0.05
_TRIES = 6  # while something else removes files
_NEW = "fastdata-new-"  # what the names of small files begin with while they are written
_ABANDONED_S = 3600.0  # age from which on their writers are known to have been killed


class ShardCache:
    """Copies of remote shards in a folder, up to `most_bytes`; remote.py describes their life cycle.

    The name of a copy contains the shard's checksum, so a shard that was written again gets a new copy.

    Args:
        folder: the cache folder, shared by all processes of the machine; None for a folder in the user's cache.
        most_bytes: largest total size of the tar files.
        store: the remote store.
    """

    def __init__(self, folder: Path | None, most_bytes: int, store: RemoteFiles) -> None:
        self.most_bytes = most_bytes
        self.folder = folder if folder is not None else cache_folder() / "shards"
        self._store = store
        self._beyond_help: set[str] = set()
        self._facts: dict[str, tuple[int, int]] = {}  # size and checksum of each shard
        self._jpeg_facts: dict[str, tuple[int, int]] = {}  # the same of the indexes of its JPEGs
        self._without_jpeg_indexes: set[str] = set()  # shards whose indexes this process could not get
        self._eviction_lock = self.folder / "eviction.lock"
        self._make_folder()

    def index(self, url: str, expected_crc: int | None, *, local: str | None = None) -> ShardIndex:
        """A shard's index: the local copy if it has the checksum in the manifest, else downloaded from the store.

        Args:
            url: the shard.
            expected_crc: checksum of the index in the manifest, or None.
            local: the index file, where it is not in the store.
        """
        name = index_name(url)
        if local is not None:
            index = ShardIndex.from_bytes(read_shard_file(local), local)
            self._facts[url], self._jpeg_facts[url] = (index.tar_bytes, index.tar_crc32c), (0, 0)
            return index
        place = self.folder / f"{_hash(url)}-{_file_name(name)}"
        data = _bytes_of(place) if expected_crc is not None else None
        if data is not None and crc32c(data) == expected_crc:
            index = ShardIndex.from_bytes(data, name)
        else:
            data, index = self._store.read_checked(name, lambda found: _checked_index(found, name, expected_crc))
            self._despite_removals(url, lambda: self._put(place, data))
        self._facts[url] = index.tar_bytes, index.tar_crc32c
        self._jpeg_facts[url] = index.jpeg_bytes, index.jpeg_crc32c
        return index

    def tar_bytes(self, url: str) -> int:
        """The size of a shard whose index has been read."""
        return self._facts[url][0]

    def holds_all(self, urls: Sequence[str]) -> bool:
        """True if all these shards fit into the cache together."""
        return sum(self.tar_bytes(url) for url in urls) <= self.most_bytes

    def shards_held(self, urls: Sequence[str]) -> int:
        """About how many of these shards fit into the cache at once."""
        return int(len(urls) * min(1.0, self.most_bytes / max(1, sum(map(self.tar_bytes, urls)))))

    def fetch(self, url: str) -> tuple[Path, bool]:
        """The path of a shard's local copy, downloaded if necessary; and whether it was downloaded."""
        place, size = self._place(url), self.tar_bytes(url)
        if _is_there(place, size) and self._has_jpeg_indexes(url, place):
            return place, False
        return place, self._despite_removals(url, lambda: self._fetch(url, place, size))

    def _fetch(self, url: str, place: Path, size: int) -> bool:
        """True if a shard was downloaded."""
        with locked(place.with_suffix(".lock")):
            if not (was_there := _is_there(place, size)):  # else another process was quicker
                self._download(url, place)
            elif not self._has_jpeg_indexes(url, place):
                self._download_jpeg_indexes(url, place)
        return not was_there

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            if self.folder.is_file():
                raise
            # else it was removed while mkdir looked at what is there

    def _despite_removals(self, url: str, work: Callable[[], Result]) -> Result:
        """Does what writes to the folder, again if something else removes files or the folder meanwhile."""
        for attempt in range(_TRIES):
            try:
                self._make_folder()
                return work()
            except FileNotFoundError as error:  # never the store's, which are StoreErrors
                last = error
                time.sleep(_LOOK_AGAIN_S * 2**attempt if attempt + 1 < _TRIES else 0)
        raise StoreError(
            f"{url} could not be kept in the cache in {_TRIES} attempts: something empties the cache folder "
            f"{self.folder} while it is used ({last.filename} was removed); stop that, or name another cache_dir"
        ) from last

    def _has_jpeg_indexes(self, url: str, place: Path) -> bool:
        """True if the indexes of a shard's JPEGs need not be downloaded."""
        return url in self._without_jpeg_indexes or is_beside(place, self._jpeg_facts[url][0])

    def renew(self, url: str) -> bool:
        """Downloads a shard again if its local copy is damaged; readers that have the old file open keep reading it.

        Returns:
            True if the shard should be read again; False if the store's own copy is known to be damaged.

        Raises:
            ShardError: the store's own copy is damaged as well.
        """
        if url in self._beyond_help:
            return False
        place = self._place(url)
        try:
            self._despite_removals(url, lambda: self._renew(url, place))
        except ShardError:
            self._beyond_help.add(url)
            raise
        return True

    def _renew(self, url: str, place: Path) -> None:
        with locked(place.with_suffix(".lock")):
            if place.exists() and file_crc32c(place) != self._facts[url][1]:  # else another reader was quicker
                self._download(url, place)

    def _put(self, place: Path, data: bytes) -> None:
        """Writes a small file, which other processes may be writing at this moment, too."""
        number, name = tempfile.mkstemp(dir=self.folder, prefix=_NEW)
        try:
            with open(number, "wb") as file:
                file.write(data)
            os.replace(name, place)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise

    def _place(self, url: str) -> Path:
        return self.folder / f"{_hash(url)}-{self._facts[url][1]:08x}-{_file_name(url)}"

    def _download(self, url: str, place: Path) -> None:
        expected = self._facts[url]
        partial = place.with_suffix(".partial")
        self._take_room(partial, url)
        try:
            found = self._store.download(url, partial, expected[0])
            if found != expected:  # once more: it may have been read while it was replaced
                found = self._store.download(url, partial, expected[0])
            if found != expected:
                (size, crc), (found_size, found_crc) = expected, found
                raise ShardError(
                    url,
                    "the copy in the store does not match its index (copy the shard to the store again)",
                    expected=f"{size} bytes, checksum {crc:08x}",
                    found=f"{found_size} bytes, checksum {found_crc:08x}",
                )
            self._download_jpeg_indexes(url, place)
            with locked(self._eviction_lock):  # nobody counts while a file changes its name
                os.replace(partial, place)
        finally:
            partial.unlink(missing_ok=True)

    def _download_jpeg_indexes(self, url: str, place: Path) -> None:
        """The file beside the shard, if there is one; without it images are decoded, too, for more work."""
        expected, there, to = self._jpeg_facts[url], index_beside(url), path_beside(place)
        if self._has_jpeg_indexes(url, place):
            return
        self._without_jpeg_indexes.add(url)  # unless it succeeds
        try:
            data = self._store.read_checked(there, lambda found: _checked_jpeg_indexes(found, there, expected))
        except (StoreError, ShardError) as error:
            warnings.warn(f"JPEGs are decoded without their index: {error}", stacklevel=users_level())
            return
        try:
            self._put(to, data)
        except FileNotFoundError:  # the folder was removed
            self._without_jpeg_indexes.discard(url)
            raise
        except OSError as error:
            warnings.warn(
                f"JPEGs are decoded without their index, for which there is no room: {error}", stacklevel=users_level()
            )
            return
        self._without_jpeg_indexes.discard(url)

    def _take_room(self, partial: Path, url: str) -> None:
        """Makes a file of a shard's size, once others have gone or been finished."""
        size, index_size = self.tar_bytes(url), self._jpeg_facts[url][0]
        if size > self.most_bytes:
            raise OptionError(f"cache_bytes={self.most_bytes} is too small for one shard: {url} has {size} bytes")
        while True:
            with locked(self._eviction_lock):
                if self._evict(min(size + index_size, self.most_bytes)):
                    with open(partial, "wb") as file:
                        file.truncate(size)
                    return
            time.sleep(_LOOK_AGAIN_S)  # downloads by other processes fill the cache

    def _evict(self, size: int) -> bool:
        """Removes what was used least recently until so many bytes are free; False when they cannot be."""
        for partial in self.folder.glob("*.partial"):
            if _is_abandoned(partial):
                partial.unlink(missing_ok=True)
        for new in self.folder.glob(f"{_NEW}*"):
            if (found := _stat(new)) is not None and time.time() - found.st_mtime > _ABANDONED_S:
                new.unlink(missing_ok=True)
        for beside in self.folder.glob(f"*{SUFFIX}"):  # of tar files that are gone, or come at this moment
            if not any(beside.with_suffix(suffix).exists() for suffix in (".tar", ".partial")):
                beside.unlink(missing_ok=True)
        files = [(path, found) for path in self.folder.glob("*.tar") if (found := _stat(path)) is not None]
        under_way = [found.st_size for path in self.folder.glob("*.partial") if (found := _stat(path)) is not None]
        indexes = [found.st_size for path, _ in files if (found := _stat(path_beside(path))) is not None]
        total = size + sum(under_way) + sum(found.st_size for _, found in files) + sum(indexes)
        for path, found in sorted(files, key=lambda entry: entry[1].st_mtime):
            if total <= self.most_bytes:
                break
            path.unlink(missing_ok=True)
            beside = path_beside(path)
            total -= found.st_size + (index.st_size if (index := _stat(beside)) is not None else 0)
            beside.unlink(missing_ok=True)
        return total <= self.most_bytes


def _bytes_of(path: Path) -> bytes | None:
    try:
        return read_shard_file(path)
    except FileNotFoundError:
        return None


def _checked_index(data: bytes, name: str, expected_crc: int | None) -> tuple[bytes, ShardIndex]:
    """Returns the bytes of an index, and the index.

    Raises:
        ShardError: the index is damaged, or does not have the checksum in the manifest.
    """
    if expected_crc not in (None, crc32c(data)):
        raise ShardError(
            name,
            "its checksum is not the one in the manifest (is the dataset still being written?)",
            expected=f"checksum {expected_crc:08x}",
            found=f"{crc32c(data):08x}",
        )
    return data, ShardIndex.from_bytes(data, name)


def _checked_jpeg_indexes(data: bytes, name: str, expected: tuple[int, int]) -> bytes:
    if (found := (len(data), crc32c(data))) != expected:
        raise ShardError(
            name,
            "it does not have the checksum in the index of its shard (copy it to the store again)",
            expected=f"{expected[0]} bytes, checksum {expected[1]:08x}",
            found=f"{found[0]} bytes, checksum {found[1]:08x}",
        )
    return data


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _is_there(place: Path, size: int) -> bool:
    found = _stat(place)
    if found is None or found.st_size != size:
        return False
    if time.time() - found.st_mtime > 1:
        with suppress(FileNotFoundError):  # evicted at this moment; whoever opens it fetches it again
            os.utime(place)
    return True


def _hash(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _file_name(url: str) -> str:
    return re.sub(r"[^\w.-]", "_", url.rpartition("/")[2])


def _is_abandoned(partial: Path) -> bool:
    """True when nobody holds the lock of a download."""
    with try_lock(partial.with_suffix(".lock")) as free:
        return free
