"""Access to shards, tar files with their index files, on a local disk (here) or in a remote store (remote.py)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fastdata.errors import DatasetError, ShardError
from fastdata.shards.format import MANIFEST_NAME, STATE_FOLDER, ShardIndex, crc32c, index_name
from fastdata.shards.part_files import open_shard_descriptor, read_shard_file, tar_size

__all__ = ["LocalShards", "Shards", "is_unfinished", "missing_manifest", "read_range"]


class Shards(ABC):
    """Shards (tar files with their index files), by number.

    Attributes:
        classes: class names by label, or None.
    """

    classes: list[str] | None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, number: int) -> str:
        """A shard's path or URL, for messages."""

    @abstractmethod
    def path(self, number: int) -> str:
        """The local path of a shard, which is downloaded first if necessary."""

    @abstractmethod
    def read_index(self, number: int) -> ShardIndex:
        """Reads and checks a shard's index file."""

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Bytes of a shard; fewer than `size` if the file is cut short."""
        return read_range(self.path(number), offset, size)

    def renew(self, number: int) -> bool:
        """Downloads a damaged shard again; False if the shard is local or was found damaged in the store before.

        Raises:
            ShardError: the store's own copy is damaged as well.
        """
        return False

    def expect(self, numbers: Sequence[int]) -> None:  # noqa: B027 - local disks need no notice
        """Announces which shards will be read, each once, in order."""

    def are_local(self) -> bool:
        """False if shards must be downloaded before they are read."""
        return True

    def fit_in_cache(self) -> bool:
        """False if the dataset is remote and larger than its local cache."""
        return True


def read_range(path: str, offset: int, size: int) -> bytes:
    """A part of a file, which is open no longer than that.

    Keeping files open, or mapping them into memory, saves a few µs (benchmarks/results/shards.json) of about a
    millisecond that an image takes, and would tie up descriptors or address space.
    """
    number = open_shard_descriptor(path)
    try:
        if not hasattr(os, "pread"):  # Windows
            os.lseek(number, offset, os.SEEK_SET)
            return os.read(number, size)
        data = os.pread(number, size, offset)
        while 0 < len(data) < size and (more := os.pread(number, size - len(data), offset + len(data))):
            data += more
        return data
    finally:
        os.close(number)


# ---- local


class LocalShards(Shards):
    """Tar files on a local disk.

    Args:
        paths: the tar files.
        classes: class names by label, or None.
        index_crcs: checksum of each index file from the manifest, or None.
        indexes: index files that lie elsewhere, by the path of the tar file.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        classes: list[str] | None,
        index_crcs: Sequence[int | None],
        indexes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.classes = classes
        self._paths, self._indexes = [str(path) for path in paths], dict(indexes)
        self._index_crcs = list(index_crcs)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return repr(os.path.dirname(self._paths[0]))

    def name(self, number: int) -> str:
        """See `Shards.name`."""
        return self._paths[number]

    def path(self, number: int) -> str:
        """See `Shards.path`."""
        return self._paths[number]

    def read_index(self, number: int) -> ShardIndex:
        """See `Shards.read_index`; also checks the index against the manifest, and the length of the tar file."""
        path, expected = self._paths[number], self._index_crcs[number]
        place = self._indexes.get(path, index_name(path))
        try:
            data = read_shard_file(place)
            index = ShardIndex.from_bytes(data, place)
            size = tar_size(path)
        except FileNotFoundError as error:
            if error.filename == path:
                raise DatasetError(f"{path} is missing, but its index file exists; copy the tar file again") from error
            raise DatasetError(
                f"{path} has no index file {place}; make it with: fastdata index {os.path.dirname(path) or '.'}"
            ) from error
        if expected not in (None, crc32c(data)):
            raise ShardError(
                place,
                f"its checksum is not the one in {MANIFEST_NAME} (copy the shard and its index again, or rebuild all "
                f"indices with: fastdata index {os.path.dirname(path) or '.'})",
                expected=f"checksum {expected:08x}",
                found=f"{crc32c(data):08x}",
            )
        if size != index.tar_bytes:
            raise ShardError(path, "tar file has the wrong length", expected=f"{index.tar_bytes} bytes", found=size)
        return index


def is_unfinished(folder: Path) -> bool:
    """True for a folder, or a split, of a conversion that is not finished."""
    return any((place / STATE_FOLDER / "job.json").exists() for place in (folder, folder.absolute().parent))


def missing_manifest(folder: Path) -> str:
    """A message that says why a folder is not a dataset of shards, and what to do."""
    if not folder.is_dir():
        return f"{folder} is a file; name the folder of a dataset" if folder.exists() else f"no such folder: {folder}"
    if is_unfinished(folder):
        return f"the conversion into {folder} is not finished; run the same fastdata convert command again to continue"
    if any(folder.glob("*.tar")):
        return f"{folder} has tar files but no {MANIFEST_NAME}; make one with: fastdata index {folder}"
    return f"{folder} holds no shards; make them with: fastdata convert SOURCE DEST, then name DEST"
