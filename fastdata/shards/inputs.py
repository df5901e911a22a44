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
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import ConversionError, DatasetError
from fastdata.shards.format import MANIFEST_NAME, NO_LABEL, crc32c
from fastdata.shards.tar import IMAGE_EXTENSIONS, members, split_name

__all__ = ["SPLIT_NAMES", "Ref", "Split", "expand_braces", "list_tar", "open_source", "read_file"]

SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test")
_FOLDER_EXTENSIONS = tuple(f".{name}" for name in sorted(IMAGE_EXTENSIONS - {"npy", "image", "img"}))
_IMAGE_COLUMNS, _LABEL_COLUMNS = (
    ("image", "img", "jpg", "png", "bytes"),
    ("label", "labels", "cls", "target", "fine_label"),
)
_ROWS_AT_ONCE = 256
_FOOTER_BYTES = 1 << 16

MOST_LABELS = 1 << 62


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
        fingerprint: tells a stream's data from other data; None where nobody can know.
        ignored: files that are no images by their names, or no regular files.
    """

    classes: list[str] | None
    refs: list[Ref] | None = None
    fingerprint: int | None = None
    ignored: int = 0
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
    pictures = any(
        name.lower().endswith(_FOLDER_EXTENSIONS) for sub in _folders_in(folder) for name in _some_names(sub)
    )
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


def _folders_in(folder: str) -> list[str]:
    """Folders that may mean something: not hidden, and not what macOS leaves in archives."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    return [os.path.join(folder, name) for name in names if not name.startswith((".", "__MACOSX"))]


def _some_names(folder: str) -> list[str]:
    """Names in a folder and in the folders of it."""
    return [*os.listdir(folder), *(name for sub in _folders_in(folder) for name in os.listdir(sub))]


# ---- folders


def _folder_splits(root: Path) -> dict[str, Split]:
    names = [os.path.basename(path) for path in _folders_in(str(root))]
    splits = [name for name in names if name in SPLIT_NAMES]
    if not splits or splits == ["test"]:
        return {"": _folder(root)}
    if others := [name for name in names if name not in SPLIT_NAMES]:
        raise ConversionError(
            f"{root} holds {', '.join(splits)} beside {', '.join(others[:3])}, so it is unclear whether these are "
            f"splits or classes; convert {root / splits[0]} by itself, or move the others away"
        )
    found = {name: _folder(root / name) for name in splits}
    _check_same_classes(root, {name: split.classes for name, split in found.items()})
    return found


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
    folders = _folders_in(str(root))
    if not folders:
        raise DatasetError(f"no class folders in {root}; expected {root}/CLASS/NAME.jpg, tar files or Parquet files")
    classes = [_readable(os.path.basename(path)) for path in folders]
    refs: list[Ref] = []
    keys, ignored = _Keys(), 0
    for label, folder in enumerate(folders):
        _check_is_class(root, folder)
        before = len(refs)
        for path in _walk(folder):
            found = _stat(path)
            if not path.lower().endswith(_FOLDER_EXTENSIONS) or not stat.S_ISREG(found.st_mode):
                ignored += 1
                continue
            key = keys.unique(os.path.relpath(path, root).rpartition(".")[0])
            refs.append(Ref(key, label, path, 0, found.st_size))
        if len(refs) == before:
            raise DatasetError(
                f"no images in {folder}; accepted: {' '.join(_FOLDER_EXTENSIONS)}; remove the folder if it is no class"
            )
    return Split(classes=classes, refs=refs, ignored=ignored)


def _walk(folder: str) -> list[str]:
    """Every file below a folder, links followed once, folders and names in sorted order."""
    seen: set[tuple[int, int]] = set()
    places = []
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        here = _stat(place)
        if (here.st_dev, here.st_ino) in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        places.append((place, sorted(files)))
    return [os.path.join(place, file) for place, files in sorted(places) for file in files]


def _raise(error: OSError) -> None:
    raise error


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError as error:
        raise ConversionError(f"{path} is a link to nothing; remove it") from error


def read_file(path: str) -> bytes:
    """The bytes of a file; none of a pipe, which is not waited for."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(number, "rb", buffering=0) as file:
        return file.read()


def _check_is_class(root: Path, folder: str) -> None:
    inside = {os.path.basename(path) for path in _folders_in(folder)} & set(SPLIT_NAMES)
    if inside:
        raise ConversionError(f"{folder} holds {', '.join(sorted(inside))}: did you mean to convert {folder}?")


def _readable(name: str) -> str:
    """A name in Unicode, whatever bytes the file system has for it."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


class _Keys:
    """Makes keys that tar readers keep whole: no dot behind the last slash, no way out of a folder, no key twice."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def unique(self, key: str) -> str:
        key = _readable(key)
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
    except (ValueError, RecursionError):
        return {}
    if isinstance(content, dict):
        content = next((content[name] for name in _LABEL_COLUMNS if name in content), None)
    if not isinstance(content, int) or isinstance(content, bool) or not 0 <= content < MOST_LABELS:
        return {}
    return {extension: content}


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
        by_split.setdefault(name if name in SPLIT_NAMES else "", []).append(path)
    if "" in by_split:
        by_split = {"": list(paths)}
    return {name: _parquet(found, image_column, label_column) for name, found in by_split.items()}


def _parquet(paths: Sequence[str], image_column: str | None, label_column: str | None) -> Split:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConversionError("reading Parquet needs pyarrow; install it with: pip install pyarrow") from error
    try:
        schema = parquet.read_schema(paths[0])
    except pyarrow.ArrowException as error:
        raise ConversionError(f"{paths[0]} is no Parquet file, or damaged: {error}") from error
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

    fingerprint = crc32c(b"".join(map(_end_of, paths)))
    return Split(classes=_class_names(schema.metadata, label), stream=stream, fingerprint=fingerprint)


def _end_of(path: str) -> bytes:
    """A Parquet file's size and its end, which holds the statistics of all its columns."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        file.seek(max(0, size - _FOOTER_BYTES))
        return str(size).encode() + file.read()


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
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` has it
    try:
        function: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise DatasetError(f"cannot import {spec}: {error}") from error

    def stream() -> Iterator[tuple[str, bytes, int]]:
        keys = _Keys()
        for number, item in enumerate(function()):
            try:
                key, data, label = item
                if not 0 <= int(label) < MOST_LABELS and int(label) != NO_LABEL:
                    raise ValueError(f"label {label}")
                yield keys.unique(str(key)), bytes(memoryview(data)), int(label)
            except (TypeError, ValueError) as error:
                raise ConversionError(f"{spec}: item {number} is not (key, bytes, label): {error}") from error

    return Split(classes=getattr(function, "classes", None), stream=stream)
