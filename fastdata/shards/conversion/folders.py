"""Image folders as a source: one folder per class, as in torchvision's ImageFolder, and splits of such folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from fastdata.errors import ConversionError, DatasetError
from fastdata.shards.conversion.samples import Keys, Split, readable
from fastdata.shards.records import Ref, listing
from fastdata.shards.tar import IMAGE_EXTENSIONS

__all__ = [
    "FOLDER_EXTENSIONS",
    "SPLIT_NAMES",
    "check_same_classes",
    "files_below",
    "folder_splits",
    "folders_in",
]

SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test")
FOLDER_EXTENSIONS = tuple(f".{name}" for name in sorted(IMAGE_EXTENSIONS - {"npy", "fdc", "image", "img"}))


def folder_splits(root: Path, left_out: Collection[str] = ()) -> dict[str, Split]:
    """The splits in a folder, or the folder as one dataset, without the files that are left out.

    Raises:
        ConversionError: it is unclear which folders are splits and which are classes.
        DatasetError: there are no images.
    """
    names = [os.path.basename(path) for path in folders_in(str(root))]
    splits = [name for name in names if name in SPLIT_NAMES]
    if not splits or splits == ["test"]:
        return {"": _folder(root, left_out)}
    if others := [name for name in names if name not in SPLIT_NAMES]:
        raise ConversionError(
            f"{root} contains {', '.join(splits)} beside {', '.join(others[:3])}, so it is unclear whether these are "
            f"splits or classes; convert {root / splits[0]} by itself, or move the other folders away"
        )
    found = {name: _folder(root / name, left_out) for name in splits}
    check_same_classes(root, {name: split.classes for name, split in found.items()})
    return found


def check_same_classes(root: Path | str, classes: dict[str, list[str] | None]) -> None:
    """Raises ConversionError if the splits of a source have different classes."""
    first = next(iter(classes))
    for name, found in classes.items():
        if found != classes[first]:
            differing = sorted(set(found or ()) ^ set(classes[first] or ()))
            raise ConversionError(
                f"{root}: {first} and {name} have different classes, so their labels would not agree: {differing[:5]}; "
                "convert each split separately"
            )


def _folder(root: Path, left_out: Collection[str]) -> Split:
    """One split: `root`, which is the source or a folder of it."""
    folders = folders_in(str(root))
    if not folders:
        raise DatasetError(
            f"no class folders in {root}; expected {root}/CLASS/NAME.jpg or tar files; for anything else write a "
            "function that yields the samples (fastdata convert --from module:function)"
        )
    refs: list[Ref] = []
    keys, ignored = Keys(), 0
    for label, folder in enumerate(folders):
        _check_is_class(root, folder)
        before = len(refs)
        for path in files_below(folder):
            if path in left_out:
                continue
            found = _stat(path)
            if not stat.S_ISREG(found.st_mode) or not path.lower().endswith(FOLDER_EXTENSIONS):
                ignored += 1
                continue
            relative = os.path.relpath(path, root)
            ref = Ref(keys.unique(relative.rpartition(".")[0]), label, path, 0, found.st_size)
            refs.append(ref._replace(source_path=relative.replace(os.sep, "/")))
        if len(refs) == before:
            accepted = " ".join(FOLDER_EXTENSIONS)
            raise DatasetError(f"no images in {folder}; accepted: {accepted}; remove the folder if it is not a class")
    classes = [readable(os.path.basename(path)) for path in folders]
    return Split(classes=classes, refs=refs, fingerprint=listing(refs), ignored=ignored)


def _check_is_class(root: Path, folder: str) -> None:
    inside = {os.path.basename(path) for path in folders_in(folder)} & set(SPLIT_NAMES)
    if inside:
        raise ConversionError(f"{folder} contains {', '.join(sorted(inside))}: did you mean to convert {folder}?")


def folders_in(folder: str) -> list[str]:
    """Folders that may mean something: not hidden, and not what macOS leaves in archives."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    return [os.path.join(folder, name) for name in names if not name.startswith((".", "__MACOSX"))]


def files_below(folder: str) -> list[str]:
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
        raise ConversionError(f"{path} is a broken symbolic link; remove it") from error
