"""One shard of a conversion: its job, writing it, and the note that says it is finished."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fastdata.errors import ConversionError, OptionError, in_words
from fastdata.jpeg_index.index_file import is_beside
from fastdata.limits import check_encoded_bytes
from fastdata.loaders import pillow
from fastdata.loaders.unpacked import as_file
from fastdata.shards.conversion.recode import UNPACKED, Recoding, described
from fastdata.shards.format import ShardIndex, ShardInfo, crc32c, index_name
from fastdata.shards.part_files import read_shard_file
from fastdata.shards.records import Part, Ref, listing
from fastdata.shards.writer import TarWriter
from fastdata.system.disk_space import space_errors
from fastdata.system.files import open_descriptor, read_file, write_whole

__all__ = [
    "KEPT",
    "ON_ERROR",
    "ConvertOptions",
    "ShardDone",
    "ShardJob",
    "check_apart",
    "finished_shard",
    "write_shard",
]

OnUnreadable: TypeAlias = Literal["raise", "skip"]
KEPT = "finished shards are kept: free some space and run the same command again to continue"
ON_ERROR: tuple[OnUnreadable, ...] = ("raise", "skip")


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of a conversion.

    Attributes:
        shard_bytes: largest amount of source data in a shard, in bytes.
        shuffle_seed: random seed for the order in which samples are written; None keeps the order of the source.
        recoding: conversion of every image.
        on_error: policy for an unreadable image: "raise", or "skip", which lists it in the manifest.
    """

    shard_bytes: int = 256 << 20
    shuffle_seed: int | None = None
    recoding: Recoding = field(default_factory=Recoding)
    on_error: OnUnreadable = "raise"

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise OptionError(f"shard_bytes={self.shard_bytes} is not a positive integer")
        if self.on_error not in ON_ERROR:
            raise OptionError(f"on_error={self.on_error!r} is not accepted; use one of {', '.join(ON_ERROR)}")

    def to_dict(self) -> dict[str, Any]:
        """All options, as plain values."""
        return asdict(self)

    def bytes_decided_by(self) -> dict[str, Any]:
        """The options that must be the same to continue a conversion.

        `on_error` is not among them: a shard's note lists the images that were skipped.
        """
        return {name: value for name, value in self.to_dict().items() if name != "on_error"}


@dataclass(frozen=True)
class ShardJob:
    """One shard to write.

    Attributes:
        folder: the shard's folder.
        name: file name of the shard.
        refs: samples of the shard.
        options: options of the conversion.
        note: the file that says the shard is finished.
        stage: a temporary file with the samples of this shard only, removed when the shard is finished; or None.
    """

    folder: str
    name: str
    refs: list[Ref]
    options: ConvertOptions
    note: str
    stage: str | None = None


