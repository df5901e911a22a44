"""Writes one shard: a tar file and its index, which get their final names only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from fastdata.shards.format import NO_LABEL, RECORD, ShardIndex, ShardInfo, crc32c, index_name
from fastdata.shards.tar import END_OF_ARCHIVE, padding, tar_header
from fastdata.system.files import sync_file, write_whole

__all__ = ["IndexBuilder", "ShardWriter"]

_BUFFER_BYTES = 1 << 20


class IndexBuilder:
    """Collects the index records of one shard."""

    def __init__(self) -> None:
        self._records: list[tuple[int, int, int, int, int, int, int]] = []
        self._keys: list[bytes] = []
        self._keys_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, key: str, label: int, offset: int, image: bytes, width: int, height: int) -> None:
        """Adds a sample; see `ShardWriter.add`.  `offset` is that of the image's first byte in the tar file."""
        encoded = key.encode("utf-8", "surrogateescape")
        self._keys.append(encoded)
        self._keys_bytes += len(encoded)
        self._records.append((offset, self._keys_bytes, label, len(image), width, height, crc32c(image)))

    def build(self, tar_bytes: int, tar_crc32c: int) -> ShardIndex:
        """The index of a tar file with this size and checksum."""
        return ShardIndex(np.array(self._records, RECORD), b"".join(self._keys), tar_bytes, tar_crc32c)


class ShardWriter:
    """Writes samples to a tar file under a temporary name; `finish` gives it its final name.

    Leaving the `with` block without `finish` removes what was written.

    Args:
        folder: the folder of the shard.
        name: file name of the tar file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._partial = folder / f".{name}.partial"
        self._file = open(self._partial, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115 - closed in __exit__
        self._index = IndexBuilder()
        self._at = self._crc = 0

    def add(
        self,
        key: str,
        extension: str,
        image: bytes,
        label: int,
        width: int,
        height: int,
        parts: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Appends one sample.

        Args:
            key: the sample's name, unique in the dataset, without a dot after the last slash.
            extension: the image's extension, which tells its format.
            image: the encoded image.
            label: class number, or `NO_LABEL`.
            width: width of the image in pixels.
            height: height of the image in pixels.
            parts: extensions and bytes of the sample's other parts.
        """
        name = f"{key}.{extension}"
        self._index.add(key, label, self._at + len(tar_header(name, len(image))), image, width, height)
        self._write_member(name, image)
        if label != NO_LABEL:
            self._write_member(f"{key}.cls", str(label).encode())
        for name, data in parts:
            self._write_member(f"{key}.{name}", data)

    def finish(self) -> ShardInfo:
        """Writes the index and gives both files their final names, the index last.

        Raises:
            OSError: the disk is full, or writing failed for another reason.
        """
        self._write(END_OF_ARCHIVE)
        sync_file(self._file)
        self._file.close()
        index = self._index.build(self._at, self._crc).to_bytes()
        os.replace(self._partial, self._folder / self._name)
        write_whole(self._folder / index_name(self._name), index)
        return ShardInfo(
            name=self._name,
            samples=len(self._index),
            tar_bytes=self._at,
            tar_crc32c=self._crc,
            index_crc32c=crc32c(index),
        )

    def _write_member(self, name: str, data: bytes) -> None:
        self._write(tar_header(name, len(data)))
        self._write(data)
        self._write(bytes(padding(len(data))))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)
        self._crc = crc32c(data, self._crc)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()  # writes what is buffered, and may find the disk full once more
        except OSError:
            if error is None:
                raise
        finally:
            self._partial.unlink(missing_ok=True)
