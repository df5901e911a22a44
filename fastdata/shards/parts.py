"""The other members of a shard's samples, beside image and class: captions, masks, boxes, in the shard's index."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.errors import ShardError

__all__ = ["PART", "PartTable"]

PART = np.dtype(
    [
        ("row", "<u4"),  # of the sample in the index
        ("field", "<u4"),  # number of the member's extension
        ("offset", "<u8"),  # of the member's first byte in the tar file
        ("size", "<u8"),  # bytes
        ("crc32c", "<u4"),  # of its bytes
    ]
)

_NAMES_BYTES = struct.Struct("<I")


@dataclass(frozen=True)
class PartTable:
    """Table of the other members of a shard's samples.

    Attributes:
        fields: extensions of the members, each once, without the dot in front.
        records: `PART`, (P,): one record per member, in the order of the samples.
    """

    fields: tuple[str, ...] = ()
    records: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, PART))

    @classmethod
    def of(cls, members: Sequence[tuple[int, str, int, int, int]]) -> PartTable:
        """Makes a table of (row, extension, offset, size, checksum) of each member."""
        fields = tuple(dict.fromkeys(member[1] for member in members))
        numbers = {name: number for number, name in enumerate(fields)}
        records = [(row, numbers[name], *place) for row, name, *place in members]
        return cls(fields, np.array(records, PART))

    @cached_property
    def _rows(self) -> npt.NDArray[np.uint32]:
        return np.ascontiguousarray(self.records["row"])

    def __len__(self) -> int:
        return len(self.records)

    def of_field(self, name: str) -> npt.NDArray[Any]:
        """Records of one field's members; none if the shard does not have it."""
        number = self.fields.index(name) if name in self.fields else len(self.fields)
        found: npt.NDArray[Any] = self.records[self.records["field"] == number]
        return found

    def of_row(self, row: int) -> npt.NDArray[Any]:
        """Records of one sample's members."""
        begin, end = np.searchsorted(self._rows, [row, row + 1])
        found: npt.NDArray[Any] = self.records[begin:end]
        return found

    def to_bytes(self) -> bytes:
        """The table as it ends an index file."""
        names = "\0".join(self.fields).encode("utf-8", "surrogateescape")
        return _NAMES_BYTES.pack(len(names)) + names + self.records.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, *, samples: int, tar_bytes: int, name: str) -> PartTable:
        """Reads and checks a table.

        Args:
            data: the table, whose checksum is right.
            samples: number of samples in the index.
            tar_bytes: size of the tar file.
            name: the index file's name, for messages.

        Raises:
            ShardError: it is cut short or not in the order of the samples, or a record points to a sample or field
                that does not exist, or out of the tar file.
        """
        names_bytes = _NAMES_BYTES.unpack(data[: _NAMES_BYTES.size])[0] if len(data) >= _NAMES_BYTES.size else 0
        begin = _NAMES_BYTES.size + names_bytes
        if len(data) < begin or (len(data) - begin) % PART.itemsize:
            raise ShardError(name, "the table of other members has the wrong length", found=f"{len(data)} bytes")
        names = data[_NAMES_BYTES.size : begin].decode("utf-8", "surrogateescape")
        table = cls(tuple(names.split("\0")) if names else (), np.frombuffer(data, PART, offset=begin))
        records = table.records
        ends = records["offset"] + records["size"]
        wrong = (records["row"] >= samples) | (records["field"] >= len(table.fields))
        wrong |= (ends > tar_bytes) | (ends < records["offset"])
        wrong[1:] |= records["row"][1:] < records["row"][:-1]
        if wrong.any():
            raise ShardError(name, f"member {int(np.flatnonzero(wrong)[0])} in its table of other members is invalid")
        return table
