"""Puts a stream down in files from which workers read: one for each shard, which goes when the shard is finished.

Finished shards need none, so whoever continues a conversion reads their samples, compares them with the shard's note,
and puts down only what comes after.  Where they are other samples by now, they have gone by when that is seen: the
stream is read once more from its beginning, and all is put down from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from fastdata.errors import ConversionError
from fastdata.shards.conversion.job import ConvertOptions
from fastdata.shards.conversion.samples import Split
from fastdata.shards.conversion.shard_plan import room_in, stored_bytes
from fastdata.shards.format import crc32c
from fastdata.shards.records import Ref, listing

__all__ = ["staged"]

Numbered = tuple[int, str, bytes, int]


def staged(
    split: Split, folder: Path, options: ConvertOptions, finished: Callable[[int], int | None]
) -> Iterator[list[Ref]]:
    """The samples of each shard, in files of the folder unless the shard is finished.

    Args:
        split: a stream.
        folder: of the files; those of an earlier run go.
        options: say how large a shard is.
        finished: the listing of a shard that is made, by its number; None where there is none.

    Raises:
        ConversionError: the stream is another one when it is read again.
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
    "the source gives other samples each time it is read, so an unfinished conversion of it cannot be continued; let "
    "it give the same ones in the same order, or begin again with --overwrite"
)


def _numbered(split: Split, options: ConvertOptions) -> Iterator[Numbered]:
    """The stream, each sample with the number of its shard before it."""
    assert split.stream is not None
    number, room = -1, 0
    for key, data, label in split.stream():
        size = stored_bytes(len(data))
        if number < 0 or size > room:
            number, room = number + 1, room_in(options)
        room -= size
        yield number, key, data, label


def _put_down(samples: Iterable[Numbered], path: Path, *, keep: bool) -> list[Ref]:
    refs: list[Ref] = []
    with open(path, "wb") if keep else contextlib.nullcontext() as file:
        at = 1  # an offset of 0 means a file of its own
        if file is not None:
            file.write(b"\0")
        for _, key, data, label in samples:
            refs.append(Ref(key, label, str(path), at, len(data), crc32c(data)))
            at += len(data)
            if file is not None:
                file.write(data)
    return refs
