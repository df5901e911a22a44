"""Sources of a conversion: image folders, tar files, tables, and functions that yield samples.

A source is either listed (every sample has a place in a file, so any process can read it) or streamed (samples can only
be read in order, and are copied to temporary files for the workers).
"""

from __future__ import annotations

import glob
import importlib
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
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
            "*"), also their URLs, or that of a folder with class folders or such files; a .csv, .tsv or .jsonl table;
            or "module:function".
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
    if "://" in source:
        return _remote_splits(source, image_column, label_column, classes, fields, annotations)
    if not os.path.exists(source) and re.fullmatch(r"[\w.]+:\w+", source):
        _check_unasked(source, fields, annotations)
        return {"": _function(source)}
    paths = _files(source)
    if paths is None:
        beside = Beside(fields, read_annotations(annotations) if annotations else None)
        return folder_splits(Path(source), left_out, beside)
    if paths[0].endswith((".tar", *TABLES)):
        _check_unasked(source, fields if paths[0].endswith(".tar") else {}, annotations)
    if paths[0].endswith(TABLES):
        columns = {"image_column": image_column, "label_column": label_column}
        return {"": table_split(paths[0], **columns, classes=classes, fields=fields)}
    if paths[0].endswith(".tar"):
        return tar_splits(paths, classes)
    _check_unasked(source, {}, annotations)
    return parquet_splits(paths, image_column, label_column, classes, fields)


def _remote_splits(
    source: str,
    image_column: str | None,
    label_column: str | None,
    classes: list[str] | None,
    fields: Mapping[str, str],
    annotations: Sequence[str],
) -> dict[str, Split]:
    """The splits of tar or Parquet files at URLs, or of a folder at one."""
    urls = [url for one in expand_braces(source) for url in RemoteFiles().matching(one)]
    refuse_compressed(urls)
    if urls == [source] and not source.lower().endswith((".tar", ".parquet", *TABLES, *FOLDER_EXTENSIONS)):
        place = source.rstrip("/")
        sizes = RemoteFiles().files_below(place)
        urls = [f"{place}/{name}" for name in sorted(sizes) if name.endswith(".parquet")]
        if not urls:
            _check_unasked(source, fields, annotations)
            return remote_folder_splits(source, sizes, classes)
    if urls and all(url.endswith(".parquet") for url in urls):
        _check_unasked(source, {}, annotations)
        return parquet_splits(urls, image_column, label_column, classes, fields)
    _check_unasked(source, fields, annotations)
    if not urls or not all(url.endswith(".tar") for url in urls):
        raise DatasetError(
            f"{source} is a URL, of which convert reads tar and Parquet files (write {{000000..000099}} or * for many) "
            "and folders with one folder per class: copy other files first (aws s3 sync, gsutil -m rsync -r), or name "
            "a Python function as module:function"
        )
    return {"": remote_tars(urls, classes)}


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
    if len({os.path.splitext(path)[1] for path in found}) > 1 or not found[0].endswith((".tar", ".parquet", *TABLES)):
        raise DatasetError(
            f"{source} is neither a folder, a pattern of .tar or of .parquet files, nor a table ({', '.join(TABLES)})"
        )
    if found[0].endswith(TABLES) and len(found) > 1:
        raise DatasetError(f"{source} names {len(found)} tables; convert one after the other, or put them together")
    return found


def _files_in(folder: str) -> list[str] | None:
    """The tar or Parquet files in a folder or in those of its splits, unless there are images in class folders."""
    places = [folder, *(os.path.join(folder, name) for name in SPLIT_NAMES)]
    found = sorted(path for place in places for path in glob.glob(f"{glob.escape(place)}/*") if _is_archive(path))
    pictures = any(name.lower().endswith(FOLDER_EXTENSIONS) for sub in folders_in(folder) for name in _some_names(sub))
    if not found and not pictures:
        return _hub_files(folder) or saved_files(folder) or None
    if found and pictures:
        raise ConversionError(
            f"{folder} contains both folders of images and {found[0]}; name the files to convert with a pattern "
            f"('{folder}/*{os.path.splitext(found[0])[1]}'), or move one kind away"
        )
    kinds = {os.path.splitext(path)[1] for path in found}
    if len(kinds) > 1:
        raise ConversionError(
            f"{folder} contains both .tar and .parquet files; name the files to convert with a pattern"
        )
    return found or None


def _hub_files(folder: str) -> list[str]:
    """Parquet files as dataset hubs lay them out: data/train-00000-of-00002.parquet, default/train/0000.parquet."""
    found: dict[str, list[str]] = {}
    for place in folders_in(folder):
        inside = [place, *(os.path.join(place, name) for name in SPLIT_NAMES)]
        paths = sorted(path for each in inside for path in glob.glob(f"{glob.escape(each)}/*.parquet"))
        if paths:
            found[place] = paths
    if len(found) > 1:
        raise ConversionError(f"{folder} contains Parquet files in {', '.join(found)}; name one of these folders")
    return next(iter(found.values()), [])


def _is_archive(path: str) -> bool:
    return path.endswith((".tar", ".parquet")) and os.path.isfile(path)


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
