"""Tar files in WebDataset's naming as a source: images, labels beside them, and whatever else belongs to a sample."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import IO, NamedTuple

from fastdata.errors import ConversionError, DatasetError
from fastdata.shards.format import MANIFEST_NAME, NO_LABEL
from fastdata.shards.labels import LABEL_NAMES, MOST_LABELS, class_number, class_numbers, classes_for, integer_label
from fastdata.shards.samples import Keys, Part, Ref, Split, listing
from fastdata.shards.tar import IMAGE_EXTENSIONS, Member, members, split_name

__all__ = ["list_tar", "tar_splits"]

_MOST_MEMBER_BYTES = 1 << 30  # a sample is held in memory while it is copied
_MOST_LABEL_BYTES = 1 << 20


class _Found(NamedTuple):
    """A sample in a tar file: where it is, and its label, which may be a name."""

    ref: Ref
    label: int | str

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"{self.ref.path}: {self.ref.key}"


def tar_splits(paths: Sequence[str], classes: list[str] | None) -> dict[str, Split]:
    """One dataset, or one for each folder that the files lie in.

    Raises:
        ConversionError: labels do not agree, a sample is too large, or folders have the same name.
        DatasetError: there are no images.
        ShardError: a file is damaged.
    """
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        by_folder.setdefault(os.path.dirname(os.path.abspath(path)), []).append(path)
    names = {folder: os.path.basename(folder) if len(by_folder) > 1 else "" for folder in by_folder}
    if len(set(names.values())) < len(names):
        raise ConversionError(
            f"folders of the same name hold tar files: {', '.join(by_folder)}; convert them one by one"
        )
    ignored = dict.fromkeys(by_folder, 0)
    found: dict[str, list[_Found]] = {}
    for folder, inside in by_folder.items():
        every = [sample for path in inside for sample in _samples(path)]
        found[folder] = [sample for sample in every if isinstance(sample, _Found)]
        ignored[folder] = sum(sample for sample in every if isinstance(sample, int))
    occurring = classes_for(((each.label, each.where) for split in found.values() for each in split), classes)
    return {
        names[folder]: replace(
            _split(samples, by_folder[folder], _classes_beside(by_folder[folder][0]) or occurring),
            ignored=ignored[folder],
        )
        for folder, samples in found.items()
    }


def _split(samples: Sequence[_Found], paths: Sequence[str], classes: list[str] | None) -> Split:
    if not samples:
        raise DatasetError(f"no images in {paths[0]}{' and others' if len(paths) > 1 else ''}")
    keys, refs, numbers = Keys(), [], class_numbers(classes)
    for sample in samples:
        for size in (sample.ref.size, *(part.size for part in sample.ref.parts)):
            if size > _MOST_MEMBER_BYTES:
                raise ConversionError(
                    f"{sample.where} has a part of {size} bytes; accepted are {_MOST_MEMBER_BYTES}, since a sample is "
                    "held in memory while it is copied: keep such a file outside of the tar file"
                )
        label = class_number(sample.label, numbers, sample.where)
        refs.append(sample.ref._replace(key=keys.unique(sample.ref.key), label=label))
    return Split(classes=classes, refs=refs, fingerprint=listing(refs))


def list_tar(path: str, classes: list[str] | None = None) -> list[Ref]:
    """The images in a tar file, each with the label that lies beside it under the same key.

    Args:
        path: the file.
        classes: names by number, for labels that are names.

    Raises:
        ConversionError: a label is a name that is not among the classes, or no label at all.
        ShardError: the file is damaged.
    """
    numbers = class_numbers(classes)
    return [
        found.ref._replace(label=class_number(found.label, numbers, found.where))
        for found in _samples(path)
        if isinstance(found, _Found)
    ]


def _samples(path: str) -> Iterator[_Found | int]:
    """Samples, and how many members lie side by side of which none is an image."""
    with open(path, "rb") as file:
        for key, group in groupby(members(file, path), key=lambda member: split_name(member.name)[0]):
            parts = list(group)
            place = file.tell()
            found = _sample(file, path, key, parts)
            file.seek(place)
            yield found if found is not None else len(parts)


def _sample(file: IO[bytes], path: str, key: str, group: Sequence[Member]) -> _Found | None:
    """The sample that some members are; None if none of them is an image."""
    by_extension = {split_name(member.name)[1]: member for member in reversed(group)}  # of equal ones the first
    image = next((member for member in group if split_name(member.name)[1] in IMAGE_EXTENSIONS), None)
    if image is None:
        return None
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
    return _Found(Ref(key, NO_LABEL, path, image.offset, image.size, parts=others), label)


def _read(file: IO[bytes], member: Member) -> bytes:
    if member.size > _MOST_LABEL_BYTES:
        return b""
    file.seek(member.offset)
    return file.read(member.size)


def _class_in(data: bytes, where: str) -> int | str:
    """What a .cls member holds: a number, a name, or nothing."""
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as error:
        raise ConversionError(
            f"{where} is no text: {data[:20]!r}; a label is a class number or a class name"
        ) from error
    if re.fullmatch(r"[+-]?\d+", text):
        return integer_label(int(text), where)
    if re.fullmatch(r"[+-]?\d*\.\d*(e[+-]?\d+)?|nan", text, re.IGNORECASE) and text != ".":
        raise ConversionError(f"{where} holds {text}; a label is a class number without a point, or a class name")
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


def _classes_beside(path: str) -> list[str] | None:
    try:
        classes = json.loads(Path(path).with_name(MANIFEST_NAME).read_bytes()).get("classes")
    except (OSError, ValueError, AttributeError):
        return None
    return classes if isinstance(classes, list) else None
