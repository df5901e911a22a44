"""Reads whole files from any store that fsspec supports; temporary failures are retried."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote, unquote

from fastdata.errors import NotInStore, ShardError, StoreError
from fastdata.limits import TooManyBytes, check_encoded_bytes
from fastdata.shards.format import crc32c
from fastdata.system.files import is_at

__all__ = ["RemoteFiles"]

Result = TypeVar("Result")

_TRIES = 5
_FIRST_PAUSE_S = 0.5
_CHUNK_BYTES = 4 << 20
_MOST_CAUSES = 20
_MISSING = (404, 410)
_PASSING = (408, 425, 429)  # of the statuses that blame the caller: too slow, too early, too often


class RemoteFiles:
    """Reads whole files at any fsspec URL, with retries."""

    def __init__(self) -> None:
        self._systems: dict[tuple[int, str], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_systems": {}}

    def read(self, url: str) -> bytes:
        """The bytes of a small file.

        Raises:
            StoreError: it cannot be read, or is larger than `MAX_ENCODED_BYTES`.
        """
        return self._patiently(url, lambda: self._whole(url))

    def _whole(self, url: str) -> bytes:
        data = bytearray()
        for chunk in self._chunks(url):
            data += chunk
            try:
                check_encoded_bytes(len(data), url)
            except TooManyBytes as error:
                raise StoreError(f"while it is read, {error}") from error
        return bytes(data)

    def read_checked(self, url: str, check: Callable[[bytes], Result]) -> Result:
        """Reads a small file as `check` does, once more if it is damaged: it may have been read while it was replaced.

        Args:
            url: URL of the file.
            check: makes something of the bytes, or raises ShardError.
        """
        try:
            return check(self.read(url))
        except ShardError:
            return check(self.read(url))

    def download(self, url: str, to: Path, expected_bytes: int) -> tuple[int, int]:
        """Downloads a large file to a local one; returns its size, at least `expected_bytes`, and its checksum.

        Raises:
            FileNotFoundError: the local file was removed, before the download or meanwhile.
        """
        with open(to, "r+b") as file:
            found = self._patiently(url, lambda: self._copy(url, file, expected_bytes))
            if not is_at(to, file):  # what has that name now is of another process
                raise FileNotFoundError(errno.ENOENT, "removed while it was downloaded", str(to))
        return found

    def copy_whole(self, url: str, to: Path) -> None:
        """Downloads a large file whose size is not known.

        Raises:
            StoreError: it cannot be read.
        """

        def copy() -> None:
            with open(to, "wb") as file:
                for chunk in self._chunks(url):
                    file.write(chunk)

        self._patiently(url, copy)

    def files_below(self, url: str) -> dict[str, int]:
        """Bytes of all files below a folder of a store, by their paths there.

        Raises:
            StoreError: the store cannot be read.
        """

        def found() -> dict[str, int]:
            system, place = self._system(f"{url}/")
            system.invalidate_cache()
            below = place.rstrip("/")
            files = system.find(below, detail=True)
            return {_named(url, name.removeprefix(below).lstrip("/")): each["size"] for name, each in files.items()}

        return self._patiently(url, found)

    @staticmethod
    def url_of(url: str, name: str) -> str:
        """The URL of a file below a folder, whose path there is known."""
        return f"{url.rstrip('/')}/{quote(name) if _is_quoted(url) else name}"

    def matching(self, pattern: str) -> list[str]:
        """URLs of the files that a pattern with `*` means, sorted; a URL without one is its own.

        Raises:
            StoreError: the store cannot be read.
        """
        if "*" not in pattern:
            return [pattern]
        begin = pattern.index("://") + 3

        def found() -> list[str]:
            system, place = self._system(pattern)
            system.invalidate_cache()
            return sorted(name if "://" in name else pattern[:begin] + name for name in system.glob(place))

        return self._patiently(pattern, found)

    def _copy(self, url: str, file: IO[bytes], expected_bytes: int) -> tuple[int, int]:
        crc = size = 0
        file.seek(0)
        for chunk in self._chunks(url):
            file.write(chunk)
            crc, size = crc32c(chunk, crc), size + len(chunk)
            if size > expected_bytes:  # another file, as its size will tell
                break
        file.flush()
        if size < expected_bytes:
            raise ConnectionError(f"the download ended after {size} of {expected_bytes} bytes")
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
            except NotImplementedError as error:
                raise StoreError(f"{url} cannot be read: this kind of store does not do that ({error})") from error
            except Exception as error:  # every store's library has its own
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise
                _raise_if_final(url, error)
                last = error
                time.sleep(_FIRST_PAUSE_S * 2**attempt if attempt + 1 < _TRIES else 0)
        raise StoreError(
            f"{url} could not be read in {_TRIES} attempts ({_in_words(last)}); the store or the network may be "
            "down: try again later, shards that were downloaded stay in the cache"
        ) from last


def _raise_if_final(url: str, error: Exception) -> None:
    """Raises what asking again would not change.

    Libraries say "not found" of much that is not: fsspec's HTTP raises FileNotFoundError for a busy server, too.  What
    the store answered is told by the errors from which that was raised.
    """
    chain = list(_causes(error))
    status = next((found for one in chain if (found := _status(one)) is not None), None)
    if status in _MISSING or (status is None and isinstance(error, FileNotFoundError) and not any(map(_is_net, chain))):
        raise NotInStore(f"{url} is not in the store: {error}") from error
    refused = status is not None and 400 <= status < 500 and status not in _PASSING
    if refused or (status is None and isinstance(error, PermissionError)):
        raise StoreError(
            f"the store refused access to {url} ({_in_words(error)}); check the URL and the credentials"
        ) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those from which it was raised."""
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error of aiohttp, gcsfs, requests or botocore is about."""
    answer: Any = getattr(error, "response", None)
    if isinstance(answer, dict):
        found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif type(error).__module__.startswith("aiohttp"):  # its `code` is 400 for a body that was cut short, too
        found = getattr(error, "status", None)
    else:
        found = getattr(error, "code", getattr(answer, "status_code", None))
    return found if isinstance(found, int) and 100 <= found < 600 else None


def _is_net(error: BaseException) -> bool:
    """True for what says that a store could not be asked, not what it answered."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError):
        return False
    if type(error) is OSError and error.errno is None:  # as pyarrow says that a file is damaged
        return False
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError | asyncio.TimeoutError) or library in (
        "aiohttp",
        "botocore",
        "requests",
        "urllib3",
    )


def _is_quoted(url: str) -> bool:
    """True where the paths of URLs are quoted, as in those of other stores they are not."""
    return url.startswith(("http://", "https://"))


def _named(url: str, name: str) -> str:
    """A file's path below a folder at a URL, as it is on a disk."""
    return unquote(name) if _is_quoted(url) else name


def _in_words(error: Exception) -> str:
    """The reason as text: the first network error or HTTP status in the chain of causes, else the error itself."""
    reason = next((one for one in _causes(error) if _status(one) is not None or _is_net(one)), error)
    return f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__
