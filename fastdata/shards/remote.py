"""Shards in a remote store, with a bounded cache on a local disk.

Life cycle of a shard; any deviation is a bug:

* Fetch.  One process downloads, under a lock that the system releases when it dies; others that want the shard wait.
  The bytes get their name only after their checksum has been compared; failures are tried again, with growing pauses.
* Use.  A shard in use is touched, so that the least recently used is known.
* Eviction.  Before a download, files go until there is room for it beside the downloads of others.  A reader that has a
  file open keeps reading it; one that comes too late fetches it again.
* Ahead.  A thread fetches the shards that `expect` named, as far as half of the cache beyond the latest one that was
  asked for.  It ends with its list, with the next list, or with the object; a forked child has none and fetches itself,
  so torch's worker processes fetch each for themselves what the parent has not fetched yet.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fastdata.errors import DatasetError, NotInStore, OptionError, ShardError, StoreError
from fastdata.files import locked, try_lock
from fastdata.shards.format import MANIFEST_NAME, Manifest, ShardIndex, crc32c, index_name
from fastdata.shards.inputs import expand_braces
from fastdata.shards.store import Shards, read_range

__all__ = ["RemoteShards"]


Result = TypeVar("Result")

_TRIES = 5
_FIRST_PAUSE_S = 0.5
_CHUNK_BYTES = 4 << 20
_LOOK_AGAIN_S = 0.05


class RemoteShards(Shards):
    """Tar files in a store that fsspec knows, and a folder for those in use.

    Args:
        urls: folders with a manifest, tar files, or patterns of tar files.
        cache: folder, shared by all processes of the machine; None is one in the user's cache.
        cache_bytes: most that tar files may take there.
    """

    def __init__(self, urls: Sequence[str], cache: str | os.PathLike[str] | None, cache_bytes: int) -> None:
        if not isinstance(cache_bytes, int) or cache_bytes < 1:
            raise OptionError(f"cache_bytes={cache_bytes!r} is not a number of bytes above 0")
        store = _Store()
        self.classes = None
        self._urls: list[str] = []
        self._index_crcs: list[int | None] = []
        for url in (one.rstrip("/") for each in urls for one in expand_braces(each)):
            if url.endswith(".tar"):
                self._urls.append(url)
                self._index_crcs.append(None)
                continue
            manifest = Manifest.from_text(store.read(f"{url}/{MANIFEST_NAME}"), url)
            self._take_classes(manifest.classes, url)
            self._urls += [f"{url}/{shard.name}" for shard in manifest.shards]
            self._index_crcs += [shard.index_crc32c for shard in manifest.shards]
        if not self._urls:
            raise DatasetError(f"no shards in {', '.join(urls)}")
        self._cache = _Cache(Path(cache) if cache is not None else _default_cache(), cache_bytes, store)
        self._progress: _Ahead | None = None
        self._stop_ahead: Any = None
        self._pid = os.getpid()

    def _take_classes(self, classes: list[str] | None, url: str) -> None:
        if self._urls and classes != self.classes:
            raise DatasetError(f"{url} has other classes than the shards before it, so their labels would not agree")
        self.classes = classes

    def __len__(self) -> int:
        return len(self._urls)

    def __repr__(self) -> str:
        return repr(self._urls[0].rpartition("/")[0])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None, "_stop_ahead": None}  # threads stay behind

    def name(self, number: int) -> str:
        """See `Shards.name`."""
        return self._urls[number]

    def path(self, number: int) -> str:
        """See `Shards.path`."""
        if self._progress is not None and self._pid == os.getpid():  # the thread is not in a forked child
            self._progress.reached(number)
        return str(self._cache.fetch(self._urls[number]))

    def read(self, number: int, offset: int, size: int) -> bytes:
        """See `Shards.read`."""
        for _ in range(_TRIES):
            try:
                return read_range(self.path(number), offset, size)
            except FileNotFoundError:  # evicted since
                continue
        raise StoreError(f"{self._urls[number]} is evicted as often as it is fetched; give the cache more room")

    def read_index(self, number: int) -> ShardIndex:
        """See `Shards.read_index`."""
        return self._cache.index(self._urls[number], self._index_crcs[number])

    def expect(self, numbers: Sequence[int]) -> None:
        """See `Shards.expect`: a thread fetches them ahead."""
        if self._stop_ahead is not None and self._pid == os.getpid():
            self._stop_ahead()
        self._pid = os.getpid()
        self._progress = _Ahead(self._cache, [self._urls[number] for number in numbers], numbers)
        self._stop_ahead = weakref.finalize(self, self._progress.stop)
        self._progress.start()

    def are_local(self) -> bool:
        """See `Shards.are_local`."""
        return False

    def fit_in_cache(self) -> bool:
        """See `Shards.fit_in_cache`."""
        return self._cache.holds_all(self._urls)


class _Ahead(threading.Thread):
    """Fetches shards before they are asked for."""

    def __init__(self, cache: _Cache, urls: Sequence[str], numbers: Sequence[int]) -> None:
        super().__init__(name="fastdata-fetch", daemon=True)
        self._cache, self._urls = cache, urls
        self._position = {number: position for position, number in enumerate(numbers)}
        self._changed = threading.Condition()
        self._reached, self._stopped = 0, False

    def reached(self, number: int) -> None:
        """The consumer has asked for a shard."""
        position = self._position.get(number, 0)
        if position > self._reached:
            with self._changed:
                self._reached = position
                self._changed.notify_all()

    def stop(self) -> None:
        """Ends the thread after the download under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def run(self) -> None:
        for position, url in enumerate(self._urls):
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._has_room(position))  # noqa: B023
                if self._stopped:
                    return
            try:
                self._cache.fetch(url)
            except (OSError, OptionError):
                return  # whoever needs the shard gets the error

    def _has_room(self, position: int) -> bool:
        between = self._urls[self._reached : position + 1]
        return sum(self._cache.tar_bytes(url) for url in between) <= self._cache.most_bytes / 2


