"""The splits of a source: a list of samples with their places, or a stream of samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fastdata.shards.records import Ref

__all__ = ["Keys", "Split", "readable"]


@dataclass(frozen=True, kw_only=True)
class Split:
    """One dataset in a source: "train", "val", or "" if there is only one.

    Attributes:
        classes: class names by label, or None if the source has none.
        refs: the samples of a listed source.
        stream: for a streamed source: yields (key, encoded bytes, label).
        fingerprint: identifies the data, as its `listing` does; None if that is impossible.
        ignored: number of files ignored because their names are not those of images, or they are not regular files.
    """

    classes: list[str] | None
    refs: list[Ref] | None = None
    fingerprint: int | None = None
    ignored: int = 0
    stream: Callable[[], Iterator[tuple[str, bytes, int]]] | None = None


class Keys:
    """Makes keys that are safe in tar files: no dot after the last slash, no path out of the folder, no duplicates."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def unique(self, key: str) -> str:
        """This key made safe, with ~2, ~3, ... added if it was used before."""
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
    """A file name as valid Unicode; undecodable bytes are escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
