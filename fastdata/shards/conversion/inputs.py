"""Sources of a conversion: image folders, tar files, tables, and functions that yield samples.

A source is either listed (every sample has a place in a file, so any process can read it) or streamed (samples can only
be read in order, and are copied to temporary files for the workers).
"""

from __future__ import annotations

import glob
import importlib
import os
import posixpath
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fastdata.errors import ConversionError, DatasetError, OptionError
from fastdata.shards.conversion.annotations import read_annotations
from fastdata.shards.conversion.folders import FOLDER_EXTENSIONS, SPLIT_NAMES, Beside, folder_splits, folders_in
from fastdata.shards.conversion.parquet import parquet_splits, saved_files
from fastdata.shards.conversion.remote_folders import remote_folder_splits
from fastdata.shards.conversion.samples import Keys, SourcePaths, Split, Streamed, sample_of
from fastdata.shards.conversion.tables import TABLES, table_split
from fastdata.shards.conversion.tars import remote_tars, tar_splits
from fastdata.shards.fields import KEY
from fastdata.shards.patterns import expand_braces, refuse_compressed
from fastdata.shards.remote_files import RemoteFiles

__all__ = ["open_source"]


def open_source(
    source: str,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    classes: list[str] | None = None,
    left_out: Collection[str] = (),
    fields: Mapping[str, str] = MappingProxyType({}),
    annotations: Sequence[str] = (),
) -> dict[str, Split]:
    """Recognises the kind of a source and lists its splits.

    Args:
        source: a folder with one folder of images per class (or with train/ and val/ of such folders; with fields or
            annotations a folder of images), with tar files, with Parquet files, a dataset that Hugging Face's
            `save_to_disk` wrote, or a converted dataset; a tar or Parquet file, or a pattern of them ("{000..009}",
            "*"), or a .csv, .tsv or .jsonl table, also their URLs, or that of a folder with class folders or such
            files; or "module:function".
        image_column: column of a table with encoded images, or with their paths; None finds it.
        label_column: column of a table with labels; None finds it.
        classes: class names by number, for labels that are names; None numbers those that occur, in sorted order.
        left_out: paths of images in a folder that are not converted.
        fields: what is stored beside image and class, by name: the place of each field, see `parse_fields`.  Tar files
            and functions have their own.
        annotations: annotations of a folder of images, see `read_annotations`.

    Returns:
        Splits by name.

    Raises:
        DatasetError: the source does not exist, or has no images.
        ConversionError: the source is ambiguous, or its labels, fields or annotations cannot be used.
        OptionError: fields or annotations are given for a source that has its own.
    """
    if not os.path.exists(source) and re.fullmatch(r"[\w.]+:\w+", source):
        _check_unasked(source, fields, annotations)
        return {"": _function(source)}
    is_remote, sizes = "://" in source, dict[str, int]()
    paths = _remote_files(source, sizes) if is_remote else _files(source)
    if paths is None and is_remote:
        _check_unasked(source, fields, annotations)
        return remote_folder_splits(source, sizes, classes)
    if paths is None:
        beside = Beside(fields, read_annotations(annotations) if annotations else None)
        return folder_splits(Path(source), left_out, beside)
    if paths[0].endswith(".tar"):
        _check_unasked(source, fields, annotations)
        return {"": remote_tars(paths, classes)} if is_remote else tar_splits(paths, classes)
    _check_unasked(source, {}, annotations)
    if paths[0].endswith(TABLES):
        columns = {"image_column": image_column, "label_column": label_column}
        return {"": table_split(paths[0], **columns, classes=classes, fields=fields)}
    return parquet_splits(paths, image_column, label_column, classes, fields)


def _remote_files(source: str, sizes: dict[str, int]) -> list[str] | None:
    """The files that a URL means; None for a folder of class folders or tar files, whose `sizes` are noted."""
    urls = [url for one in expand_braces(source) for url in RemoteFiles().matching(one)]
    refuse_compressed(urls)
    if urls == [source] and not source.lower().endswith((".tar", ".parquet", *TABLES, *FOLDER_EXTENSIONS)):
        sizes |= RemoteFiles().files_below(source.rstrip("/"))
        visible = (name for name in sizes if 0 < name.count("/") < 3 and not name.startswith((".", "__MACOSX")))
        pictures = any(name.lower().endswith(FOLDER_EXTENSIONS) for name in visible)
        found = _archives(source, sizes, sizes, pictures)
        if not found or found[0].endswith(".tar"):  # of the splits, each by itself
            return None
        return [RemoteFiles.url_of(source, name) for name in found]
    if not urls:
        raise DatasetError(f"no file in the store is meant by {source}; check the pattern")
    return _of_one_kind(source, urls)


def _check_unasked(source: str, fields: Mapping[str, str], annotations: Sequence[str]) -> None:
    """Refuses fields and annotations for a source that they are not for."""
    if fields:
        raise OptionError(
            f"fields ({', '.join(fields)}) are for folders and tables; everything that {source} has beside its images "
            "is kept"
        )
    if annotations:
        raise OptionError(f"annotations ({', '.join(annotations)}) are for folders of images, and {source} is none")


