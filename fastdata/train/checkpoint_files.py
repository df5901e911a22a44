"""The files of checkpoints: a checksum over all of it, checked before anything is loaded.

A checkpoint is the archive that torch.save writes, with a SHA-256 of everything before it in the archive's comment; so
torch.load reads it as any other.  Layout of a zip archive's end: APPNOTE 6.3.10, section 4.3.16 (22 bytes, the last two
the length of the comment).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import warnings
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from fastdata.errors import TrainError
from fastdata.system.files import NotRegularFile, open_file, whole_file
from fastdata.system.stack_level import users_level

__all__ = ["VERSION", "DamagedCheckpoint", "load_checkpoint", "write_checkpoint"]

VERSION = 4
_WITHOUT_CHECKSUM = 3  # the version before
_MARK, _DIGEST_BYTES = b"fastdata sha256 ", 64
_CHUNK_BYTES = 1 << 20


class DamagedCheckpoint(TrainError):
    """A file has other bytes than were written, or is none of a checkpoint."""


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint atomically, with its checksum.

    Raises:
        TrainError: the disk is full, or cannot be written; what was there before is left, and nothing else.
    """
    try:
        with whole_file(path) as file:
            torch.save(state, file)
            _add_checksum(file, path.with_name(f".{path.name}.partial"))
    except (OSError, RuntimeError) as error:  # torch turns what its writer raises into a RuntimeError
        raise TrainError(_cannot_write(path, error)) from error


def _cannot_write(path: Path, error: BaseException) -> str:
    free = ""
    with suppress(OSError):  # the folder itself is gone
        free = f"; {shutil.disk_usage(path.parent).free / 1e6:.1f} MB are free there"
    reason = next((each for each in (error, error.__cause__, error.__context__) if isinstance(each, OSError)), error)
    told = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason).splitlines()[0]
    return (
        f"{path} cannot be written ({told}){free}; make room, keep fewer checkpoints (keep, save_every) or use another "
        "output_dir, and continue from the latest one with resume='auto'"
    )


def _add_checksum(file: IO[bytes], place: Path) -> None:
    file.flush()
    comment = _MARK + b"0" * _DIGEST_BYTES
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", len(comment)) + _MARK)
    file.flush()
    with open_file(place) as written:
        digest = _digest(written, os.fstat(written.fileno()).st_size)
    file.write(digest)


def _digest(file: IO[bytes], size: int) -> bytes:
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest().encode()


def _has_checksum(file: IO[bytes], path: str | Path) -> bool:
    """True if a file ends with a checksum, which is right.

    Raises:
        DamagedCheckpoint: it is wrong.
    """
    size = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
    if size < len(_MARK):
        return False
    file.seek(size - len(_MARK))
    mark, expected = file.read(len(_MARK)), file.read(_DIGEST_BYTES)
    file.seek(0)
    if mark != _MARK:
        return False
    found = _digest(file, size)
    file.seek(0)
    if found != expected:
        here, written = found.decode()[:16], expected.decode(errors="replace")[:16]
        raise DamagedCheckpoint(
            f"{path} is damaged: its bytes have the SHA-256 {here}…, those that were written have {written}…; "
            "use another checkpoint, or resume='auto' for the latest intact one in output_dir"
        )
    return True


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Loads a checkpoint that `Checkpointer.save` wrote, after its checksum was found right.

    Raises:
        DamagedCheckpoint: the file has changed since it was written, or was written by another program.
        TrainError: it is missing, or of another version.
    """
    try:
        with open_file(path) as file:
            is_checked = _has_checksum(file, path)
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise TrainError(f"no such checkpoint: {path}") from error
    except NotRegularFile as error:
        raise TrainError(f"{error}; name a checkpoint, or use resume='auto' for the latest in output_dir") from error
    except IsADirectoryError as error:
        raise TrainError(
            f"{path} is a folder; name a checkpoint in it, or use resume='auto' for the latest in output_dir"
        ) from error
    except DamagedCheckpoint:
        raise
    except Exception as error:  # torch raises many kinds for files that are not its own
        raise DamagedCheckpoint(
            f"{path} cannot be read as a checkpoint: it is damaged, or another program wrote it; name another "
            "checkpoint, or use resume='auto' for the latest in output_dir"
        ) from error
    if not isinstance(state, dict) or "version" not in state:
        raise TrainError(f"{path} was not written by fastdata.train; to start from pretrained weights use --weights")
    if state["version"] not in (VERSION, _WITHOUT_CHECKSUM):
        raise TrainError(
            f"{path} has checkpoint version {state['version']}; this version of fastdata reads version {VERSION}"
        )
    if not is_checked:
        _without_checksum(path, state["version"])
    return state


def _without_checksum(path: str | Path, version: int) -> None:
    if version == VERSION:
        raise DamagedCheckpoint(
            f"{path} is damaged: the checksum at its end is missing; use another checkpoint, or resume='auto' for the "
            "latest intact one in output_dir"
        )
    warnings.warn(
        f"{path} was written by an earlier version of fastdata, without a checksum, so damage to it may go unnoticed",
        stacklevel=users_level(),
    )
