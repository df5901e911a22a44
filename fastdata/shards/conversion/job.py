"""One shard of a conversion: what it is to hold, making it, and the note that says it is made."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastdata.errors import ConversionError, OptionError, in_words
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.format import ShardInfo, crc32c, index_name
from fastdata.shards.records import Ref, listing
from fastdata.shards.writer import ShardWriter
from fastdata.system.files import read_file, write_whole

__all__ = ["ON_ERROR", "ConvertOptions", "ShardDone", "ShardJob", "finished_shard", "space_errors", "write_shard"]

ON_ERROR = ("raise", "skip")


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """How to convert.

    Attributes:
        shard_bytes: a shard is closed before it would hold more of the source than this.
        shuffle_seed: draws the order in which samples are written; None keeps the source's.
        recoding: what is done to every image.
        on_error: what an unreadable image does: "raise", or "skip", which notes it in the manifest.
    """

    shard_bytes: int = 256 << 20
    shuffle_seed: int | None = None
    recoding: Recoding = field(default_factory=Recoding)
    on_error: str = "raise"

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise OptionError(f"shard_bytes={self.shard_bytes} is not above 0")
        if self.on_error not in ON_ERROR:
            raise OptionError(f"on_error={self.on_error!r} is not accepted; use one of {', '.join(ON_ERROR)}")

    def to_dict(self) -> dict[str, Any]:
        """All of them, as plain values."""
        return asdict(self)

    def bytes_decided_by(self) -> dict[str, Any]:
        """Those by which one conversion goes on where another ended.

        What becomes of an unreadable image is not among them: a shard's note names the images that it is without.
        """
        return {name: value for name, value in self.to_dict().items() if name != "on_error"}


@dataclass(frozen=True)
class ShardJob:
    """One shard to be made.

    Attributes:
        folder: where it goes.
        name: its file name.
        refs: its samples.
        options: how.
        note: the file that says it is done.
        stage: a file that is there for this shard alone, and goes when it is done.
    """

    folder: str
    name: str
    refs: list[Ref]
    options: ConvertOptions
    note: str
    stage: str | None = None


@dataclass(frozen=True)
class ShardDone:
    """What became of a shard: how the manifest knows it, of which samples, what was read, what was left out."""

    info: ShardInfo
    listing: int
    source_samples: int
    source_bytes: int
    skipped: list[tuple[str, str]]

    def to_text(self) -> str:
        """JSON."""
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
        )


def write_shard(job: ShardJob) -> ShardDone:
    """Makes one shard, unless its note says that it is there.

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
    source_bytes = 0
    Path(job.note).touch()  # until it says more, it says whose the shard is that may be there already
    with space_errors(job.folder):
        with ShardWriter(Path(job.folder), job.name) as writer, _Ranges() as ranges:
            for ref in job.refs:
                try:
                    data = ranges.read(ref)
                    source_bytes += len(data)
                    image = job.options.recoding.apply(data)
                    parts = ranges.read_parts(ref)
                    _check_apart(image.extension, ref)
                except Exception as error:
                    if job.options.on_error == "raise":
                        raise ConversionError(
                            f"{ref.path} ({ref.key}) cannot be converted: {_in_words(error)}; repair or remove it, or "
                            "skip such files with --on-error skip; either way the same command goes on from here"
                        ) from error
                    skipped.append((ref.key, _in_words(error)))
                    continue
                writer.add(ref.key, image.extension, image.data, ref.label, image.width, image.height, parts)
            done = ShardDone(writer.finish(), listing(job.refs), len(job.refs), source_bytes, skipped)
        write_whole(Path(job.note), done.to_text().encode())
    return done


@contextlib.contextmanager
def space_errors(folder: str | Path) -> Iterator[None]:
    """Says what to do when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConversionError(
            f"no space left in {folder}; the shards before it are whole: make room and run the same command again, "
            "which continues"
        ) from error


def _in_words(error: Exception) -> str:
    """What went wrong, the same in every run: no addresses of objects, no paths."""
    return error.strerror if isinstance(error, OSError) and error.strerror else in_words(error)


def finished_shard(folder: str, name: str, note: Path, *, on_error: str) -> ShardDone | None:
    """What the note of a shard says, if the shard is there as it says, and without images only where that may be."""
    try:
        done = ShardDone.from_text(note.read_text())
        whole = os.path.getsize(os.path.join(folder, name)) == done.info.tar_bytes
        index = Path(folder, index_name(name)).read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    accepted = not done.skipped or on_error == "skip"
    return done if whole and accepted and crc32c(index) == done.info.index_crc32c else None


def _check_apart(extension: str, ref: Ref) -> None:
    """An image is stored under what it is, which must not be the name of another part of its sample."""
    if extension in (part.extension.lower() for part in ref.parts):
        raise ConversionError(
            f"it would be stored as {ref.key}.{extension}, and the sample has another part of that name; rename "
            "that in the source"
        )


class _Ranges:
    """Reads samples, keeping the file of the latest one open."""

    def __init__(self) -> None:
        self._path, self._file = "", -1

    def read(self, ref: Ref) -> bytes:
        data = (
            read_file(ref.path) if ref.offset == 0 else self._read_range(ref.path, ref.offset, ref.size)
        )  # 0: a file of its own
        if len(data) != ref.size:
            raise ConversionError(f"it had {ref.size} bytes when it was listed and has {len(data)} now")
        return data

    def read_parts(self, ref: Ref) -> list[tuple[str, bytes]]:
        """Extensions and bytes of what belongs to a sample beside its image."""
        return [(part.extension, self._read_range(ref.path, part.offset, part.size)) for part in ref.parts]

    def _read_range(self, path: str, offset: int, size: int) -> bytes:
        if path != self._path:
            self.close()
            self._path, self._file = path, os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
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