class _Store:
    """Reads whole files from any fsspec URL, with patience."""

    def __init__(self) -> None:
        self._systems: dict[tuple[int, str], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_systems": {}}

    def read(self, url: str) -> bytes:
        """A small file."""
        return b"".join(self._patiently(url, lambda: list(self._chunks(url))))

    def download(self, url: str, to: Path) -> tuple[int, int]:
        """A large file; returns its size and checksum."""
        return self._patiently(url, lambda: self._copy(url, to))

    def _copy(self, url: str, to: Path) -> tuple[int, int]:
        crc = size = 0
        with open(to, "r+b") as file:
            for chunk in self._chunks(url):
                file.write(chunk)
                crc, size = crc32c(chunk, crc), size + len(chunk)
        return size, crc

    def _chunks(self, url: str) -> Iterator[bytes]:
        system, path = self._system(url)
        with system.open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def _system(self, url: str) -> tuple[Any, str]:
        import fsspec

        key = os.getpid(), url.rpartition("/")[0]  # connections do not survive a fork
        if key not in self._systems:
            fresh = not url.startswith("memory:")
            try:
                self._systems[key] = fsspec.core.url_to_fs(url, skip_instance_cache=fresh)[0]
            except (ImportError, ValueError) as error:
                raise StoreError(f"{url} cannot be opened: {error}") from error
        return self._systems[key], self._systems[key]._strip_protocol(url)

    def _patiently(self, url: str, work: Callable[[], Result]) -> Result:
        for attempt in range(_TRIES):
            try:
                return work()
            except StoreError:
                raise
            except FileNotFoundError as error:
                raise NotInStore(f"{url} is not in the store: {error}") from error
            except PermissionError as error:
                raise StoreError(f"{url} is not in the store: {type(error).__name__}: {error}") from error
            except Exception as error:  # every store's library has its own
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise
                last = error
                time.sleep(_FIRST_PAUSE_S * 2**attempt if attempt + 1 < _TRIES else 0)
        raise StoreError(
            f"{url} could not be read in {_TRIES} attempts ({type(last).__name__}: {last}); the store may be gone "
            "or the network down: try again later, what has been fetched stays"
        ) from last


class _Cache:
    """Copies of remote files in a folder, no more than so many bytes of them.

    A shard's name there contains its checksum, so one that was written anew is another one.
    """

    def __init__(self, folder: Path, most_bytes: int, store: _Store) -> None:
        self.most_bytes = most_bytes
        self._folder, self._store = folder, store
        self._facts: dict[str, tuple[int, int]] = {}  # size and checksum of each shard
        self._eviction_lock = folder / "eviction.lock"
        folder.mkdir(parents=True, exist_ok=True)

    def index(self, url: str, expected_crc: int | None) -> ShardIndex:
        """A shard's index: the copy, if it is what the manifest names, else what the store has."""
        name = index_name(url)
        place = self._folder / f"{_hash(url)}-{_file_name(name)}"
        data = place.read_bytes() if expected_crc is not None and place.exists() else None
        if data is None or crc32c(data) != expected_crc:
            data = self._store.read(name)
            if expected_crc not in (None, crc32c(data)):
                raise ShardError(
                    name,
                    "not the index that the manifest names; is the dataset being written?",
                    expected=f"checksum {expected_crc:08x}",
                    found=f"{crc32c(data):08x}",
                )
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(data)
            os.replace(file.name, place)
        index = ShardIndex.from_bytes(data, name)
        self._facts[url] = index.tar_bytes, index.tar_crc32c
        return index

    def tar_bytes(self, url: str) -> int:
        """The size of a shard whose index has been read."""
        return self._facts[url][0]

    def holds_all(self, urls: Sequence[str]) -> bool:
        """True when all these shards fit in together."""
        return sum(self.tar_bytes(url) for url in urls) <= self.most_bytes

    def fetch(self, url: str) -> Path:
        """The local copy of a shard, downloaded if it is not there."""
        size, crc = self._facts[url]
        place = self._folder / f"{_hash(url)}-{crc:08x}-{_file_name(url)}"
        if _is_there(place, size):
            return place
        self._folder.mkdir(parents=True, exist_ok=True)
        with locked(place.with_suffix(".lock")):
            if not _is_there(place, size):  # another process may have been quicker
                self._download(url, place)
        return place

    def _download(self, url: str, place: Path) -> None:
        expected = self._facts[url]
        partial = place.with_suffix(".partial")
        self._take_room(partial, expected[0], url)
        try:
            found = self._store.download(url, partial)
            if found != expected:  # once more: it may have been read while it was replaced
                found = self._store.download(url, partial)
            if found != expected:
                (size, crc), (found_size, found_crc) = expected, found
                raise ShardError(
                    url,
                    "not what its index says",
                    expected=f"{size} bytes, checksum {crc:08x}",
                    found=f"{found_size} bytes, checksum {found_crc:08x}",
                )
            with locked(self._eviction_lock):  # nobody counts while a file changes its name
                os.replace(partial, place)
        finally:
            partial.unlink(missing_ok=True)

    def _take_room(self, partial: Path, size: int, url: str) -> None:
        """Makes a file of a shard's size, once others have gone or been finished."""
        if size > self.most_bytes:
            raise OptionError(f"cache_bytes={self.most_bytes} does not hold one shard: {url} has {size} bytes")
        while True:
            with locked(self._eviction_lock):
                if self._evict(size):
                    with open(partial, "wb") as file:
                        file.truncate(size)
                    return
            time.sleep(_LOOK_AGAIN_S)  # downloads by other processes fill the cache

    def _evict(self, size: int) -> bool:
        """Removes what was used least recently until so many bytes are free; False when they cannot be."""
        for partial in self._folder.glob("*.partial"):
            if _is_abandoned(partial):
                partial.unlink(missing_ok=True)
        files = [(path, found) for path in self._folder.glob("*.tar") if (found := _stat(path)) is not None]
        under_way = [found.st_size for path in self._folder.glob("*.partial") if (found := _stat(path)) is not None]
        total = size + sum(under_way) + sum(found.st_size for _, found in files)
        for path, found in sorted(files, key=lambda entry: entry[1].st_mtime):
            if total <= self.most_bytes:
                break
            path.unlink(missing_ok=True)
            total -= found.st_size
        return total <= self.most_bytes


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


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastdata" / "shards"


def _is_abandoned(partial: Path) -> bool:
    """True when nobody holds the lock of a download."""
    with try_lock(partial.with_suffix(".lock")) as free:
        return free
