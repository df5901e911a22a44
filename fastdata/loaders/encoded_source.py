"""Where the bytes of an image are that stays encoded: in a file that can be read again, or in memory."""

from __future__ import annotations

import io
import os
import stat
from typing import Any, TypeGuard

from fastdata.loaders.backend import Encoded
from fastdata.loaders.per_image import inspect
from fastdata.views.header import ImageHeader, has_whole_scans, parse_header

__all__ = ["EncodedSource", "find_source"]

_JPEG = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_HEAD_BYTES = 4096  # holds the headers of most files; of others more is read
_MPO = b"MPF\0"  # a JPEG that holds several images


class EncodedSource:
    """An ordinary JPEG, at rest.

    Args:
        header: of the file; None once it has been sent to another process, which does not need it.
        path: of a file that can be read again; "" for none.
        data: its bytes; None to read them when they are needed.
        name: for messages.
    """

    __slots__ = ("data", "header", "name", "path")

    def __init__(self, header: ImageHeader | None, *, path: str, data: bytes | None, name: str) -> None:
        self.header, self.path, self.data, self.name = header, path, data, name

    def __reduce__(self) -> tuple[Any, ...]:
        return _sent, (self.path, self.data, self.name)

    def read(self) -> bytes:
        """The whole file; what was read from a path is not kept.

        Raises:
            OSError: it cannot be read any more.
        """
        if self.data is not None:
            return self.data
        with open(self.path, "rb") as file:
            return file.read()

    def encoded(self) -> Encoded:
        """For a backend.

        Raises:
            OSError: it cannot be read any more, or has become something else.
        """
        data = self.read()
        if self.header is None:
            return inspect(data)
        return Encoded(data=data, header=self.header, width=self.header.width, height=self.header.height)

    def location(self) -> str:
        """For messages."""
        return self.name or self.path or f"an image of {len(self.data or b'')} bytes in memory"


def _sent(path: str, data: bytes | None, name: str) -> EncodedSource:
    return EncodedSource(None, path=path, data=data, name=name)


def find_source(opened: Any, *, keep_paths_before: float = 0.0) -> EncodedSource | None:
    """The source that `PIL.Image.open` is asked to open, if it is a whole, ordinary JPEG; else None.

    Args:
        opened: a path or a file object, which is left at its beginning.
        keep_paths_before: files that have not changed since then (seconds since 1970) are read again by whoever
            decodes them.  Others, which may be temporary and gone by then, are read now.

    Raises:
        OSError: the file cannot be opened, as Pillow would raise it.
    """
    if isinstance(opened, str | bytes | os.PathLike):
        name = os.fsdecode(opened)
        with open(name, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_ctime < keep_paths_before:
                return _from_ends(file, _absolute(name), name)
            return _from_whole(file, name)
    file_name = getattr(opened, "name", None)
    if isinstance(opened, io.BufferedReader) and isinstance(file_name, str):
        opened.seek(0)
        if _is_old_file(file_name, opened.fileno(), keep_paths_before):
            return _from_ends(opened, _absolute(file_name), "")
    return _from_whole(opened, "")


def _absolute(name: str) -> str:
    """A path that does not depend on the process's working folder."""
    return name if os.path.isabs(name) else os.path.join(os.getcwd(), name)


def _is_old_file(name: str, number: int, before: float) -> bool:
    """True if a path leads to the regular file that is open, and that has not changed since `before`."""
    here = os.fstat(number)
    if not stat.S_ISREG(here.st_mode) or here.st_ctime >= before:
        return False
    try:
        return os.path.samestat(os.stat(name), here)
    except OSError:
        return False


def _from_ends(file: Any, path: str, name: str) -> EncodedSource | None:
    """From the first bytes and the last ones; the rest is read by whoever decodes."""
    whole, head = None, file.read(_HEAD_BYTES)
    if not head.startswith(_JPEG):
        file.seek(0)
        return None
    header = parse_header(head)
    if header is None or len(head) < _HEAD_BYTES:
        file.seek(0)
        whole = head = file.read()
        header = parse_header(head)
    else:
        file.seek(-2, os.SEEK_END)
        if file.read(2) != _JPEG_END:  # something may follow it
            file.seek(0)
            whole = file.read()
    file.seek(0)
    return EncodedSource(header, path=path, data=None, name=name) if _is_ordinary(header, head, whole) else None


def _from_whole(file: Any, name: str) -> EncodedSource | None:
    try:
        file.seek(0)
        start = file.read(3)
        data = start + file.read() if start == _JPEG else None
        file.seek(0)
    except (AttributeError, TypeError, io.UnsupportedOperation):  # sockets and the like: Pillow knows what to do
        return None
    header = parse_header(data) if data is not None else None
    if data is None or not _is_ordinary(header, data, data):
        return None
    return EncodedSource(header, path="", data=data, name=name)


def _is_ordinary(header: ImageHeader | None, head: bytes, whole: bytes | None) -> TypeGuard[ImageHeader]:
    """True for what the core decodes and Pillow would not refuse, judging by the beginning and perhaps all of a file.

    A file that ends with an end marker is taken for whole; if it is not, whoever decodes it will notice.
    """
    if header is None or (frame := header.jpeg) is None:
        return False
    is_plain = frame.precision_bits == 8 and frame.components in (1, 3)
    if not is_plain or head.find(_MPO, 0, frame.scan_at) >= 0:
        return False
    return whole is None or whole.endswith(_JPEG_END) or has_whole_scans(whole, frame)
