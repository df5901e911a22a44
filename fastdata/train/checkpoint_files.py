"""Checkpoint files: written atomically with a checksum, and checked before anything in them is loaded.

A checkpoint is the zip archive that `torch.save` writes, so `torch.load(path)` reads it without fastdata.  The comment
at the end of the archive, a field of the zip format, is `fastdata sha256 ` and 64 hexadecimal digits: the SHA-256 of
all bytes before the digits.  Files of earlier versions have no comment; they are loaded with a warning.
"""

from __future__ import annotations

import errno
import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch

from fastdata.errors import OptionError, TrainError
from fastdata.system.disk_space import free_space, is_full
from fastdata.system.files import NotRegularFile, open_file, sync_folder, whole_file
from fastdata.system.stack_level import users_level

__all__ = ["VERSION", "load_checkpoint", "make_output_dir", "naming", "newest_intact", "save_checkpoint", "writing"]

VERSION = 3
_END = b"PK\5\6"  # signature of a zip's end record
_END_SIZE = 22  # of an end record without its comment, whose length is the record's last two bytes
_SIGN, _DIGITS = b"fastdata sha256 ", 64
_COMMENT_SIZE = len(_SIGN) + _DIGITS
_CHUNK = 1 << 20


class _DamagedError(Exception):
    """A file that is no intact checkpoint; the message says why."""


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint with its checksum; the file exists completely or not at all.

    Raises:
        TrainError: the file cannot be written, as on a full disk.
    """
    with writing(path), whole_file(path) as file:
        summed = _Summed(file)
        try:
            torch.save(state, cast(IO[bytes], summed))
        except RuntimeError as error:  # torch's own, in place of the one that `write` raised
            if summed.problem is None:
                raise
            raise summed.problem from error
        summed.finish()


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Loads a checkpoint that `Checkpointer.save` wrote, after comparing its checksum.

    Raises:
        TrainError: the file is missing, damaged, or of another version.
    """
    try:
        return _read(Path(path))
    except _DamagedError as error:
        raise TrainError(
            f"{path} cannot be read as a checkpoint: it is damaged, or another program wrote it ({error}); name "
            "another checkpoint, or use resume='auto' for the latest intact one in output_dir"
        ) from error


def newest_intact(paths: Iterable[Path]) -> tuple[Path | None, dict[str, Any] | None]:
    """The newest checkpoint that is intact, and what it holds; newer ones are renamed to `NAME.damaged` with a warning.

    Raises:
        TrainError: there are checkpoints, but all are damaged (none is renamed), or one is of another version.
    """
    damaged: dict[Path, _DamagedError] = {}
    for path in sorted(paths, reverse=True):
        try:
            state = _read(path)
        except _DamagedError as error:
            damaged[path] = error
            continue
        for each, reason in damaged.items():
            aside = _set_aside(each)
            warnings.warn(
                f"{each} is damaged ({reason}) and was renamed to {aside.name}; resuming {path.name} instead",
                stacklevel=users_level(),
            )
        return path, state
    if damaged:
        told = ", ".join(f"{path.name} ({reason})" for path, reason in damaged.items())
        raise TrainError(
            f"all checkpoints in {next(iter(damaged)).parent} are damaged: {told}; put back a copy of one, or move "
            "them to another folder to start from the beginning"
        )
    return None, None


def _set_aside(path: Path) -> Path:
    """Renames a damaged file, to a name that is free."""
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in range(1000))
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    sync_folder(path.parent)
    return aside


def _read(path: Path) -> dict[str, Any]:
    """Reads a checkpoint; raises _DamagedError if it is damaged, TrainError if it cannot be used for another reason."""
    has_checksum = _check_sum(path)
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for files that are not its own
        if has_checksum or isinstance(error, OSError):
            why = f"{type(error).__name__}: {error}"
            raise TrainError(f"{path} cannot be loaded, although no damage was found: {why}; try again") from error
        raise _DamagedError(f"torch.load fails with {type(error).__name__}") from error
    if not isinstance(state, dict) or "version" not in state:
        raise TrainError(f"{path} was not written by fastdata.train; to start from pretrained weights use --weights")
    if state["version"] != VERSION:
        raise TrainError(
            f"{path} has checkpoint version {state['version']}; this version of fastdata reads version {VERSION}"
        )
    if not has_checksum:
        warnings.warn(
            f"{path} has no checksum, since an earlier version of fastdata or another program wrote it; damage in it "
            "would not be noticed",
            stacklevel=users_level(),
        )
    return state


