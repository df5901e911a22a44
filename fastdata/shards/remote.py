"""Shards in a remote store, with a bounded cache on a local disk.

Life cycle of a shard; any deviation is a bug:

* Fetch.  One process downloads, under a lock that the system releases when it dies; others that want the shard wait.
  The bytes get their name only after their checksum has been compared; failures are tried again, with growing pauses.
* Use.  A shard in use is touched, so that the least recently used is known.
* Eviction.  Before a download, files go until there is room.  A reader that has a file open keeps reading it; one that
  comes too late fetches it again.
* Ahead.  A thread fetches the shards that `expect` named, as far as half of the cache beyond the latest one that was
  asked for.  It ends with its list, with the next list, or with the object; a forked child has none and fetches itself.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastdata.errors import OptionError, ShardError, StoreError
from fastdata.shards.format import MANIFEST_NAME, Manifest, ShardIndex, crc32c, index_name
from fastdata.shards.inputs import expand_braces
from fastdata.shards.store import Shards, read_range

__all__ = ["RemoteShards"]

Result = TypeVar("Result")

_TRIES = 5
_FIRST_PAUSE_S = 0.5
_CHUNK_BYTES = 4 << 20


class RemoteShards(Shards):
    """Tar files in a store that fsspec knows, and a folder for those in use.

    Args:
        urls: folders with a manifest, tar files, or patterns of tar files.
        cache: folder, shared by all processes of the machine; None is one in the user's cache.
        cache_bytes: most that tar files may take there.
    """

    def __init__(self, urls: Sequence[str], cache: str | os.PathLike[str] | None, cache_bytes: int) -> None:
        self._store = _Store()
        self.classes, self._urls = None, []
        for url in (one for each in urls for one in expand_braces(each)):
            if url.endswith(".tar"):
                self._urls.append(url)
                continue
            manifest = Manifest.from_text(self._store.read(f"{url.rstrip('/')}/{MANIFEST_NAME}"), url)
            self.classes = manifest.classes
            self._urls += [f"{url.rstrip('/')}/{shard.name}" for shard in manifest.shards]
        self._cache = _Cache(Path(cache) if cache is not None else _default_cache(), cache_bytes, self._store)
        self._progress: _Ahead | None = None
        self._stop_ahead: Any = None

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
        if self._progress is not None:
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
        return self._cache.index(self._urls[number])

    def expect(self, numbers: Iterable[int]) -> None:
        """See `Shards.expect`: a thread fetches them ahead."""
        if self._stop_ahead is not None:
            self._stop_ahead()
        wanted = list(dict.fromkeys(numbers))
        self._progress = _Ahead(self._cache, [self._urls[number] for number in wanted], wanted)
        self._stop_ahead = weakref.finalize(self, self._progress.stop)
        self._progress.start()

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
        with open(to, "wb") as file:
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

        protocol = url.partition("://")[0]
        key = os.getpid(), protocol  # connections do not survive a fork
        if key not in self._systems:
            try:
                self._systems[key] = fsspec.core.url_to_fs(url, skip_instance_cache=protocol != "memory")[0]
            except (ImportError, ValueError) as error:
                raise StoreError(f"{url} cannot be opened: {error}") from error
        return self._systems[key], url if protocol in ("http", "https") else url.partition("://")[2]

    def _patiently(self, url: str, work: Callable[[], Result]) -> Result:
        for attempt in range(_TRIES):
            try:
                return work()
            except StoreError:
                raise
            except (FileNotFoundError, PermissionError) as error:
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
    """Copies of remote files in a folder, no more than so many bytes of them."""

    def __init__(self, folder: Path, most_bytes: int, store: _Store) -> None:
        self.most_bytes = most_bytes
        self._folder, self._store = folder, store
        self._indices: dict[str, ShardIndex] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_indices": {}}

    def index(self, url: str) -> ShardIndex:
        """A shard's index, which is small and stays."""
        if url not in self._indices:
            place = self._place(index_name(url))
            if not place.exists():
                data = self._store.read(index_name(url))
                ShardIndex.from_bytes(data, index_name(url))
                with _locked(self._lock_of(url)):
                    partial = place.with_suffix(".partial")
                    partial.write_bytes(data)
                    os.replace(partial, place)
            index = ShardIndex.from_bytes(place.read_bytes(), index_name(url))
            self._indices[url] = ShardIndex(index.records[:0], b"", index.tar_bytes, index.tar_crc32c)
            return index
        return ShardIndex.from_bytes(self._place(index_name(url)).read_bytes(), index_name(url))

    def tar_bytes(self, url: str) -> int:
        """The size of a shard, without reading its index again."""
        return self._indices[url].tar_bytes if url in self._indices else self.index(url).tar_bytes

    def holds_all(self, urls: Sequence[str]) -> bool:
        """True when all these shards fit in together."""
        return sum(self.tar_bytes(url) for url in urls) <= self.most_bytes

    def fetch(self, url: str) -> Path:
        """The local copy of a shard, downloaded if it is not there."""
        place = self._place(url)
        if self._is_there(place, url):
            return place
        with _locked(self._lock_of(url)):
            if not self._is_there(place, url):  # another process may have been quicker
                self._download(url, place)
        return place

    def _is_there(self, place: Path, url: str) -> bool:
        try:
            found = place.stat()
        except FileNotFoundError:
            return False
        if time.time() - found.st_mtime > 1:
            os.utime(place)
        return found.st_size == self.tar_bytes(url)

    def _download(self, url: str, place: Path) -> None:
        index = self._indices.get(url) or self.index(url)
        self._make_room(index.tar_bytes, url)
        partial = place.with_suffix(".partial")
        try:
            for attempt in (1, 2):
                size, crc = self._store.download(url, partial)
                if (size, crc) == (index.tar_bytes, index.tar_crc32c):
                    os.replace(partial, place)
                    return
                if attempt == 2:
                    expected, found = (
                        f"{s} bytes, checksum {c:08x}" for s, c in ((index.tar_bytes, index.tar_crc32c), (size, crc))
                    )
                    raise ShardError(url, "not what its index says", expected=expected, found=found)
        finally:
            partial.unlink(missing_ok=True)

    def _make_room(self, size: int, url: str) -> None:
        if size > self.most_bytes:
            raise OptionError(f"cache_bytes={self.most_bytes} does not hold one shard: {url} has {size} bytes")
        with _locked(self._folder / "eviction.lock"):
            there = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self._folder.glob("*.tar"))
            total = sum(found for _, found, _ in there) + size
            for _, found, path in there:
                if total <= self.most_bytes:
                    return
                path.unlink(missing_ok=True)
                total -= found

    def _place(self, url: str) -> Path:
        name = re.sub(r"[^\w.-]", "_", url.rpartition("/")[2])
        return self._folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"

    def _lock_of(self, url: str) -> Path:
        return self._place(url).with_suffix(".lock")


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastdata" / "shards"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock among processes; the system lets go of it when one dies."""
    with open(path, "w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:  # Windows: two processes may fetch the same file, each under its own eyes
            pass
        yield
