"""Shards in a remote store, with a bounded cache on a local disk.

Life cycle of a shard; any deviation is a bug:

* Fetch.  One process downloads a shard, under a lock that the system releases if the process dies; others that need the
  shard wait.  The file gets its final name only after its checksum was compared; failures are retried, with growing
  pauses.
* Use.  Reading a shard updates the time of its file, so that the least recently used one is known.
* Damage.  A copy with an image whose checksum is wrong is downloaded again once, and replaced by renaming; if the
  store's copy is damaged as well, that is an error.
* Removal by others.  If something else removes files or the folder, they are made again: the shard is downloaded again
  a few times, with growing pauses, and then an error says that something empties the folder.
* Eviction.  Before a download, files are removed until it fits beside the downloads of other processes.  A reader that
  has a removed file open keeps reading it; one that opens it later downloads it again.
* Prefetch.  A thread downloads the shards that `expect` named, up to half of the cache ahead of the latest shard that
  was asked for.  It ends with its list, with the next list, or with the object.  A forked child has no such thread:
  each of torch's worker processes downloads by itself what the parent has not downloaded yet.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fastdata.errors import DatasetError, OptionError, StoreError
from fastdata.shards.cache import ShardCache
from fastdata.shards.format import MANIFEST_NAME, Manifest, ShardIndex
from fastdata.shards.patterns import expand_braces, refuse_compressed
from fastdata.shards.remote_files import RemoteFiles
from fastdata.shards.store import Shards, read_range
from fastdata.system.stack_level import users_level

__all__ = ["RemoteShards"]

_TRIES = 5
_REFETCHES_UNTIL_WARNED = 4  # a few happen when threads of one batch are far apart


class RemoteShards(Shards):
    """Tar files in a remote store that fsspec can read, with a local cache.

    Args:
        urls: folders with a manifest, tar files, or patterns of tar files.
        cache: cache folder, shared by all processes of the machine; None for a folder in the user's cache.
        cache_bytes: largest total size of the cached tar files.
        indexes: local index files by URL, of tar files that have none beside them.
    """

    def __init__(
        self,
        urls: Sequence[str],
        cache: str | os.PathLike[str] | None,
        cache_bytes: int,
        *,
        indexes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if not isinstance(cache_bytes, int) or cache_bytes < 1:
            raise OptionError(f"cache_bytes={cache_bytes!r} is not a positive integer")
        refuse_compressed(urls)
        store = RemoteFiles()
        self._indexes = dict(indexes)
        self.classes = None
        self._urls: list[str] = []
        self._index_crcs: list[int | None] = []
        for url in (one.rstrip("/") for each in urls for one in expand_braces(each)):
            if url.endswith(".tar"):
                self._urls.append(url)
                self._index_crcs.append(None)
                continue
            place = f"{url}/{MANIFEST_NAME}"
            manifest = store.read_checked(place, partial(Manifest.from_text, name=place))
            if manifest.tars is not None:
                raise DatasetError(
                    f"{url} has the indexes of tar files in {manifest.tars}; copy it to a local folder and open that"
                )
            self._take_classes(manifest.classes, url)
            self._urls += [f"{url}/{shard.name}" for shard in manifest.shards]
            self._index_crcs += [shard.index_crc32c for shard in manifest.shards]
        if not self._urls:
            raise DatasetError(f"no shards in {', '.join(urls)}")
        self._cache = ShardCache(Path(cache) if cache is not None else None, cache_bytes, store)
        self._refetches = _Refetches(len(self._urls))
        self._progress: _Ahead | None = None
        self._stop_ahead: Any = None
        self._pid = os.getpid()

    def _take_classes(self, classes: list[str] | None, url: str) -> None:
        if self._urls and classes != self.classes:
            raise DatasetError(
                f"{url} has other classes than the shards before it, so their labels would not agree; open them as "
                "separate datasets"
            )
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
        url = self._urls[number]
        was_there = self._refetches.seen_before(number)  # asked first, since another thread may see it meanwhile
        path, downloaded = self._cache.fetch(url)
        if self._refetches.are_many_with(number, again=was_there and downloaded):
            self._warn_of_refetches(url)
        return str(path)

    def _warn_of_refetches(self, url: str) -> None:
        reason = (
            f"cache_bytes={self._cache.most_bytes} holds about {self._cache.shards_held(self._urls)} of "
            f"{len(self._urls)} shards; use EpochSampler(order='windowed') or a larger cache_bytes"
        )
        if self.fit_in_cache():
            reason = f"something else removes files from the cache folder {self._cache.folder}; stop that"
        warnings.warn(
            f"{url} and other shards were downloaded again, since they had been removed from the cache before all "
            f"their samples were read: {reason}",
            stacklevel=users_level(),
        )

    def read(self, number: int, offset: int, size: int) -> bytes:
        """See `Shards.read`."""
        for _ in range(_TRIES):
            try:
                return read_range(self.path(number), offset, size)
            except FileNotFoundError:  # evicted since
                continue
        raise StoreError(
            f"{self._urls[number]} was removed from the cache {_TRIES} times before it could be read; increase "
            f"cache_bytes, or find what empties the cache folder {self._cache.folder}"
        )

    def read_index(self, number: int) -> ShardIndex:
        """See `Shards.read_index`."""
        url = self._urls[number]
        return self._cache.index(url, self._index_crcs[number], local=self._indexes.get(url))

    def expect(self, numbers: Sequence[int]) -> None:
        """See `Shards.expect`: a thread downloads them ahead."""
        if self._stop_ahead is not None and self._pid == os.getpid():
            self._stop_ahead()
        self._pid = os.getpid()
        self._refetches.begin_anew()  # every epoch fetches every shard once
        self._progress = _Ahead(self._cache, [self._urls[number] for number in numbers], numbers)
        self._stop_ahead = weakref.finalize(self, self._progress.stop)
        self._progress.start()

    def renew(self, number: int) -> bool:
        """See `Shards.renew`."""
        return self._cache.renew(self._urls[number])

    def are_local(self) -> bool:
        """See `Shards.are_local`."""
        return False

    def fit_in_cache(self) -> bool:
        """See `Shards.fit_in_cache`."""
        return self._cache.holds_all(self._urls)


class _Ahead(threading.Thread):
    """Downloads shards before they are asked for."""

    def __init__(self, cache: ShardCache, urls: Sequence[str], numbers: Sequence[int]) -> None:
        super().__init__(name="fastdata-fetch", daemon=True)
        self._cache, self._urls = cache, urls
        self._position = {number: position for position, number in enumerate(numbers)}
        self._changed = threading.Condition()
        self._reached, self._stopped = 0, False

    def reached(self, number: int) -> None:
        """Notes that the consumer has asked for a shard."""
        position = self._position.get(number, 0)
        if position > self._reached:
            with self._changed:
                self._reached = position
                self._changed.notify_all()

    def stop(self) -> None:
        """Ends the thread after the current download."""
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


class _Refetches:
    """Notices that the cache is too small for the order of reading: removed shards are downloaded again.

    Starting the next pass after a pass over all shards is not such an order, so what was seen is then forgotten.
    """

    def __init__(self, shards: int) -> None:
        self._shards, self._seen, self._count, self._told = shards, set[int](), 0, False

    def begin_anew(self) -> None:
        """Begins another epoch."""
        self._seen, self._count = set(), 0

    def seen_before(self, number: int) -> bool:
        """True for a shard that was there in this epoch."""
        return number in self._seen

    def are_many_with(self, number: int, *, again: bool) -> bool:
        """Notes that a shard was read, and whether it was downloaded again; True once, when that is too often."""
        if again and len(self._seen) == self._shards:
            self._seen, again = set(), False
        self._seen.add(number)
        self._count += again
        if self._told or self._count < _REFETCHES_UNTIL_WARNED:
            return False
        self._told = True
        return True