def _check_sum(path: Path) -> bool:
    """Compares a file's checksum; False if it has none and ends as a zip without one does.

    No damage makes a file with a checksum look like one without: its last bytes are digits, and what a shorter file
    ends with announces a comment.
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _END_SIZE - _COMMENT_SIZE))
        tail = file.read()
        announced = _COMMENT_SIZE.to_bytes(2, "little") + _SIGN
        if tail.startswith(_END) and tail[_END_SIZE - 2 : -_DIGITS] == announced:
            file.seek(0)
            if _digits(file, size - _DIGITS) != tail[-_DIGITS:]:
                raise _DamagedError("its bytes do not have the SHA-256 that it holds")
            return True
        bare = tail[-_END_SIZE:]
        if bare.startswith(_END) and bare.endswith(b"\0\0"):
            return False
        raise _DamagedError("its end is missing or changed")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open_file(path) as file:
            yield file
    except FileNotFoundError as error:
        raise TrainError(f"no such checkpoint: {path}") from error
    except NotRegularFile as error:
        raise TrainError(f"{error}; name a checkpoint, or use resume='auto' for the latest in output_dir") from error
    except IsADirectoryError as error:
        raise TrainError(
            f"{path} is a folder; name a checkpoint in it, or use resume='auto' for the latest in output_dir"
        ) from error
    except OSError as error:
        raise TrainError(f"{path} cannot be read: {error.strerror}") from error


def _digits(file: IO[bytes], count: int) -> bytes:
    """SHA-256 of the next `count` bytes, in hexadecimal digits."""
    found = hashlib.sha256()
    while count > 0 and (part := file.read(min(count, _CHUNK))):
        found.update(part)
        count -= len(part)
    return found.hexdigest().encode()


class _Summed:
    """A file for `torch.save` that sums what is written, and holds the zip's end record back until `finish`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sum, self._held = file, hashlib.sha256(), b""
        self.problem: BaseException | None = None

    def write(self, data: Any) -> int:
        """Writes all but the last 22 bytes of what was given so far."""
        view = memoryview(data).cast("B")
        if len(view) < _END_SIZE:
            joined = self._held + bytes(view)
            self._put(joined[:-_END_SIZE])
            self._held = joined[-_END_SIZE:]
        else:
            self._put(self._held)
            self._put(view[:-_END_SIZE])
            self._held = bytes(view[-_END_SIZE:])
        return len(view)

    def flush(self) -> None:
        """Does nothing: the whole file is flushed once it is complete."""

    def finish(self) -> None:
        """Writes the end record, with the checksum as its comment."""
        if not (self._held.startswith(_END) and self._held.endswith(b"\0\0")):
            raise TrainError(f"torch {torch.__version__} writes checkpoints in a format that is not known here")
        self._put(self._held[:-2] + _COMMENT_SIZE.to_bytes(2, "little") + _SIGN)
        self._put(self._sum.hexdigest().encode())

    def _put(self, data: bytes | memoryview) -> None:
        self._sum.update(data)
        try:
            self._file.write(data)
        except BaseException as error:  # Ctrl-C, too
            self.problem = error
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns errors of the disk into a TrainError that says the path, the free space and what to do."""
    try:
        yield
    except OSError as error:
        raise TrainError(f"{path} cannot be written: {error.strerror}; {_advice(path, error)}") from error


def _advice(path: Path, error: OSError) -> str:
    if not is_full(error):
        return "earlier checkpoints are kept; mend the cause, then continue with resume='auto'"
    limit = ", so a limit on the size of files applies (ulimit -f)" if error.errno == errno.EFBIG else ""
    return (
        f"{free_space(path)}{limit}.  Free space, keep fewer checkpoints (keep, --keep) or use another "
        "output_dir; earlier checkpoints are kept, and resume='auto' continues from the latest"
    )


@contextmanager
def naming(path: str | Path | None) -> Iterator[None]:
    """Adds the checkpoint's path to the message of a TrainError."""
    try:
        yield
    except TrainError as error:
        raise TrainError(f"{path}: {error}") from error


def make_output_dir(folder: Path) -> None:
    """Creates a folder for results.

    Raises:
        OptionError: it cannot be created or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK) else "is not writable"
    except (FileExistsError, NotADirectoryError):
        problem = "is a file"
    except OSError as error:
        problem = f"cannot be created ({error.strerror})"
    if problem:
        raise OptionError(f"output_dir={str(folder)!r} {problem}; name another folder")
