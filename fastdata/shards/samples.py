"""What a source is made of: samples by their places, or a stream of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fastdata.shards.format import crc32c

__all__ = ["Keys", "Part", "Ref", "Split", "listing", "readable"]


class Part(NamedTuple):
    """Where another file of a sample lies, like a caption, in the same tar file as its image."""

    extension: str
    offset: int
    size: int


class Ref(NamedTuple):
    """Where one sample's encoded image lies, at offset 0 a file of its own, and what else belongs to the sample.

    The checksum of its bytes is there where they were read to find it: in a stream.
    """

    key: str
    label: int
    path: str
    offset: int
    size: int
    crc32c: int | None = None
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Split:
    """One dataset in a source: "train", "val", or "" where there is only one.

    Attributes:
        classes: names by label, or None where the source has none.
        refs: of a listed source.
        stream: of a streamed one: yields (key, encoded bytes, label).
        fingerprint: tells the data from other data, as its `listing` does; None where nobody can know.
        ignored: files that are no images by their names, or no regular files.
    """

    classes: list[str] | None
    refs: list[Ref] | None = None
    fingerprint: int | None = None
    ignored: int = 0
    stream: Callable[[], Iterator[tuple[str, bytes, int]]] | None = None


def listing(refs: Iterable[Ref]) -> int:
    """A checksum of which samples these are."""
    return crc32c("\n".join(map(_line, refs)).encode("utf-8", "backslashreplace"))


def _line(ref: Ref) -> str:
    checksum = f"\t{ref.crc32c:08x}" if ref.crc32c is not None else ""
    parts = "".join(f"\t{part.extension}:{part.size}" for part in ref.parts)
    return f"{ref.key}\t{ref.label}\t{ref.size}{checksum}{parts}"


class Keys:
    """Makes keys that tar readers keep whole: no dot behind the last slash, no way out of a folder, no key twice."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def unique(self, key: str) -> str:
        """A key like this one that has not been given before."""
        key = readable(key)
        parts = [part for part in key.replace(os.sep, "/").replace("\0", "_").split("/") if part not in ("", ".", "..")]
        *folders, name = parts or ["_"]
        key = "/".join([*folders, name.replace(".", "_")])
        chosen, number = key, 1
        while chosen in self._seen:
            number += 1
            chosen = f"{key}~{number}"
        self._seen.add(chosen)
        return chosen


def readable(name: str) -> str:
    """A name in Unicode, whatever bytes the file system has for it."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
