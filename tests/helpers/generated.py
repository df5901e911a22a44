"""Sources for `module:function`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import images


def samples() -> Iterator[tuple[str, bytes, int]]:
    """Forty small images; two share a key, one leads out of the folder."""
    for number in range(40):
        key = {7: "same.name", 8: "same.name", 9: "../out"}.get(number, f"{number:03}")
        yield key, images.jpeg(40 + number, 30, seed=number), number % 3


samples.classes = ["a", "b", "c"]  # type: ignore[attr-defined]


def cut_off(stream: Callable[[], Iterator[Any]], at: int) -> Iterator[Any]:
    """The first items of a stream, and then an error."""
    for number, item in enumerate(stream()):
        if number == at:
            raise OSError("the network is down")
        yield item


def nonsense() -> Iterator[object]:
    """Not what is asked for."""
    yield "key", b"bytes"


def with_fields() -> Iterator[dict[str, Any]]:
    """Twenty samples with a caption and metadata."""
    for number in range(20):
        image = images.jpeg(40 + number, 30, seed=number)
        yield {
            "__key__": f"{number:03}",
            "jpg": image,
            "cls": number % 3,
            "txt": f"text {number}",
            "json": {"n": number},
        }
