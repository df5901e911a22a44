"""Copies a stream to temporary files for the workers: one file per shard, removed when the shard is finished.

Finished shards need no file: when a conversion is continued, their samples are read from the stream and compared with
the shard's note, and only later samples are copied.  If a shard's samples have changed, this is only known after they
were read, so the stream is then read again from its beginning and everything from there on is copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from fastdata.errors import ConversionError
from fastdata.shards.conversion.job import ConvertOptions
from fastdata.shards.conversion.samples import Split, Streamed
from fastdata.shards.conversion.shard_plan import room_in, stored_bytes
from fastdata.shards.format import crc32c
from fastdata.shards.records import Part, Ref, listing

__all__ = ["staged"]

Numbered = tuple[int, Streamed]


def staged(
    split: Split, folder: Path, options: ConvertOptions, finished: Callable[[int], int | None]
) -> Iterator[list[Ref]]:
    """Yields the samples of each shard, copied to files in the folder unless the shard is finished.

    Args:
        split: a streamed split.
        folder: the folder for the files; files of an earlier run are removed.
        options: give the size of a shard.
        finished: returns the listing of a finished shard by its number, or None if the shard is not finished.

    Raises:
        ConversionError: the stream yields other samples when it is read again.
    """
    for left in folder.glob("stage-*.bin"):
        left.unlink()
    given: list[int] = []
    for again in (False, True):
        count = 0
        for number, samples in groupby(_numbered(split, options), key=itemgetter(0)):
            count = number + 1
            was_given = number < len(given)
            expected = given[number] if was_given else None if again else finished(number)
            refs = _put_down(samples, folder / f"stage-{number:06}.bin", keep=expected is None)
            if expected not in (None, listing(refs)):
                if was_given:
                    raise ConversionError(_OTHER_EACH_TIME)
                break
            if not was_given:
                given.append(listing(refs))
                yield refs
        else:
            if count < len(given):
                raise ConversionError(_OTHER_EACH_TIME)
            return


_OTHER_EACH_TIME = (
    "the source yields different samples each time it is read, so an unfinished conversion cannot be continued; make "
    "it yield the same samples in the same order, or start again with --overwrite"
)


def _numbered(split: Split, options: ConvertOptions) -> Iterator[Numbered]:
    """The stream, each sample with the number of its shard before it."""
    assert split.stream is not None
    number, room = -1, 0
    for sample in split.stream():
        size = stored_bytes(len(sample.data), *(len(data) for _, data in sample.parts))
        if number < 0 or size > room:
            number, room = number + 1, room_in(options)
        room -= size
        yield number, sample


def _put_down(samples: Iterable[Numbered], path: Path, *, keep: bool) -> list[Ref]:
    refs: list[Ref] = []
    with open(path, "wb") if keep else contextlib.nullcontext() as file:
        at = 1  # an offset of 0 means a file of its own
        if file is not None:
            file.write(b"\0")
        for _, sample in samples:
            begin, parts = at, []
            at += len(sample.data)
            for field, content in sample.parts:
                parts.append(Part(field, at, len(content), crc32c=crc32c(content)))
                at += len(content)
            ref = Ref(sample.key, sample.label, str(path), begin, len(sample.data), crc32c(sample.data), tuple(parts))
            refs.append(ref._replace(source_path=sample.source_path, problem=sample.problem, where=sample.where))
            if file is not None:
                file.writelines([sample.data, *(content for _, content in sample.parts)])
    return refs
