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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import ConversionError, DatasetError
from fastdata.shards.format import MANIFEST_NAME, NO_LABEL
from fastdata.shards.tar import IMAGE_EXTENSIONS, members, split_name

__all__ = ["Ref", "Split", "expand_braces", "open_source"]

_SPLITS = ("train", "val", "valid", "validation", "test")
_FOLDER_EXTENSIONS = tuple(f".{name}" for name in sorted(IMAGE_EXTENSIONS - {"npy", "image", "img"}))
_IMAGE_COLUMNS, _LABEL_COLUMNS = (
    ("image", "img", "jpg", "png", "bytes"),
    ("label", "labels", "cls", "target", "fine_label"),
)
_ROWS_AT_ONCE = 256


class Ref(NamedTuple):
    """Where one sample's encoded image lies.

    `size` is -1 for a whole file whose size nobody has asked for.
    """

    key: str
    label: int
    path: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """One dataset in a source: "train", "val", or "" where there is only one.

    Attributes:
        classes: names by label, or None where the source has none.
        refs: of a listed source.
        stream: of a streamed one: yields (key, encoded bytes, label).
    """

    classes: list[str] | None
    refs: list[Ref] | None = None
    stream: Callable[[], Iterator[tuple[str, bytes, int]]] | None = None


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
    if not os.path.exists(source) and re.fullmatch(r"[\w.]+:\w+", source):
        return {"": _function(source)}
    paths = _files(source)
    if paths is None:
        return _folder_splits(Path(source))
    if all(path.endswith(".parquet") for path in paths):
        return _parquet_splits(paths, image_column, label_column)
    return _tar_splits(Path(source), paths)


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
        for suffix in (".tar", ".parquet"):
            found = sorted(glob.glob(f"{glob.escape(source)}/**/*{suffix}", recursive=True))
            if found:
                return found
        return None
    found = sorted({path for one in expand_braces(source) for path in glob.glob(one)})
    if not found:
        raise DatasetError(f"no such file, folder or function: {source}; a function is named as module:function")
    if len({os.path.splitext(path)[1] for path in found}) > 1 or not found[0].endswith((".tar", ".parquet")):
        raise DatasetError(f"{source} is neither a folder nor a pattern of .tar or of .parquet files")
    return found


# ---- folders


def _folder_splits(root: Path) -> dict[str, Split]:
    names = {entry.name for entry in os.scandir(root) if entry.is_dir()}
    if names and names <= set(_SPLITS) and names & {"train", "val", "validation", "valid"}:
        splits = {name: _folder(root / name) for name in sorted(names)}
        _check_same_classes(root, {name: split.classes for name, split in splits.items()})
        return splits
    return {"": _folder(root)}


def _check_same_classes(root: Path, classes: dict[str, list[str] | None]) -> None:
    first = next(iter(classes))
    for name, found in classes.items():
        if found != classes[first]:
            differing = sorted(set(found or ()) ^ set(classes[first] or ()))
            raise ConversionError(
                f"{root}: {first} and {name} have other classes, so their labels would not agree: {differing[:5]}; "
                "convert them one by one"
            )


def _folder(root: Path) -> Split:
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        raise DatasetError(f"no class folders in {root}; expected {root}/CLASS/NAME.jpg, tar files or Parquet files")
    refs, keys = [], _Keys()
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(_FOLDER_EXTENSIONS):
                    path = os.path.join(folder, file)
                    key = keys.unique(os.path.relpath(path, root).rpartition(".")[0])
                    refs.append(Ref(key, label, path, 0, os.path.getsize(path)))
    if not refs:
        raise DatasetError(f"no images in {root}; accepted: {' '.join(_FOLDER_EXTENSIONS)}")
    return Split(classes=classes, refs=refs)


