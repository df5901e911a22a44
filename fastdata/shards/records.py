"""The samples of a tar file: images, each with its label and other parts under the same key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import IO, NamedTuple

from fastdata.errors import ConversionError, ShardError
from fastdata.shards.format import NO_LABEL, crc32c
from fastdata.shards.labels import (
    LABEL_NAMES,
    MOST_LABELS,
    class_number,
    class_numbers,
    integer_label,
)
from fastdata.shards.part_files import open_shard_file
from fastdata.shards.tar import IMAGE_EXTENSIONS, Member, members, split_name

_MOST_LABEL_BYTES = 1 << 20  # of what lies beside an image

__all__ = ["Part", "Ref", "TarSample", "list_tar", "listing", "tar_samples"]


class Part(NamedTuple):
    """Location of another part of a sample, such as a caption, in the file of its image.

    `crc32c` is known where its bytes have been read.
    """

    extension: str
    offset: int
    size: int
    crc32c: int | None = None


class Ref(NamedTuple):
    """Location of one sample's encoded image (offset 0: it is the whole file) and of the sample's other parts.

    `source_path` is the path in the source, relative and with slashes; "" if there is none.
    `crc32c` is known for samples of a stream, whose bytes have been read, and of tar files that have an index.
    `problem` is why the source could not make the sample; "" if it could.  `where` is its place in the source, for
    messages; "" for that of its file.
    """

    key: str
    label: int
    path: str
    offset: int
    size: int
    crc32c: int | None = None
    parts: tuple[Part, ...] = ()
    source_path: str = ""
    problem: str = ""
    where: str = ""


class TarSample(NamedTuple):
    """A sample in a tar file, with its label, which may be a class name."""

    ref: Ref
    label: int | str

    @property
    def where(self) -> str:
        """File and key, for messages."""
        return f"{self.ref.path}: {self.ref.key}"


def list_tar(path: str, classes: list[str] | None = None) -> list[Ref]:
    """Lists the images in a tar file, each with the label that lies beside it under the same key.

    Args:
        path: the tar file.
        classes: class names by number, for labels that are names.

    Raises:
        ConversionError: a label is a name that is not among the classes, or cannot be a label.
        ShardError: the tar file is damaged, or two members of a sample have one name.
    """
    numbers = class_numbers(classes)
    return [
        found.ref._replace(label=class_number(found.label, numbers, found.where))
        for found in tar_samples(path)
        if isinstance(found, TarSample)
    ]


def tar_samples(path: str) -> Iterator[TarSample | int]:
    """Yields samples, and for each group of members without an image the number of members in it."""
    with open_shard_file(path) as file:
        for key, group in groupby(members(file, path), key=lambda member: split_name(member.name)[0]):
            parts = list(group)
            place = file.tell()
            found = _sample(file, path, key, parts)
            file.seek(place)
            yield found if found is not None else len(parts)


def _sample(file: IO[bytes], path: str, key: str, group: Sequence[Member]) -> TarSample | None:
    """The sample that some members are; None if none of them is an image."""
    by_extension = {split_name(member.name)[1]: member for member in reversed(group)}  # of equal ones the first
    image = next((member for member in group if split_name(member.name)[1] in IMAGE_EXTENSIONS), None)
    if image is None:
        return None
    _refuse_two_of_one_name(path, group)
    label: int | str = NO_LABEL
    if (beside := by_extension.get("cls")) is not None:
        label = _class_in(_read(file, beside), f"{path}: {beside.name}")
    if label == NO_LABEL and (beside := by_extension.get("json")) is not None:
        label = _label_in_json(_read(file, beside))
    others = tuple(
        Part(member.name[len(key) + 1 :], member.offset, member.size)
        for member in group
        if member is not image and split_name(member.name)[1] not in ("cls", "")
    )
    return TarSample(Ref(key, NO_LABEL, path, image.offset, image.size, parts=others, source_path=image.name), label)


def _refuse_two_of_one_name(path: str, group: Sequence[Member]) -> None:
    """Raises ShardError if two members of a sample have one name: which of them is meant cannot be known."""
    offsets: dict[str, int] = {}
    for member in group:
        if (first := offsets.setdefault(member.name, member.offset)) != member.offset:
            raise ShardError(
                path,
                f"two members are called {member.name}, with data at bytes {first} and {member.offset}; rename or "
                "remove one of them",
            )


def _read(file: IO[bytes], member: Member) -> bytes:
    if member.size > _MOST_LABEL_BYTES:
        return b""
    file.seek(member.offset)
    return file.read(member.size)


def _class_in(data: bytes, where: str) -> int | str:
    """Class in a .cls member: a number, a name, or NO_LABEL if it is empty."""
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as error:
        raise ConversionError(
            f"{where} is not text: {data[:20]!r}; a label must be a class number or a class name"
        ) from error
    if re.fullmatch(r"[+-]?\d+", text):
        return integer_label(int(text), where)
    if re.fullmatch(r"[+-]?\d*\.\d*(e[+-]?\d+)?|nan", text, re.IGNORECASE) and text != ".":
        raise ConversionError(f"{where} holds {text}; a label must be an integer or a class name")
    return text or NO_LABEL


def _label_in_json(data: bytes) -> int:
    """The number in a .json member, alone or under one of the usual names; `NO_LABEL` where it is none of these."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return NO_LABEL
    if isinstance(content, dict):
        content = next((content[name] for name in LABEL_NAMES if name in content), None)
    if not isinstance(content, int) or isinstance(content, bool) or not 0 <= content < MOST_LABELS:
        return NO_LABEL
    return content


def listing(refs: Iterable[Ref]) -> int:
    """A checksum of the list of samples: keys, labels, sizes and parts."""
    return crc32c("\n".join(map(_line, refs)).encode("utf-8", "backslashreplace"))


def _checksum(part: Part) -> str:
    return f":{part.crc32c:08x}" if part.crc32c is not None else ""


def _line(ref: Ref) -> str:
    checksum = f"\t{ref.crc32c:08x}" if ref.crc32c is not None else ""
    parts = "".join(f"\t{part.extension}:{part.size}{_checksum(part)}" for part in ref.parts)
    return f"{ref.key}\t{ref.label}\t{ref.size}{checksum}{parts}"
