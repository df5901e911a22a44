"""Patterns for the names of many shards."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from fastdata.errors import DatasetError, OptionError

__all__ = ["expand_braces", "is_url", "refuse_compressed", "refuse_url"]


def is_url(place: str | os.PathLike[str]) -> bool:
    """True for URLs; a path may have made one slash of two, and C:/ is a disk."""
    text = os.fspath(place)
    return "://" in text or re.match(r"[A-Za-z][\w+.-]+:/", text) is not None


def refuse_url(destination: str | os.PathLike[str]) -> None:
    """Raises OptionError if shards are to be written to a URL."""
    if is_url(destination):
        raise OptionError(
            f"{destination} is a URL, but shards are written to a local folder; copy it to the store when it is "
            "finished, for example with fsspec (see the guide), rclone or the store's own tool"
        )


def expand_braces(pattern: str) -> list[str]:
    """Expands shell braces, as in "a-{000..002}.tar" and "{a,b}.tar", from left to right."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    span = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if span is not None:
        width = len(span[1]) if span[1].startswith("0") or len(span[1]) == len(span[2]) else 0
        choices = [f"{number:0{width}}" for number in range(int(span[1]), int(span[2]) + 1)]
    else:
        choices = match[1].split(",")
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [expanded for choice in choices for expanded in expand_braces(head + choice + tail)]


def refuse_compressed(paths: Iterable[str]) -> None:
    """Raises DatasetError if one of these tar files is compressed as a whole."""
    for path in paths:
        if path.endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")):
            raise DatasetError(
                f"{path} is compressed as a whole, so no image in it can be read without all that is before it; unpack "
                "it to a plain .tar (gunzip, unxz, unzstd), which is hardly larger, since images are compressed already"
            )
