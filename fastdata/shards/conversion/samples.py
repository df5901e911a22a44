"""The splits of a source: a list of samples with their places, or a stream of samples."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fastdata.shards.records import Ref

__all__ = ["Keys", "SourcePaths", "Split", "Streamed", "readable"]


class Streamed(NamedTuple):
    """A sample of a stream; `source_path` is "" if it is not known."""

    key: str
    data: bytes
    label: int
    source_path: str = ""


@dataclass(frozen=True, kw_only=True)
class Split:
    """One dataset in a source: "train", "val", or "" if there is only one.

    Attributes:
        classes: class names by label, or None if the source has none.
        refs: the samples of a listed source.
        stream: yields the samples of a streamed source.
        fingerprint: identifies the data, as its `listing` does; None if that is impossible.
        ignored: number of files ignored because their names are not those of images, or they are not regular files.
    """

    classes: list[str] | None
    refs: list[Ref] | None = None
    fingerprint: int | None = None
    ignored: int = 0
    stream: Callable[[], Iterator[Streamed]] | None = None


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


class SourcePaths:
    """Makes paths that files can be restored to: relative, inside of the folder, no duplicates."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def unique(self, path: str) -> str:
        """This path, of an image in the source; "" if it is no file below a folder, or was there before."""
        whole = posixpath.normpath(path) if path else ""
        if "\0" in whole or whole in ("", ".") or whole.startswith(("/", "..")) or whole in self._seen:
            return ""
        self._seen.add(whole)
        return whole


def readable(name: str) -> str:
    """A file name as valid Unicode; undecodable bytes are escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
