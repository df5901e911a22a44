"""What can be converted: image folders, tar files, Parquet files, and functions that yield samples.

A source is listed (every sample has a place in a file, so that any process can read it) or streamed (samples come one
after the other, and are put down in a file first).
"""

from __future__ import annotations

import glob
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fastdata.errors import ConversionError, DatasetError
from fastdata.shards.folders import FOLDER_EXTENSIONS, SPLIT_NAMES, folder_splits, folders_in
from fastdata.shards.format import MANIFEST_NAME, NO_LABEL
from fastdata.shards.parquet import LABEL_COLUMNS, parquet_splits
from fastdata.shards.samples import MOST_LABELS, Keys, Ref, Split, listing
from fastdata.shards.tar import IMAGE_EXTENSIONS, members, split_name

__all__ = ["expand_braces", "list_tar", "open_source"]


def open_source(source: str, *, image_column: str | None = None, label_column: str | None = None) -> dict[str, Split]:
    """Finds out what a source is and lists it.

    Args:
        source: a folder of class folders (or of train/ and val/ with class folders), of tar files, of Parquet files, or
            a converted dataset; a tar or Parquet file, or a pattern of them ("{000..009}", "*"); or "module:function".
        image_column: Parquet's column of encoded images; None finds it.
        label_column: the same for labels.

    Returns:
        Splits by name.

    Raises:
        DatasetError: there is nothing of that kind.
        ConversionError: samples have no labels or keys that fit.
    """
    if "://" in source:
        raise DatasetError(
            f"{source} is a URL, and convert reads local files: copy it first (aws s3 sync, gsutil -m rsync -r), or "
            "name a function as module:function that yields (key, bytes, label)"
        )
    if not os.path.exists(source) and re.fullmatch(r"[\w.]+:\w+", source):
        return {"": _function(source)}
    paths = _files(source)
    if paths is None:
        return folder_splits(Path(source))
    if all(path.endswith(".parquet") for path in paths):
        return parquet_splits(paths, image_column, label_column)
    return _tar_splits(paths)


def expand_braces(pattern: str) -> list[str]:
    """Shell braces: "a-{000..002}.tar" and "{a,b}.tar", from left to right."""
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


def _files(source: str) -> list[str] | None:
    """The tar or Parquet files that are meant; None for a folder of class folders."""
    if os.path.isdir(source):
        return _files_in(source)
    found = sorted({path for one in expand_braces(source) for path in glob.glob(one)})
    if not found:
        raise DatasetError(f"no such file, folder or function: {source}; a function is named as module:function")
    if len({os.path.splitext(path)[1] for path in found}) > 1 or not found[0].endswith((".tar", ".parquet")):
        raise DatasetError(f"{source} is neither a folder nor a pattern of .tar or of .parquet files")
    return found


def _files_in(folder: str) -> list[str] | None:
    """The tar or Parquet files in a folder or in those of its splits, unless there are images in class folders."""
    places = [folder, *(os.path.join(folder, name) for name in SPLIT_NAMES)]
    found = sorted(path for place in places for path in glob.glob(f"{glob.escape(place)}/*") if _is_archive(path))
    pictures = any(name.lower().endswith(FOLDER_EXTENSIONS) for sub in folders_in(folder) for name in _some_names(sub))
    if found and pictures:
        raise ConversionError(
            f"{folder} holds both folders of images and {found[0]}; name what is meant, as a pattern of files "
            f"('{folder}/*{os.path.splitext(found[0])[1]}'), or move the others away"
        )
    kinds = {os.path.splitext(path)[1] for path in found}
    if len(kinds) > 1:
        raise ConversionError(f"{folder} holds both .tar and .parquet files; name the ones that are meant as a pattern")
    return found or None


def _is_archive(path: str) -> bool:
    return path.endswith((".tar", ".parquet")) and os.path.isfile(path)


def _some_names(folder: str) -> list[str]:
    """Names in a folder and in the folders of it."""
    return [*os.listdir(folder), *(name for sub in folders_in(folder) for name in os.listdir(sub))]


# ---- tar files


def _tar_splits(paths: Sequence[str]) -> dict[str, Split]:
    """One dataset, or one for each folder that the files lie in."""
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        by_folder.setdefault(os.path.dirname(os.path.abspath(path)), []).append(path)
    if len(by_folder) == 1:
        return {"": _tars(paths)}
    if len({os.path.basename(folder) for folder in by_folder}) < len(by_folder):
        raise ConversionError(
            f"folders of the same name hold tar files: {', '.join(by_folder)}; convert them one by one"
        )
    return {os.path.basename(folder): _tars(found) for folder, found in by_folder.items()}


def _tars(paths: Sequence[str]) -> Split:
    refs, keys = [], Keys()
    for path in paths:
        for ref in list_tar(path):
            refs.append(ref._replace(key=keys.unique(ref.key)))
    if not refs:
        raise DatasetError(f"no images in {paths[0]}{' and others' if len(paths) > 1 else ''}")
    return Split(classes=_classes_beside(paths[0]), refs=refs, fingerprint=listing(refs))


def list_tar(path: str) -> list[Ref]:
    """The images in a tar file, each with the label that lies beside it under the same key.

    Raises:
        ShardError: the file is damaged.
    """
    refs: list[Ref] = []
    image: Ref | None = None
    labels: dict[str, int] = {}
    key = None
    with open(path, "rb") as file:
        for member in members(file, path):
            name, extension = split_name(member.name)
            if name != key:
                refs += _labelled(image, labels)
                key, image, labels = name, None, {}
            if extension in IMAGE_EXTENSIONS and image is None:
                image = Ref(name, NO_LABEL, path, member.offset, member.size)
            elif extension in ("cls", "json") and member.size < 1 << 20:
                place = file.tell()
                file.seek(member.offset)
                labels |= _label_in(extension, file.read(member.size))
                file.seek(place)
    return refs + _labelled(image, labels)


def _labelled(image: Ref | None, labels: dict[str, int]) -> list[Ref]:
    if image is None:
        return []
    return [image._replace(label=labels.get("cls", labels.get("json", NO_LABEL)))]


def _label_in(extension: str, data: bytes) -> dict[str, int]:
    try:
        content = int(data) if extension == "cls" else json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if isinstance(content, dict):
        content = next((content[name] for name in LABEL_COLUMNS if name in content), None)
    if not isinstance(content, int) or isinstance(content, bool) or not 0 <= content < MOST_LABELS:
        return {}
    return {extension: content}


def _classes_beside(path: str) -> list[str] | None:
    try:
        classes = json.loads(Path(path).with_name(MANIFEST_NAME).read_bytes()).get("classes")
    except (OSError, ValueError, AttributeError):
        return None
    return classes if isinstance(classes, list) else None


# ---- functions


def _function(spec: str) -> Split:
    module_name, _, name = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` has it
    try:
        function: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise DatasetError(f"cannot import {spec}: {error}") from error

    def stream() -> Iterator[tuple[str, bytes, int]]:
        keys = Keys()
        for number, item in enumerate(function()):
            try:
                key, data, label = item
                if not 0 <= int(label) < MOST_LABELS and int(label) != NO_LABEL:
                    raise ValueError(f"label {label}")
                yield keys.unique(str(key)), bytes(memoryview(data)), int(label)
            except (TypeError, ValueError) as error:
                raise ConversionError(f"{spec}: item {number} is not (key, bytes, label): {error}") from error

    return Split(classes=getattr(function, "classes", None), stream=stream)