class _Keys:
    """Makes keys that tar readers keep whole: no dot behind the last slash, no way out of a folder, no key twice."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def unique(self, key: str) -> str:
        parts = [part for part in key.replace(os.sep, "/").replace("\0", "_").split("/") if part not in ("", ".", "..")]
        *folders, name = parts or ["_"]
        key = "/".join([*folders, name.replace(".", "_")])
        chosen, number = key, 1
        while chosen in self._seen:
            number += 1
            chosen = f"{key}~{number}"
        self._seen.add(chosen)
        return chosen


# ---- tar files


def _tar_splits(source: Path, paths: Sequence[str]) -> dict[str, Split]:
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        by_folder.setdefault(os.path.dirname(path), []).append(path)
    if len(by_folder) == 1:
        return {"": _tars(paths)}
    return {os.path.relpath(folder, source): _tars(found) for folder, found in by_folder.items()}


def _tars(paths: Sequence[str]) -> Split:
    refs, keys = [], _Keys()
    for path in paths:
        for ref in list_tar(path):
            refs.append(ref._replace(key=keys.unique(ref.key)))
    if not refs:
        raise DatasetError(f"no images in {paths[0]}{' and others' if len(paths) > 1 else ''}")
    return Split(classes=_classes_beside(paths[0]), refs=refs)


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
    except ValueError:
        return {}
    if isinstance(content, dict):
        content = next((content[name] for name in _LABEL_COLUMNS if name in content), None)
    return {extension: content} if isinstance(content, int) and not isinstance(content, bool) else {}


def _classes_beside(path: str) -> list[str] | None:
    try:
        classes = json.loads(Path(path).with_name(MANIFEST_NAME).read_bytes()).get("classes")
    except (OSError, ValueError, AttributeError):
        return None
    return classes if isinstance(classes, list) else None


# ---- Parquet files


def _parquet_splits(paths: Sequence[str], image_column: str | None, label_column: str | None) -> dict[str, Split]:
    """Files are split by the beginning of their names, as Hugging Face names them: train-00000-of-00257.parquet."""
    by_split: dict[str, list[str]] = {}
    for path in paths:
        name = re.split(r"[-_.]", os.path.basename(path))[0]
        by_split.setdefault(name if name in _SPLITS else "", []).append(path)
    if "" in by_split:
        by_split = {"": list(paths)}
    return {name: _parquet(found, image_column, label_column) for name, found in by_split.items()}


def _parquet(paths: Sequence[str], image_column: str | None, label_column: str | None) -> Split:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConversionError("reading Parquet needs pyarrow; install it with: pip install pyarrow") from error
    schema = parquet.read_schema(paths[0])
    image = _column(schema.names, image_column, _IMAGE_COLUMNS, "image", paths[0])
    label = _column(schema.names, label_column, _LABEL_COLUMNS, "label", paths[0])

    def stream() -> Iterator[tuple[str, bytes, int]]:
        number = 0
        for path in paths:
            for batch in parquet.ParquetFile(path).iter_batches(_ROWS_AT_ONCE, columns=[image, label]):
                for value, given in zip(batch[image].to_pylist(), batch[label].to_pylist(), strict=True):
                    data = value["bytes"] if isinstance(value, dict) else value
                    if not isinstance(data, bytes) or not isinstance(given, int):
                        kinds = f"{type(data).__name__} and {type(given).__name__}"
                        raise ConversionError(f"{path}: row {number} holds {kinds}, not bytes and an integer")
                    yield f"{number:09}", data, given
                    number += 1

    return Split(classes=_class_names(schema.metadata, label), stream=stream)


def _column(names: Sequence[str], given: str | None, usual: Sequence[str], what: str, path: str) -> str:
    if given is not None and given not in names:
        raise ConversionError(f"{path} has no column {given!r} for the {what}; it has {', '.join(names)}")
    found = given or next((name for name in usual if name in names), None)
    if found is None:
        raise ConversionError(
            f"{path}: which column is the {what}? It has {', '.join(names)}; name it with --{what}-column"
        )
    return found


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> list[str] | None:
    """The names that Hugging Face's ClassLabel keeps in a file's schema."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]
        return list(feature["names"])
    except (KeyError, ValueError, TypeError):
        return None


# ---- functions


def _function(spec: str) -> Split:
    module_name, _, name = spec.partition(":")
    try:
        function: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise DatasetError(f"cannot import {spec}: {error}") from error

    def stream() -> Iterator[tuple[str, bytes, int]]:
        keys = _Keys()
        for number, item in enumerate(function()):
            try:
                key, data, label = item
                yield keys.unique(str(key)), bytes(memoryview(data)), int(label)
            except (TypeError, ValueError) as error:
                raise ConversionError(f"{spec}: item {number} is not (key, bytes, label): {error}") from error

    return Split(classes=getattr(function, "classes", None), stream=stream)
