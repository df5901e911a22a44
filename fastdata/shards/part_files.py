"""Opens the files of a dataset of shards (tar files, indexes, the manifest), none of which is trusted to be one."""

from __future__ import annotations

import os
from typing import IO

from fastdata.errors import ShardError
from fastdata.limits import TooManyBytes, check_encoded_bytes
from fastdata.system.files import NotRegularFile, check_regular, open_descriptor

__all__ = ["check_part", "open_shard_descriptor", "open_shard_file", "read_shard_file", "tar_size"]


def open_shard_descriptor(path: str | os.PathLike[str]) -> int:
    """Opens a shard, an index or a manifest.

    Raises:
        ShardError: it is not a regular file.
    """
    try:
        return open_descriptor(path)
    except NotRegularFile as error:
        raise _not_regular(path, error) from error


def open_shard_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a shard, an index or a manifest; see `open_shard_descriptor`."""
    return open(path, "rb", opener=lambda path, _: open_shard_descriptor(path))


def read_shard_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of an index or a manifest; see `open_shard_file`.

    Raises:
        ShardError: it is not a regular file, or larger than `MAX_ENCODED_BYTES`.
    """
    with open_shard_file(path) as file:
        check_part(os.fstat(file.fileno()).st_size, os.fsdecode(path))
        return file.read()


def check_part(size_bytes: int, shard: str, *, what: str = "it") -> None:
    """Refuses to read a part of a shard that is too large, before memory is taken for it.

    Args:
        size_bytes: size of the part.
        shard: the file.
        what: the part and where it begins, for the message.

    Raises:
        ShardError: it is larger than `MAX_ENCODED_BYTES`.
    """
    try:
        check_encoded_bytes(size_bytes, what)
    except TooManyBytes as error:
        raise ShardError(shard, str(error)) from error


def tar_size(path: str | os.PathLike[str]) -> int:
    """The size of a shard.

    Raises:
        ShardError: it is not a regular file.
    """
    status = os.stat(path)
    try:
        check_regular(status, path)
    except NotRegularFile as error:
        raise _not_regular(path, error) from error
    return status.st_size


def _not_regular(path: str | os.PathLike[str], error: NotRegularFile) -> ShardError:
    name = os.fsdecode(path)
    problem = str(error).removeprefix(f"{name} ")
    return ShardError(name, f"it {problem}; put the file itself, or a link to it, in its place")
