"""What a source is made of: samples by their places, or a stream of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fastdata.shards.records import Ref

__all__ = ["Keys", "Split", "readable"]


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