def _files(source: str) -> list[str] | None:
    """The tar or Parquet files that are meant; None for a folder of class folders."""
    if os.path.isdir(source):
        return _files_in(source)
    found = sorted({path for one in expand_braces(source) for path in glob.glob(one)})
    refuse_compressed(found)
    if not found:
        raise DatasetError(f"no such file, folder or function: {source}; write a Python function as module:function")
    return _of_one_kind(source, found)


def _of_one_kind(source: str, found: list[str]) -> list[str]:
    kinds = {os.path.splitext(path)[1] for path in found}
    if len(kinds) != 1 or not kinds <= {".tar", ".parquet", *TABLES}:
        raise DatasetError(
            f"{source} is neither a folder, a pattern of .tar or of .parquet files (write {{000000..000099}} or * for "
            f"many), nor a table ({', '.join(TABLES)}); convert reads other sources by a Python function, named as "
            "module:function"
        )
    if kinds <= set(TABLES) and len(found) > 1:
        raise DatasetError(f"{source} names {len(found)} tables; convert one after the other, or put them together")
    return found


def _files_in(folder: str) -> list[str] | None:
    """The tar, Parquet or Arrow files in a folder; None for a folder of class folders."""
    pictures = any(name.lower().endswith(FOLDER_EXTENSIONS) for sub in folders_in(folder) for name in _some_names(sub))
    near = _names_in(folder, "*", *(f"{split}/*" for split in SPLIT_NAMES))
    deep = _names_in(folder, "*/*.parquet", *(f"*/{split}/*.parquet" for split in SPLIT_NAMES))
    found = _archives(folder, near, deep, pictures)
    return [os.path.join(folder, name) for name in found] or (None if pictures else saved_files(folder)) or None


def _names_in(folder: str, *patterns: str) -> Iterator[str]:
    """Paths of files below a folder, with slashes."""
    for pattern in patterns:
        for name in glob.iglob(pattern, root_dir=folder):
            if os.path.isfile(os.path.join(folder, name)):
                yield name.replace(os.sep, "/")


def _archives(place: str, near: Iterable[str], deep: Iterable[str], has_pictures: bool) -> list[str]:
    """The tar or Parquet files that a folder stands for, by their paths in it; [] if there are none.

    They lie in it or in the folders of its splits (`near`); or, Parquet files alone, as dataset hubs lay them out
    (`deep`): data/train-00000-of-00002.parquet, default/train/0000.parquet.

    Raises:
        ConversionError: there are several kinds, or images in class folders, too.
    """
    found = sorted(name for name in near if _is_archive(name) and posixpath.dirname(name) in ("", *SPLIT_NAMES))
    if found and has_pictures:
        raise ConversionError(
            f"{place} contains both folders of images and {found[0]}; name the files to convert with a pattern "
            f"('{place}/*{os.path.splitext(found[0])[1]}'), or move one kind away"
        )
    if len({os.path.splitext(name)[1] for name in found}) > 1:
        raise ConversionError(
            f"{place} contains both .tar and .parquet files; name the files to convert with a pattern"
        )
    if found or has_pictures:
        return found
    inside: dict[str, list[str]] = {}
    for name in sorted(deep):
        top, _, below = name.partition("/")
        if below.endswith(".parquet") and _is_archive(name) and posixpath.dirname(below) in ("", *SPLIT_NAMES):
            inside.setdefault(top, []).append(name)
    if len(inside) > 1:
        folders = ", ".join(f"{place.rstrip('/')}/{top}" for top in inside)
        raise ConversionError(f"{place} contains Parquet files in {folders}; name one of these folders")
    return next(iter(inside.values()), [])


def _is_archive(name: str) -> bool:
    return name.endswith((".tar", ".parquet")) and not any(part.startswith(".") for part in name.split("/"))


def _some_names(folder: str) -> list[str]:
    """Names in a folder and in the folders of it."""
    return [*os.listdir(folder), *(name for sub in folders_in(folder) for name in os.listdir(sub))]


# ---- functions


def _function(spec: str) -> Split:
    module_name, _, name = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` has it
    try:
        function: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise DatasetError(f"cannot import {spec}: {error}") from error

    def stream() -> Iterator[Streamed]:
        keys, source_paths = Keys(), SourcePaths()
        for number, item in enumerate(function()):
            sample = Streamed.of(_key_of(item, number), partial(sample_of, item, f"{spec}: item {number}"))
            key = sample.key
            path = source_paths.unique(key) if key.lower().endswith(FOLDER_EXTENSIONS) else ""
            yield sample._replace(key=keys.unique(key), source_path=path)

    return Split(classes=getattr(function, "classes", None), stream=stream)


def _key_of(item: Any, number: int) -> str:
    """The key under which an item is told to be skipped."""
    key = item.get(KEY) if isinstance(item, Mapping) else None
    return key if isinstance(key, str) else f"item {number}"
