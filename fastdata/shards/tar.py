"""Tar files with WebDataset's naming: one member KEY.EXTENSION per part of a sample, parts of a sample in a row.

Headers are written by our own code (POSIX ustar), because `tarfile` needs longer for one than copying an image takes;
only names that do not fit get a pax header from `tarfile`.  Tar files are read with `tarfile`.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from fastdata.errors import ShardError

__all__ = ["BLOCK", "END_OF_ARCHIVE", "IMAGE_EXTENSIONS", "Member", "members", "padding", "split_name", "tar_header"]

BLOCK = 512
END_OF_ARCHIVE = bytes(2 * BLOCK)
# The extensions of members that are images; "npy" holds raw pixels, uint8 (height, width, 3), "fdc" an unpacked JPEG.
IMAGE_EXTENSIONS = frozenset(
    {"jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif", "npy", "fdc", "image", "img"}
)

_MOST_USTAR_SIZE = 8**11
_USTAR_NAME_BYTES = 100


def tar_header(name: str, size: int) -> bytes:
    """The header blocks of a regular file: 512 bytes, more if the name is longer than 100 bytes or not ASCII.

    Owner, time and mode are always the same, so that the same samples give the same bytes.
    """
    if len(name) > _USTAR_NAME_BYTES or not name.isascii() or size >= _MOST_USTAR_SIZE:
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT)
    head = b"%b0000644\x000000000\x000000000\x00%011o\x0000000000000\x00" % (name.encode().ljust(100, b"\0"), size)
    tail = (b"0" + bytes(100) + b"ustar\x0000").ljust(BLOCK - 156, b"\0")
    checksum = sum(head) + sum(tail) + 8 * ord(" ")
    return head + b"%06o\0 " % checksum + tail


def padding(size: int) -> int:
    """Number of zero bytes after a member of this size."""
    return -size % BLOCK


@dataclass(frozen=True)
class Member:
    """A file inside a tar file: its name, offset and size."""

    name: str
    offset: int
    size: int


class _Bounded:
    """A file from which no more is read than it has: `tarfile` takes memory for what a damaged header claims."""

    def __init__(self, file: IO[bytes], end: int) -> None:
        self._file, self._end = file, end
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Reads at most `size` bytes of the file; raises ValueError if `size` is negative, which would mean all."""
        if size < 0:
            raise ValueError(f"a header of {size} bytes")
        return self._file.read(size if size <= BLOCK else min(size, max(0, self._end - self._file.tell())))


def members(file: IO[bytes], path: str | Path) -> Iterator[Member]:
    """The regular files in a tar file, in order.

    Raises:
        ShardError: the file is not a tar file, damaged, or cut short.
    """
    end = file.seek(0, 2)
    file.seek(0)
    at = 0
    try:
        with tarfile.open(fileobj=cast(IO[bytes], _Bounded(file, end)), mode="r:") as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                if info.size < 0 or info.offset < at or info.offset_data + info.size > end:
                    problem = f"cut short or damaged: member {info.name} has {info.size} bytes, the file ends at {end}"
                    raise ShardError(str(path), problem, offset=info.offset_data)
                at = info.offset_data + info.size
                if info.isreg():
                    yield Member(info.name, info.offset_data, info.size)
            at += padding(at)
    except (tarfile.TarError, UnicodeError, ValueError, OverflowError) as error:
        raise ShardError(str(path), f"not a tar file, or damaged ({error})", offset=at) from error
    file.seek(at)
    if file.read(BLOCK).strip(b"\0") or end < at + BLOCK:
        raise ShardError(str(path), "tar file cut short", offset=at, expected="blocks of zeros at the end")


def split_name(name: str) -> tuple[str, str]:
    """A member's key and extension: the name is split at the first dot after the last slash, as in WebDataset."""
    match = re.fullmatch(r"((?:.*/)?[^/.]+)\.([^/]*)", name, re.DOTALL)
    return (match[1], match[2].lower()) if match is not None else (name, "")
