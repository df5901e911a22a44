"""Writes one shard: a tar file and two index files, which get their final names only when they are complete.

The `.idx` file says where each image is in the tar file, with its key, label, size and checksum.  The `.jpegindex` file
holds an index of each JPEG for which one is made: the points at which a decoder can enter that image's data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from fastdata.jpeg_index.index_file import ANY_TIME, Indexed, name_in_tar, path_beside, writing_indexes
from fastdata.jpeg_index.make import JpegIndexer
from fastdata.native import NativeMissing
from fastdata.shards.format import NO_LABEL, RECORD, ShardIndex, ShardInfo, crc32c, file_crc32c, index_name, names_text
from fastdata.shards.parts import PartTable
from fastdata.shards.tar import END_OF_ARCHIVE, padding, tar_header
from fastdata.system.files import sync_file, write_whole

__all__ = ["IndexBuilder", "TarWriter"]

_BUFFER_BYTES = 1 << 20


class IndexBuilder:
    """Collects the contents of a shard's `.idx` and `.jpegindex` files, and writes both."""

    def __init__(self) -> None:
        self._records: list[tuple[int, int, int, int, int, int, int]] = []
        self._keys: list[bytes] = []
        self._keys_bytes = 0
        self._paths: list[str] = []  # of each image in the source of the conversion
        self._parts: list[tuple[int, str, int, int, int]] = []  # see `PartTable.of`
        self._jpegs: list[tuple[str, bytes]] = []  # (name, index) of each JPEG that has an index
        try:
            self._indexer: JpegIndexer | None = JpegIndexer()
        except NativeMissing:
            self._indexer = None

    def __len__(self) -> int:
        return len(self._records)

    def jpeg_index(self, image: bytes) -> bytes:
        """A JPEG's index; empty for an image without one, or without the native core, which makes them."""
        return self._indexer.make(image) if self._indexer is not None else b""

    def add(
        self,
        key: str,
        label: int,
        offset: int,
        image: bytes,
        width: int,
        height: int,
        source_path: str = "",
        jpeg_index: bytes | None = None,
    ) -> None:
        """Adds a sample; see `TarWriter.add`.  `offset` is that of the image's first byte in the tar file."""
        self._paths.append(source_path)
        encoded = key.encode("utf-8", "surrogateescape")
        self._keys.append(encoded)
        self._keys_bytes += len(encoded)
        self._records.append((offset, self._keys_bytes, label, len(image), width, height, crc32c(image)))
        if index := self.jpeg_index(image) if jpeg_index is None else jpeg_index:
            self._jpegs.append((name_in_tar(offset), index))

    def add_part(self, extension: str, offset: int, data: bytes) -> None:
        """Adds another member of the latest sample; `offset` is that of its first byte in the tar file."""
        self._parts.append((len(self) - 1, extension, offset, len(data), crc32c(data)))

    def write_idx(self, path: Path, tar_bytes: int, tar_crc32c: int, jpeg_index: tuple[int, int]) -> ShardInfo:
        """Writes the `.idx` file of a tar file; returns the shard's entry for the manifest.

        Args:
            path: path of the tar file.
            tar_bytes: size of the tar file.
            tar_crc32c: checksum of the tar file.
            jpeg_index: size in bytes and CRC-32C of the `.jpegindex` file, from `write_jpegindex`.
        """
        names = names_text(self._keys, self._paths)
        index = ShardIndex(
            np.array(self._records, RECORD),
            b"".join(self._keys),
            tar_bytes,
            tar_crc32c,
            *jpeg_index,
            names,
            PartTable.of(self._parts),
        ).to_bytes()
        write_whole(Path(index_name(str(path))), index)
        return ShardInfo(
            name=path.name,
            samples=len(self),
            tar_bytes=tar_bytes,
            tar_crc32c=tar_crc32c,
            index_crc32c=crc32c(index),
        )

    def write_jpegindex(self, path: Path, tar_bytes: int) -> tuple[int, int]:
        """Writes the `.jpegindex` file of a tar file; returns its size in bytes and CRC-32C, or zeros if there is none.

        Without the native core, which makes the indexes, a file that exists is kept.
        """
        beside = path_beside(path)
        if self._indexer is None and beside.exists():  # readers check it
            return beside.stat().st_size, file_crc32c(beside)
        if not self._jpegs:
            beside.unlink(missing_ok=True)
            return 0, 0
        with writing_indexes(beside, "") as add:
            for name, index in self._jpegs:
                add(Indexed(name, tar_bytes, ANY_TIME, index))
        return beside.stat().st_size, file_crc32c(beside)


class TarWriter:
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
        self._tar_bytes = self._tar_crc32c = 0

    def add(
        self,
        key: str,
        extension: str,
        image: bytes,
        label: int,
        width: int,
        height: int,
        parts: Sequence[tuple[str, bytes]] = (),
        source_path: str = "",
        jpeg_index: bytes | None = None,
    ) -> None:
        """Appends one sample.

        Args:
            key: the sample's name, unique in the dataset, without a dot after the last slash.
            extension: the image's extension without dot, which tells its format.
            image: the encoded image.
            label: class number, or `NO_LABEL`.
            width: width of the image in pixels.
            height: height of the image in pixels.
            parts: extensions without dot, and bytes, of the sample's other parts.
            source_path: path of the image in the source of the conversion, with slashes; "" if it is not known.
            jpeg_index: what `jpeg_index` returned for the image; None makes it.
        """
        offset = self._write_member(f"{key}.{extension}", image)
        self._index.add(key, label, offset, image, width, height, source_path, jpeg_index)
        if label != NO_LABEL:
            self._write_member(f"{key}.cls", str(label).encode())
        for field, data in parts:
            self._index.add_part(field, self._write_member(f"{key}.{field}", data), data)

    def jpeg_index(self, image: bytes) -> bytes:
        """See `IndexBuilder.jpeg_index`."""
        return self._index.jpeg_index(image)

    def finish(self) -> ShardInfo:
        """Writes the index files, and gives all files their final names in this order: `.jpegindex`, tar, `.idx`.

        So where a new `.idx` file is, the other files are complete.

        Raises:
            OSError: the disk is full, or writing failed for another reason.
        """
        self._write(END_OF_ARCHIVE)
        sync_file(self._file)
        self._file.close()
        path = self._folder / self._name
        jpeg_index = self._index.write_jpegindex(path, self._tar_bytes)
        os.replace(self._partial, path)
        return self._index.write_idx(path, self._tar_bytes, self._tar_crc32c, jpeg_index)

    def _write_member(self, name: str, data: bytes) -> int:
        """Appends a member; returns the offset of its first byte."""
        self._write(tar_header(name, len(data)))
        offset = self._tar_bytes
        self._write(data)
        self._write(bytes(padding(len(data))))
        return offset

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._tar_bytes += len(data)
        self._tar_crc32c = crc32c(data, self._tar_crc32c)

    def __enter__(self) -> TarWriter:
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
