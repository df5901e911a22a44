"""The splits of a source: a list of samples with their places, or a stream of samples."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastdata.errors import ConversionError
from fastdata.shards.fields import CLASS, IMAGE, KEY, encoded, is_field, names_image
from fastdata.shards.format import NO_LABEL
from fastdata.shards.labels import integer_label
from fastdata.shards.records import Ref

__all__ = ["Keys", "SourcePaths", "Split", "Streamed", "readable", "sample_of"]


class Streamed(NamedTuple):
    """A sample of a stream; `source_path` is "" if it is not known, `parts` has extensions and bytes of its fields.

    `problem` is why the source could not make the sample, which has no data then; "" if it could.  `where` is its place
    in the source, for messages.
    """

    key: str
    data: bytes
    label: int
    source_path: str = ""
    parts: tuple[tuple[str, bytes], ...] = ()
    problem: str = ""
    where: str = ""

    @classmethod
    def of(cls, key: str, make: Callable[[], Streamed]) -> Streamed:
        """The sample that `make` returns, or one with this key and its error as the problem."""
        try:
            return make()
        except ConversionError as error:
            return cls(key, b"", NO_LABEL, problem=str(error))


@dataclass(frozen=True, kw_only=True)
class Split:
    """One dataset in a source: "train", "val", or "" if there is only one.

    Attributes:
        classes: class names by label, or None if the source has none.
        refs: the samples of a listed source.
        stream: yields the samples of a streamed source.
        fingerprint: identifies the data, as its `listing` does; None if that is impossible.
        is_remote: its place is a URL.
        ignored: number of files ignored because their names are not those of images, or they are not regular files.
    """

    classes: list[str] | None
    refs: list[Ref] | None = None
    fingerprint: int | None = None
    is_remote: bool = False
    ignored: int = 0
    stream: Callable[[], Iterator[Streamed]] | None = None


def sample_of(item: Any, where: str) -> Streamed:
    """A sample as Python code gives it.

    Args:
        item: (key, bytes, label); or a dictionary with "__key__", the image under an extension of image files or
            "image", "cls" where there is a class, and other fields by their extensions, see `shards.fields.encoded`.
        where: its place, with which messages begin.

    Raises:
        ConversionError: it is neither, has no key or image, two images, or a value that its extension does not hold.
    """
    if not isinstance(item, Mapping):
        try:
            key, data, label = item
            encoded_image = bytes(memoryview(data))
        except (TypeError, ValueError) as error:
            raise ConversionError(f"{where} is neither (key, bytes, label) nor a dictionary: {error}") from error
        where = f"{where} ({key})"
        return Streamed(str(key), encoded_image, integer_label(label, where), where=where)
    item = {name: value for name, value in item.items() if name == KEY or not str(name).startswith("__")}
    if wrong := [name for name in item if name not in (KEY, IMAGE) and not is_field(name)]:
        raise ConversionError(
            f"{where} has a field {wrong[0]!r}; fields are named like txt or mask.png, with small letters, digits, _, "
            "- and dots between them"
        )
    if KEY not in item:
        raise ConversionError(f"{where} has no {KEY!r}; its fields are {', '.join(map(str, item))}")
    where = f"{where} ({item[KEY]})"
    images = [name for name in item if names_image(name)]
    images = [name for name in images if name != "npy" or len(images) == 1]  # an array beside an image is a field
    if not images:
        raise ConversionError(f"{where} has no image; its fields are {', '.join(map(str, item))}")
    if len(images) > 1:
        raise ConversionError(
            f"{where} has two images, {images[0]} and {images[1]}; give the one that is no more than a field a name "
            f"with a dot, such as other.{images[1]} or mask.png"
        )
    parts = tuple((name, encoded(name, item[name], where)) for name in item if name not in (KEY, CLASS, images[0]))
    image = "png" if images[0] == IMAGE else images[0]  # an array or an image of Pillow's becomes a PNG
    label = integer_label(item.get(CLASS, NO_LABEL), where)
    return Streamed(str(item[KEY]), encoded(image, item[images[0]], where), label, parts=parts, where=where)


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
