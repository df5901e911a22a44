"""Where the bytes of an image are that stays encoded: in a file that can be read again, or in memory.

Whoever opens a file has its bytes, whatever happens to its path afterwards.  So only the path of a file is kept that
may be expected to stay: a regular file, older than this program, on a disk of this machine, by its real path, so that
links may be switched.  Device, inode, size and times are kept with it, and compared once it has been read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import weakref
from typing import Any, TypeAlias, TypeGuard

from fastdata.limits import is_above_limit
from fastdata.loaders.backend import Encoded, Pixels
from fastdata.loaders.per_image import inspect
from fastdata.loaders.unpacked import as_file
from fastdata.native import available
from fastdata.system.file_systems import is_on_this_machine
from fastdata.system.files import open_file
from fastdata.views.header import ImageHeader, has_whole_scans, parse_header

__all__ = ["EncodedSource", "find_source"]

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND\xae\x42\x60\x82"}
_PNG_MODES = {2: "RGB", 6: "RGBA"}  # by colour type; in others Pillow heeds palettes and transparent colours
_HEAD_BYTES = 4096  # holds the headers of most files; of others more is read
_MPO = b"MPF\0"  # a JPEG that holds several images


Stamp: TypeAlias = tuple[int, int, int, int, int]  # of a file: device, inode, size, times of change and of status


class EncodedSource:
    """An ordinary JPEG or PNG, or a record of an unpacked JPEG, at rest.

    Args:
        header: of the file; None once it has been sent to another process, which does not need it.
        path: of a file that can be read again; "" for none.
        data: its bytes; None to read them when they are needed.
        name: what Pillow was asked to open, if that was a path, as it was given.
        mode: Pillow's, of the opened image.
        origin: the file that `data` was read from, by which its index is found; "" if it is not known.
        stamp: of the file at `path`.

    Attributes:
        images: that show it.
        pixels: RGB (height, width, 3) of the whole image, once it has been asked for again.
        is_asked: something has been asked for, for which Pillow would have decoded it.
        is_seen: something of it has been decoded in this process.
        is_kept: somebody keeps an image of it, and will ask again.
    """

    __slots__ = (
        "data",
        "header",
        "images",
        "is_asked",
        "is_kept",
        "is_seen",
        "mode",
        "name",
        "origin",
        "path",
        "pixels",
        "stamp",
    )

    def __init__(
        self,
        header: ImageHeader | None,
        *,
        path: str,
        data: bytes | None,
        name: str,
        mode: str = "RGB",
        origin: str = "",
        stamp: Stamp | None = None,
    ) -> None:
        self.header, self.path, self.data, self.name, self.mode = header, path, data, name, mode
        self.origin, self.stamp = origin or path, stamp
        self.images: list[weakref.ref[Any]] = []
        self.pixels: Pixels | None = None
        self.is_asked = self.is_seen = self.is_kept = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _sent, (self.path, self.data, self.name, self.origin, self.stamp)

    def is_held(self) -> bool:
        """True if somebody still holds an image of it."""
        return any(image() is not None for image in self.images)

    def has_changed(self) -> bool:
        """True if the path does not lead any more to the file that was opened, as it was."""
        if self.data is not None or self.stamp is None:
            return False
        try:
            return _stamp_of(os.stat(self.path)) != self.stamp
        except OSError:
            return True

    def read(self) -> bytes:
        """The whole file, of a record the one that it was made of; what was read from a path is not kept.

        Raises:
            OSError: it cannot be read any more, has changed, or the record is damaged.
        """
        if self.data is not None:
            if self.header is None or self.header.kind == "unpacked":
                self.data = as_file(self.data)  # once, however many views are decoded one by one
                self.header = parse_header(self.data)
            return self.data
        with open_file(self.path) as file:
            data = file.read()
            if self.stamp is not None and _stamp_of(os.fstat(file.fileno())) != self.stamp:
                raise OSError(errno.ESTALE, "the file has changed since it was opened", self.path)
        return data

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
        return self.name or self.origin or f"an image of {len(self.data or b'')} bytes in memory"


def _sent(path: str, data: bytes | None, name: str, origin: str, stamp: Stamp | None) -> EncodedSource:
    return EncodedSource(None, path=path, data=data, name=name, origin=origin, stamp=stamp)


def _stamp_of(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def find_source(opened: Any, *, keep_paths_before: float = 0.0) -> EncodedSource | None:
    """The source that `PIL.Image.open` is asked to open, if it is a whole, ordinary JPEG or PNG; else None.

    Args:
        opened: a path or a file object, which is left at its beginning.
        keep_paths_before: files that have not changed since then (seconds since 1970) are read again by whoever
            decodes them.  Others, which may be temporary and gone by then, are read now.

    Raises:
        OSError: the file cannot be opened, as Pillow would raise it.
    """
    if isinstance(opened, str | bytes | os.PathLike):
        name = os.fsdecode(opened)
        if not stat.S_ISREG(os.stat(name).st_mode):  # opening a pipe, and closing it, would end its writer
            return None
        with open(name, "rb", buffering=0, opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or is_above_limit(status.st_size):  # a pipe can be read only once
                return None
            path = _lasting_path(file.fileno(), status, keep_paths_before)
            return _from_ends(file, path, name, status) if path else _from_whole(file, name, _absolute(name))
    file_name = getattr(opened, "name", None)
    is_file = isinstance(opened, io.BufferedReader) and isinstance(opened.raw, io.FileIO)  # not a member of a tar file
    if is_file and isinstance(file_name, str):
        opened.seek(0)
        status = os.fstat(opened.fileno())
        if is_above_limit(status.st_size):
            return None
        path = _lasting_path(opened.fileno(), status, keep_paths_before)
        return _from_ends(opened, path, "", status) if path else _from_whole(opened, "", _absolute(file_name))
    return _from_whole(opened, "", "")


def _without_waiting(name: str, flags: int) -> int:
    """Opens a file; of a pipe it does not wait for a writer."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _absolute(name: str) -> str:
    """A path that does not depend on the process's working folder."""
    return name if os.path.isabs(name) else os.path.join(os.getcwd(), name)


