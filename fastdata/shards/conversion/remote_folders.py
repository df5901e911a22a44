"""Folders at a URL as a source: one folder per class, splits of such folders, or tar files, as they are on a disk.

The images are read in the order in which a local copy would be read, so the shards are the same.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from fastdata.errors import ConversionError, DatasetError, NotInStore
from fastdata.shards.conversion.folders import FOLDER_EXTENSIONS, SPLIT_NAMES, check_same_classes
from fastdata.shards.conversion.samples import Keys, Split, Streamed
from fastdata.shards.conversion.tars import remote_tars
from fastdata.shards.format import MANIFEST_NAME, NO_LABEL, Manifest
from fastdata.shards.records import Ref, listing
from fastdata.shards.remote_files import RemoteFiles
from fastdata.system.ordered_map import in_order

__all__ = ["remote_folder_splits"]

_THREADS, _AHEAD = 16, 4  # that read images, and images that each of them may be ahead


def remote_folder_splits(url: str, sizes: Mapping[str, int], classes: list[str] | None) -> dict[str, Split]:
    """The splits in a folder of a store, or the folder as one dataset.

    Args:
        url: the folder's URL.
        sizes: bytes of its files, by their paths below it.
        classes: class names by number, for tar files whose labels are names.

    Raises:
        ConversionError: it is unclear which folders are splits and which are classes.
        DatasetError: there are neither class folders with images nor tar files.
        StoreError: the store cannot be read.
    """
    url = url.rstrip("/")
    if not sizes:
        raise DatasetError(f"there are no files at {url}; check the URL")
    sizes = dict(sorted(sizes.items()))
    folders = sorted({name.partition("/")[0] for name in sizes if "/" in name and not _is_hidden(name)})
    splits = [name for name in folders if name in SPLIT_NAMES]
    if not splits or splits == ["test"] or _tars_in(sizes):
        return {"": _split(url, sizes, classes)}
    if others := [name for name in folders if name not in SPLIT_NAMES]:
        raise ConversionError(
            f"{url} contains {', '.join(splits)} beside {', '.join(others[:3])}, so it is unclear whether these are "
            f"splits or classes; convert {url}/{splits[0]} by itself, or move the other folders away"
        )
    found = {name: _split(RemoteFiles.url_of(url, name), _below(sizes, name), classes) for name in splits}
    check_same_classes(url, {name: split.classes for name, split in found.items()})
    return found


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _below(sizes: dict[str, int], folder: str) -> dict[str, int]:
    return {name.partition("/")[2]: size for name, size in sizes.items() if name.startswith(f"{folder}/")}


def _tars_in(sizes: Iterable[str]) -> list[str]:
    return [name for name in sizes if name.endswith(".tar") and "/" not in name and not _is_hidden(name)]


def _split(url: str, sizes: dict[str, int], classes: list[str] | None) -> Split:
    """One split: the tar files at a URL, or its class folders."""
    if MANIFEST_NAME in sizes:  # of a converted dataset; other tar files there are not of it
        manifest = Manifest.from_text(RemoteFiles().read(f"{url}/{MANIFEST_NAME}"), f"{url}/{MANIFEST_NAME}")
        tars = [RemoteFiles.url_of(url, shard.name) for shard in manifest.shards]
        return remote_tars(tars, classes if classes is not None else manifest.classes)
    if tars := _tars_in(sizes):
        return remote_tars([RemoteFiles.url_of(url, name) for name in tars], classes)
    return _folder(url, sizes)


def _folder(url: str, sizes: dict[str, int]) -> Split:
    """One split: the class folders at a URL, of whose files the sizes are known by their paths below it."""
    inside = [name for name in sizes if "/" in name and not _is_hidden(name)]
    images = [name for name in inside if name.lower().endswith(FOLDER_EXTENSIONS)]
    classes = sorted({name.partition("/")[0] for name in inside})
    if not classes:
        raise DatasetError(
            f"no class folders at {url}; expected {url}/CLASS/NAME.jpg or tar files; for anything else write a "
            "function that yields the samples (fastdata convert --from module:function)"
        )
    if empty := set(classes) - {name.partition("/")[0] for name in images}:
        accepted = " ".join(FOLDER_EXTENSIONS)
        raise DatasetError(f"no images in {url}/{min(empty)}; accepted: {accepted}; remove it if it is not a class")
    keys, labels = Keys(), {name: label for label, name in enumerate(classes)}
    refs = []
    for name in sorted(images, key=lambda name: (labels[name.partition("/")[0]], *posixpath.split(name))):
        key, label = keys.unique(name.rpartition(".")[0]), labels[name.partition("/")[0]]
        refs.append(Ref(key, label, RemoteFiles.url_of(url, name), 0, sizes[name], source_path=name))

    def stream() -> Iterator[Streamed]:
        return in_order(partial(_read, RemoteFiles()), refs, threads=_THREADS, name="fastdata-read", ahead=_AHEAD)

    ignored = len(sizes) - len(images)
    return Split(classes=classes, stream=stream, fingerprint=listing(refs), is_remote=True, ignored=ignored)


def _read(store: RemoteFiles, ref: Ref) -> Streamed:
    """The sample of a file at a URL, or one with a problem if it is no longer there.

    Raises:
        StoreError: the store does not answer.
    """
    try:
        return Streamed(ref.key, store.read(ref.path), ref.label, ref.source_path, where=ref.path)
    except NotInStore as error:
        return Streamed(ref.key, b"", NO_LABEL, problem=f"{ref.path} is gone: {error}")