@dataclass(frozen=True)
class ShardDone:
    """A finished shard: its manifest entry, a checksum of its samples, what was read, skipped and unpacked."""

    info: ShardInfo
    listing: int
    source_samples: int
    source_bytes: int
    skipped: list[tuple[str, str]]
    unpacked: int = 0

    def to_text(self) -> str:
        """The note, as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ShardDone:
        """Reads what `to_text` wrote."""
        content = json.loads(text)
        skipped = [(key, reason) for key, reason in content["skipped"]]
        return cls(
            ShardInfo(**content["info"]),
            content["listing"],
            content["source_samples"],
            content["source_bytes"],
            skipped,
            content.get("unpacked", 0),
        )


def write_shard(job: ShardJob) -> ShardDone:
    """Writes one shard, unless its note says that it is finished.

    Raises:
        ConversionError: an image is unreadable, or the disk is full.
    """
    done = finished_shard(job.folder, job.name, Path(job.note), on_error=job.options.on_error)
    if done is None or done.listing != listing(job.refs):
        done = _make_shard(job)
    if job.stage is not None:
        Path(job.stage).unlink(missing_ok=True)
    return done


def _make_shard(job: ShardJob) -> ShardDone:
    skipped: list[tuple[str, str]] = []
    source_bytes = unpacked = 0
    Path(job.note).touch()  # until it says more, it says whose the shard is that may be there already
    with space_errors(job.folder, KEPT):
        with TarWriter(Path(job.folder), job.name) as writer, _Ranges() as ranges:
            for ref in job.refs:
                try:
                    if ref.problem:
                        raise ConversionError(ref.problem)
                    data = ranges.read(ref)
                    source_bytes += len(data)
                    image = job.options.recoding.apply(data)
                    parts = ranges.read_parts(ref)
                    check_apart(image.extension, ref.key, (part.extension for part in ref.parts))
                    index = writer.jpeg_index(image.data)
                    if image.data is data and not index:  # which is made of whole JPEGs only
                        pillow.open_rgb(as_file(data))
                except Exception as error:
                    if job.options.on_error == "raise":
                        where = ref.where or f"{ref.path} ({ref.key})"
                        told = ref.problem or f"{where} cannot be converted: {_in_words(error)}"
                        raise ConversionError(
                            f"{told}; repair or remove it, or skip such images with --on-error skip, and run the "
                            "command again to continue from here"
                        ) from error
                    skipped.append((ref.key, _in_words(error)))
                    continue
                unpacked += image.extension == UNPACKED
                shape = image.width, image.height
                name = _kept_path(ref, data, image.extension)
                writer.add(ref.key, image.extension, image.data, ref.label, *shape, parts, name, index)
            done = ShardDone(writer.finish(), listing(job.refs), len(job.refs), source_bytes, skipped, unpacked)
        write_whole(Path(job.note), done.to_text().encode())
    return done


def _in_words(error: Exception) -> str:
    """Describes an error in the same words in every run: no addresses of objects, no paths."""
    return error.strerror if isinstance(error, OSError) and error.strerror else in_words(error)


def _read_note(note: Path) -> ShardDone | None:
    """Reads a note; None if it says nothing yet."""
    try:
        return ShardDone.from_text(read_file(note).decode())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def finished_shard(folder: str, name: str, note: Path, *, on_error: str) -> ShardDone | None:
    """The note of a shard, if the shard exists as the note says and has no skipped images unless on_error allows it."""
    if (done := _read_note(note)) is None:
        return None
    try:
        index = read_shard_file(Path(folder, index_name(name)))
        path = os.path.join(folder, name)
        has_its_size = os.path.getsize(path) == done.info.tar_bytes
        whole = has_its_size and is_beside(path, ShardIndex.from_bytes(index, name).jpeg_bytes)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    accepted = not done.skipped or on_error == "skip"
    return done if whole and accepted and crc32c(index) == done.info.index_crc32c else None


def check_apart(extension: str, key: str, fields: Iterable[str]) -> None:
    """Checks that an image is not stored under the name of another part of its sample.

    Args:
        extension: extension of the image's format.
        key: the sample's key.
        fields: extensions of the other parts.

    Raises:
        ConversionError: one of them has this extension.
    """
    if extension in (name.lower() for name in fields):
        raise ConversionError(
            f"the image would be stored as {key}.{extension}, but the sample has another part with that name; rename "
            "that part in the source"
        )


def _kept_path(ref: Ref, data: bytes, extension: str) -> str:
    """An image's path in the source; "" if it is stored in another format, whose files are not called so."""
    kept = UNPACKED, described(as_file(data)).extension
    return ref.source_path if ref.source_path and extension in kept else ""


class _Ranges:
    """Reads samples, keeping the file of the latest one open."""

    def __init__(self) -> None:
        self._path, self._file = "", -1

    def read(self, ref: Ref) -> bytes:
        check_encoded_bytes(ref.size, "the image")
        data = (
            read_file(ref.path) if ref.offset == 0 else self._read_range(ref.path, ref.offset, ref.size)
        )  # 0: a file of its own
        if len(data) != ref.size:
            raise ConversionError(
                f"the source file changed during the conversion: it had {ref.size} bytes when it was listed and has "
                f"{len(data)} now"
            )
        if ref.crc32c is not None and (found := crc32c(data)) != ref.crc32c:
            raise ConversionError(
                f"the image is damaged: its checksum is {found:08x}, but it was {ref.crc32c:08x} when it was stored"
            )
        return data

    def read_parts(self, ref: Ref) -> list[tuple[str, bytes]]:
        """Extensions and bytes of what belongs to a sample beside its image."""
        return [(part.extension, self._read_part(ref, part)) for part in ref.parts]

    def _read_part(self, ref: Ref, part: Part) -> bytes:
        data = self._read_range(ref.path, part.offset, part.size)
        if len(data) != part.size:
            raise ConversionError(
                f"{ref.path} changed during the conversion: {part.extension} had {part.size} bytes when "
                f"it was listed and has {len(data)} now"
            )
        return data

    def _read_range(self, path: str, offset: int, size: int) -> bytes:
        if path != self._path:
            self.close()
            self._path, self._file = path, open_descriptor(path)
        os.lseek(self._file, offset, os.SEEK_SET)
        data = bytearray()
        while len(data) < size and (more := os.read(self._file, size - len(data))):
            data += more
        return bytes(data)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> _Ranges:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
