"""The index file of each shard and the manifest of a dataset.  docs/format.md describes both byte by byte.

Everything read here is untrusted: sizes are checked before memory is allocated, checksums before contents are used.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastdata.errors import ShardError
from fastdata.shards.part_files import check_part, open_shard_file, tar_size
from fastdata.shards.parts import PartTable

__all__ = [
    "INDEX_SUFFIX",
    "MANIFEST_NAME",
    "NO_LABEL",
    "RECORD",
    "STATE_FOLDER",
    "Manifest",
    "ShardIndex",
    "ShardInfo",
    "crc32c",
    "file_crc32c",
    "index_name",
    "names_text",
]

INDEX_SUFFIX = ".idx"
MANIFEST_NAME = "manifest.json"
STATE_FOLDER = ".conversion"  # in a destination while a conversion is not finished
NO_LABEL = -1

RECORD = np.dtype(
    [
        ("offset", "<u8"),  # of the image's first byte in the tar file
        ("key_end", "<u8"),  # where the sample's key ends among the keys; it begins where the one before ends
        ("label", "<i8"),
        ("size", "<u4"),  # bytes of the image
        ("width", "<u4"),  # pixels
        ("height", "<u4"),
        ("crc32c", "<u4"),  # of the image's bytes
    ]
)

_MAGIC = b"FDINDEX\0"
_INDEX_VERSION = 1
_WITH_PARTS = 2  # version of an index that ends with a table of other members
_HEADER = struct.Struct("<8sIIQQQIIQII")
_MANIFEST_FORMAT = "fastdata-shards"
_MANIFEST_VERSION = 1
_CHUNK_BYTES = 16 << 20


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """CRC-32C (Castagnoli; RFC 3720, appendix B.4) of data, continued from `crc`."""
    return int(google_crc32c.extend(crc, data if isinstance(data, bytes) else bytes(data)))


def file_crc32c(path: str | os.PathLike[str]) -> int:
    """CRC-32C of a whole file."""
    crc = 0
    with open_shard_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = crc32c(chunk, crc)
    return crc


@dataclass(frozen=True)
class ShardIndex:
    """The index of one tar file.

    Attributes:
        records: `RECORD`, (N,): one record per image, in the order of the tar file.
        keys: all keys in UTF-8, one after the other.
        names: paths of the images in the source of the conversion, as `names_text` writes them; empty for none.
        parts: the samples' other members; an empty table also for indexes of version 1, which do not have it.
        tar_bytes: size of the tar file.
        tar_crc32c: checksum of the whole tar file.
        jpeg_bytes: size of the file with the indexes of the images that are JPEGs; 0 for none.
        jpeg_crc32c: its checksum.
    """

    records: npt.NDArray[Any]
    keys: bytes
    tar_bytes: int
    tar_crc32c: int
    jpeg_bytes: int = 0
    jpeg_crc32c: int = 0
    names: bytes = b""
    parts: PartTable = field(default_factory=PartTable)

    def __len__(self) -> int:
        return len(self.records)

    def key(self, row: int) -> str:
        """A sample's key: its name in the tar file without the extension."""
        return self._key_bytes(row).decode("utf-8", "replace")

    def _key_bytes(self, row: int) -> bytes:
        begin = int(self.records["key_end"][row - 1]) if row else 0
        return self.keys[begin : int(self.records["key_end"][row])]

    def source_paths(self) -> list[str]:
        """Path of each image in the source of the conversion, with slashes; "" where it is not known."""
        entries = self.names.split(b"\0")
        if len(entries) != len(self):  # no names, or something that a later version has put there
            return [""] * len(self)
        keys = [self._key_bytes(row) for row in range(len(self))]
        paths = (key + entry if entry[:1] == b"." else entry[1:] for key, entry in zip(keys, entries, strict=True))
        return [os.fsdecode(path) for path in paths]

    def to_bytes(self) -> bytes:
        """The contents of the index file."""
        body = self.records.tobytes() + self.keys + self.names + (self.parts.to_bytes() if len(self.parts) else b"")
        version = _WITH_PARTS if len(self.parts) else _INDEX_VERSION
        text_bytes = len(self.keys) + len(self.names)
        counts = (len(self.records), self.tar_bytes, text_bytes, self.tar_crc32c, crc32c(body))
        jpeg = self.jpeg_bytes, self.jpeg_crc32c
        header = _HEADER.pack(_MAGIC, version, RECORD.itemsize, *counts, *jpeg, 0)[:-4]
        return header + struct.pack("<I", crc32c(header)) + body

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> ShardIndex:
        """Reads and checks an index file.

        Args:
            data: the whole file.
            name: the file's name, for messages.

        Raises:
            ShardError: it is damaged, cut short, of another version, or points outside its tar file.
        """
        if len(data) < _HEADER.size:
            raise ShardError(name, "index cut short", offset=len(data), expected=f"{_HEADER.size} bytes of header")
        magic, version, record_bytes, samples, tar_bytes, keys_bytes, tar_crc, body_crc, *jpeg, header_crc = (
            _HEADER.unpack(data[: _HEADER.size])
        )
        if magic != _MAGIC:
            raise ShardError(name, "not an index file", offset=0, expected=_MAGIC, found=magic)
        if version not in (_INDEX_VERSION, _WITH_PARTS) or record_bytes != RECORD.itemsize:
            expected = f"{_INDEX_VERSION} or {_WITH_PARTS}"
            raise ShardError(name, "index file has an unsupported version", offset=8, expected=expected, found=version)
        found = crc32c(data[: _HEADER.size - 4])
        if found != header_crc:
            raise ShardError(name, "damaged index header", offset=0, expected=_hex(header_crc), found=_hex(found))
        expected_bytes = _HEADER.size + samples * RECORD.itemsize + keys_bytes
        if expected_bytes > len(data) or (version == _INDEX_VERSION and expected_bytes != len(data)):
            raise ShardError(
                name, "index file has the wrong length", offset=0, expected=expected_bytes, found=len(data)
            )
        found = crc32c(memoryview(data)[_HEADER.size :])
        if found != body_crc:
            raise ShardError(name, "damaged index", offset=_HEADER.size, expected=_hex(body_crc), found=_hex(found))
        records = np.frombuffer(data, RECORD, samples, _HEADER.size)
        text = data[_HEADER.size + samples * RECORD.itemsize : expected_bytes]
        end = min(int(records["key_end"][-1]), len(text)) if samples else len(text)
        parts = PartTable()
        if version == _WITH_PARTS:
            parts = PartTable.from_bytes(data[expected_bytes:], samples=samples, tar_bytes=tar_bytes, name=name)
        index = cls(records, text[:end], tar_bytes, tar_crc, jpeg[0], jpeg[1], text[end:], parts)
        index.check(name)
        return index

    @classmethod
    def beside(cls, path: str) -> ShardIndex | None:
        """The index of a tar file, if it has one of fastdata's; other programs write files of the same name.

        Raises:
            ShardError: it is damaged, or of another tar file.
        """
        name = index_name(path)
        try:
            with open_shard_file(name) as file:
                check_part(os.fstat(file.fileno()).st_size, name)
                data = file.read() if file.read(len(_MAGIC)) == _MAGIC else b""
        except FileNotFoundError:
            return None
        if not data:
            return None
        index = cls.from_bytes(_MAGIC + data, name)
        if (found := tar_size(path)) != index.tar_bytes:
            raise ShardError(
                name,
                "index of another tar file, or the tar file has changed; make a new one with fastdata index --force",
                expected=f"{index.tar_bytes} bytes",
                found=found,
            )
        return index

    def check(self, name: str) -> None:
        """Raises ShardError unless every record lies inside the tar file and the keys."""
        ends, keys = self.records["offset"] + self.records["size"], self.records["key_end"]
        wrong = (ends > self.tar_bytes) | (ends < self.records["offset"]) | (keys > len(self.keys))
        wrong[1:] |= (keys[1:] < keys[:-1]) | (self.records["offset"][1:] < ends[:-1])
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ShardError(
                name,
                f"record {row} is invalid (its byte range or its key is out of place)",
                offset=_HEADER.size + row * RECORD.itemsize,
                expected=f"a byte range after the previous image and below {self.tar_bytes}",
                found=f"offset {self.records['offset'][row]}, size {self.records['size'][row]}",
            )


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """A shard's entry in the manifest; the index file is beside the tar file, with the suffix .idx.

    Attributes:
        name: file name of the tar file.
        samples: number of images.
        tar_bytes: size of the tar file.
        tar_crc32c: checksum of the tar file.
        index_crc32c: checksum of the index file.
    """

    name: str
    samples: int
    tar_bytes: int
    tar_crc32c: int
    index_crc32c: int

    @property
    def index_name(self) -> str:
        """File name of the index."""
        return index_name(self.name)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a dataset of shards.

    Attributes:
        classes: class names by label; None if there are none.
        shards: the shards, in order.
        options: the options of the conversion that decide the bytes.
        skipped: (key, reason) of each image that could not be converted.
        source: number of samples and bytes that were read from the source, and its fingerprint.
        tars: folder or URL of the tar files, where the indexes lie elsewhere; None for tar files beside the manifest.
    """

    classes: list[str] | None
    shards: list[ShardInfo]
    options: dict[str, Any] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    source: dict[str, int] = field(default_factory=dict)
    tars: str | None = None

    @property
    def samples(self) -> int:
        """Number of images."""
        return sum(shard.samples for shard in self.shards)

    def to_text(self) -> str:
        """The contents of the manifest file: JSON, with a checksum of everything else in it."""
        entries = {name: value for name, value in asdict(self).items() if name != "tars" or value is not None}
        content = {"format": _MANIFEST_FORMAT, "version": _MANIFEST_VERSION, "samples": self.samples, **entries}
        return json.dumps({**content, "checksum": _hex(_checksum(content))}, indent=1, ensure_ascii=False) + "\n"

    def _check(self) -> None:
        """Raises TypeError unless everything is of its kind."""
        names = [shard.name for shard in self.shards] + (self.classes if self.classes is not None else [])
        numbers = [
            number
            for shard in self.shards
            for number in (shard.samples, shard.tar_bytes, shard.tar_crc32c, shard.index_crc32c)
        ]
        names += [self.tars] if self.tars is not None else []
        if not all(isinstance(each, str) for each in names) or not isinstance(self.classes, list | None):
            raise TypeError("a name is not a string")
        if not all(isinstance(each, int) and each >= 0 for each in numbers):
            raise TypeError("a size, count or checksum is not an integer from 0")

    @classmethod
    def from_text(cls, text: str | bytes, name: str) -> Manifest:
        """Reads and checks a manifest file.

        Raises:
            ShardError: it is damaged or of another version.
        """
        try:
            content = json.loads(text)
            if content["format"] != _MANIFEST_FORMAT:
                raise ShardError(name, "not a manifest", expected=_MANIFEST_FORMAT, found=content["format"])
            if content["version"] != _MANIFEST_VERSION:
                expected, found = _MANIFEST_VERSION, content["version"]
                raise ShardError(name, "manifest has an unsupported version", expected=expected, found=found)
            given = content.pop("checksum")
            if given != _hex(_checksum(content)):
                raise ShardError(name, "damaged manifest", expected=given, found=_hex(_checksum(content)))
            entries = {entry.name: content[entry.name] for entry in fields(cls) if entry.name != "tars"}
            entries["tars"] = content.get("tars")
            entries["shards"] = [ShardInfo(**shard) for shard in entries["shards"]]
            entries["skipped"] = [(key, reason) for key, reason in entries["skipped"]]
            manifest = cls(**entries)
            manifest._check()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ShardError(name, f"manifest cannot be read ({type(error).__name__}: {error})") from error
        for shard in manifest.shards:
            plain = PurePosixPath(shard.name).name == shard.name and shard.name.endswith(".tar")
            if not plain or "\\" in shard.name or "\0" in shard.name:
                raise ShardError(name, "manifest names a file outside of its folder", found=shard.name)
        return manifest


def names_text(keys: Sequence[bytes], paths: Sequence[str]) -> bytes:
    """The paths of images in the source of a conversion, as the index holds them; empty if none is known.

    Entries are separated by zeros: `.EXTENSION` for KEY.EXTENSION, `/PATH` for another path, empty if it is not known.
    """
    if not any(paths):
        return b""
    entries = []
    for key, path in zip(keys, map(os.fsencode, paths), strict=True):
        is_key = path.startswith(key + b".")
        entries.append(path[len(key) :] if is_key else b"/" + path if path else b"")
    return b"\0".join(entries)


def index_name(shard: str) -> str:
    """The file name or path of the index of a shard."""
    return shard.removesuffix(".tar") + INDEX_SUFFIX


def _checksum(content: dict[str, Any]) -> int:
    return crc32c(json.dumps(content, sort_keys=True).encode())


def _hex(crc: int) -> str:
    return f"{crc:08x}"
