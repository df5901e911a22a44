"""Sources of a conversion: image folders, tar files, and functions that yield samples.

A source is either listed (every sample has a place in a file, so any process can read it) or streamed (samples can only
be read in order, and are copied to temporary files for the workers).
"""

from __future__ import annotations

import glob
import importlib
import inspect
import os
import posixpath
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.errors import ConversionError, DatasetError
from fastdata.shards.conversion.folders import FOLDER_EXTENSIONS, SPLIT_NAMES, folder_splits, folders_in
from fastdata.shards.conversion.remote_folders import remote_folder_splits
from fastdata.shards.conversion.samples import Keys, SourcePaths, Split, Streamed, sample_of
from fastdata.shards.conversion.tars import remote_tars, tar_splits
from fastdata.shards.fields import KEY
from fastdata.shards.patterns import expand_braces, refuse_compressed
from fastdata.shards.remote_files import RemoteFiles

__all__ = ["open_source"]


def open_source(source: str, *, classes: list[str] | None = None, left_out: Collection[str] = ()) -> dict[str, Split]:
    """Recognises the kind of a source and lists its splits.

    Args:
        source: a folder with one folder of images per class (or with train/ and val/ of such folders), with tar files,
            or a converted dataset; a tar file, or a pattern of them ("{000..009}", "*"); a URL of one of these; or
            "module:function".
        classes: class names by number, for labels that are names; None numbers those that occur, in sorted order.
        left_out: paths of images in a folder that are not converted.

    Returns:
        Splits by name.

    Raises:
        DatasetError: the source does not exist, or has no images.
        ConversionError: the source is ambiguous, or its labels cannot be used.
        StoreError: the store cannot be read.
    """
    if not os.path.exists(source) and re.fullmatch(r"[\w.]+:\w+", source):
        return {"": _function(source)}
    if "://" in source:
        return _remote(source, classes)
    paths = _tars_in(source) if os.path.isdir(source) else _tars(source)
    return tar_splits(paths, classes) if paths else folder_splits(Path(source), left_out)


def _remote(source: str, classes: list[str] | None) -> dict[str, Split]:
    """The splits at a URL."""
    store = RemoteFiles()
    urls = [url for one in expand_braces(source) for url in store.matching(one)]
    refuse_compressed(urls)
    if urls == [source] and not source.endswith(".tar"):
        sizes = store.files_below(source.rstrip("/"))
        visible = (name for name in sizes if 0 < name.count("/") < 3 and not name.startswith((".", "__MACOSX")))
        pictures = any(name.lower().endswith(FOLDER_EXTENSIONS) for name in visible)
        _visible_tars(source, sizes, pictures)  # refuses both
        return remote_folder_splits(source, sizes, classes)
    if not urls:
        raise DatasetError(f"no file in the store is meant by {source}; check the pattern")
    return {"": remote_tars(_only_tars(urls), classes)}


def _tars(source: str) -> list[str]:
    """The tar files that a name or a pattern means."""
    found = sorted({path for one in expand_braces(source) for path in glob.glob(one)})
    if not found:
        raise DatasetError(
            f"no such file, folder or function: {source}; write a Python function as --from module:function"
        )
    return _only_tars(found)


def _only_tars(found: list[str]) -> list[str]:
    refuse_compressed(found)
    if other := next((path for path in found if not path.endswith(".tar")), None):
        raise DatasetError(
            f"{other} is neither a folder nor a tar file (write {{000000..000099}} or * for many); tables, annotations "
            "and other sources are converted by a Python function that yields the samples: --from module:function"
        )
    return found


def _tars_in(folder: str) -> list[str]:
    """The tar files in a folder; none for a folder of class folders."""
    pictures = any(name.lower().endswith(FOLDER_EXTENSIONS) for sub in folders_in(folder) for name in _some_names(sub))
    patterns = ("*.tar", *(f"{split}/*.tar" for split in SPLIT_NAMES))
    names = [name for pattern in patterns for name in glob.iglob(pattern, root_dir=folder)]
    files = (name.replace(os.sep, "/") for name in names if os.path.isfile(os.path.join(folder, name)))
    return [os.path.join(folder, name) for name in _visible_tars(folder, files, pictures)]


def _visible_tars(place: str, names: Iterable[str], has_pictures: bool) -> list[str]:
    """The tar files that lie in a folder or in the folders of its splits, by their paths in it.

    Raises:
        ConversionError: there are images in class folders, too.
    """
    near = (name for name in names if name.endswith(".tar") and posixpath.dirname(name) in ("", *SPLIT_NAMES))
    found = sorted(name for name in near if not any(part.startswith(".") for part in name.split("/")))
    if found and has_pictures:
        raise ConversionError(
            f"{place} contains both folders of images and {found[0]}; name the files to convert with a pattern "
            f"('{place}/*.tar'), or move one kind away"
        )
    return found


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
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError) as error:
        raise DatasetError(
            f"{spec} is not a function that can be called without arguments, as convert does to get samples ({error})"
        ) from error

    def stream() -> Iterator[Streamed]:
        keys, source_paths = Keys(), SourcePaths()
        for number, item in enumerate(function()):
            sample = Streamed.of(_key_of(item, number), partial(sample_of, item, f"{spec}: item {number}"))
            key, path = sample.key, ""
            if key.lower().endswith(FOLDER_EXTENSIONS):  # the name of a file
                key, path = key.rpartition(".")[0], source_paths.unique(key)
            yield sample._replace(key=keys.unique(key), source_path=path)

    return Split(classes=getattr(function, "classes", None), stream=stream)


def _key_of(item: Any, number: int) -> str:
    """The key under which an item is told to be skipped."""
    key = item.get(KEY) if isinstance(item, Mapping) else None
    return key if isinstance(key, str) else f"item {number}"