def _lasting_path(number: int, status: os.stat_result, before: float) -> str | None:
    """The real path of an open file that may be expected to stay as it is; None for others.

    Args:
        number: its descriptor.
        status: of it.
        before: it has not changed since then, in seconds since 1970.
    """
    if not stat.S_ISREG(status.st_mode) or max(status.st_ctime, status.st_mtime) >= before:
        return None
    if not is_on_this_machine(status.st_dev):
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{number}")
        return path if os.path.samestat(os.lstat(path), status) else None
    except OSError:  # no such folder: another system than Linux
        return None


def _from_ends(file: Any, path: str, name: str, status: os.stat_result) -> EncodedSource | None:
    """From the first bytes and the last ones; the rest is read by whoever decodes."""
    whole, head = None, file.read(_HEAD_BYTES)
    if not head.startswith((_JPEG, _PNG)):
        file.seek(0)
        return None
    header = parse_header(head)
    if header is None or len(head) < _HEAD_BYTES:
        file.seek(0)
        whole = head = file.read()
        header = parse_header(head)
    else:
        end = _ENDS[header.kind]
        file.seek(-len(end), os.SEEK_END)
        if file.read(len(end)) != end:  # something may follow it
            file.seek(0)
            whole = file.read()
    file.seek(0)
    if not _is_ordinary(header, head, whole):
        return None
    stamp = _stamp_of(status)
    return EncodedSource(header, path=path, data=None, name=name, mode=_mode_of(header, head), stamp=stamp)


def _from_whole(file: Any, name: str, origin: str) -> EncodedSource | None:
    try:
        file.seek(0)
        start = file.read(len(_PNG))
        data = start + file.read() if start.startswith((_JPEG, _PNG)) else None
        file.seek(0)
    except (AttributeError, TypeError, io.UnsupportedOperation):  # sockets and the like: Pillow knows what to do
        return None
    header = parse_header(data) if data is not None else None
    if data is None or not _is_ordinary(header, data, data):
        return None
    return EncodedSource(header, path="", data=data, name=name, mode=_mode_of(header, data), origin=origin)


def _is_ordinary(header: ImageHeader | None, head: bytes, whole: bytes | None) -> TypeGuard[ImageHeader]:
    """True for what the core decodes and Pillow would not refuse, judging by the beginning and perhaps all of a file.

    A file that ends with an end marker is taken for whole; if it is not, whoever decodes it will notice.
    """
    if header is None:
        return False
    if header.kind == "png":
        return _is_ordinary_png(head) and (whole is None or whole.endswith(_ENDS["png"]))
    if (frame := header.jpeg) is None:
        return False
    is_plain = frame.precision_bits == 8 and frame.components in (1, 3)
    if not is_plain or head.find(_MPO, 0, frame.scan_at) >= 0:
        return False
    return whole is None or whole.endswith(_ENDS["jpeg"]) or has_whole_scans(whole, frame)


def _is_ordinary_png(head: bytes) -> bool:
    """True for 8-bit colours, not interlaced, with nothing between header and pixels that Pillow would heed."""
    pixels = head.find(b"IDAT")
    core = available()
    if core is None or "no PNGs" in core.description:
        return False
    if pixels < 0 or head[24] != 8 or head[25] not in _PNG_MODES or head[28] != 0:
        return False
    return not any(head.find(chunk, 0, pixels) >= 0 for chunk in (b"tRNS", b"acTL"))


def _mode_of(header: ImageHeader, head: bytes) -> str:
    """Pillow's mode of the opened image."""
    if header.jpeg is not None:
        return "L" if header.jpeg.components == 1 else "RGB"
    return _PNG_MODES[head[25]]
