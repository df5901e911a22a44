"""Errors of a full disk: the file, the space that is free, and what to do."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastdata.errors import ConversionError

__all__ = ["free_space", "is_full", "naming_file", "no_space", "space_errors"]

_LIMITS = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the user's disk quota is used up",
    errno.EFBIG: "the file would be larger than allowed (by ulimit -f, or by the file system)",
}


def no_space(error: OSError, folder: str | os.PathLike[str]) -> str | None:
    """Says which file a full disk did not take, and how much is free there; None for another error.

    Args:
        error: the error that was raised.
        folder: folder of the file, in case that the error does not name it.
    """
    if not is_full(error) or isinstance(error, ConversionError):
        return None
    place = Path(os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else folder)
    return f"{place} could not be written: {_LIMITS[error.errno or 0]}; {free_space(place)}"


def is_full(error: OSError) -> bool:
    """True if a disk, a quota or a limit on the size of files had no room."""
    return error.errno in _LIMITS


def free_space(place: Path) -> str:
    """Describes the free space in the place of a file that is or was to be there."""
    existing = next((each for each in (place, *place.parents) if each.exists()), Path("/"))
    return f"{shutil.disk_usage(existing).free / 1e6:.1f} MB are free there"


@contextmanager
def space_errors(folder: str | os.PathLike[str], advice: str) -> Iterator[None]:
    """Turns an error about a full disk into a ConversionError that says what to do.

    Args:
        folder: folder that is written to.
        advice: text that says what is kept, and how to go on.
    """
    try:
        yield
    except OSError as error:
        if (told := no_space(error, folder)) is None:
            raise
        raise ConversionError(f"{told}; {advice}") from error


@contextmanager
def naming_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Gives errors of writing, which know no path, that of the file."""
    try:
        yield
    except OSError as error:
        if is_full(error) and error.filename is None and error.strerror:
            error.filename = os.fspath(path)
        raise
