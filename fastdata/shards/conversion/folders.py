"""Image folders as a source: one folder per class, as in torchvision's ImageFolder, and splits of such folders.

Where fields or annotations are asked for, a folder of images without classes will do.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastdata.errors import ConversionError, DatasetError
from fastdata.shards.conversion.annotations import FIELD, Annotated
from fastdata.shards.conversion.samples import Keys, Split, readable
from fastdata.shards.format import NO_LABEL
from fastdata.shards.records import Part, Ref, listing
from fastdata.shards.tar import IMAGE_EXTENSIONS

__all__ = [
    "FOLDER_EXTENSIONS",
    "SPLIT_NAMES",
    "Beside",
    "check_same_classes",
    "files_below",
    "folder_splits",
    "folders_in",
]

SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test")
FOLDER_EXTENSIONS = tuple(f".{name}" for name in sorted(IMAGE_EXTENSIONS - {"npy", "fdc", "image", "img"}))


@dataclass(frozen=True)
class Beside:
    """Places of what is stored of a sample beside image and class.

    Attributes:
        fields: place of each field's files by its name: a folder, or "" for the folder of the image.
        annotations: gives an image's annotations by its path below the source; None for none.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    annotations: Annotated | None = None

    def __bool__(self) -> bool:
        return bool(self.fields) or self.annotations is not None

    def is_field(self, path: str) -> bool:
        """True for the file of a field, which is no image of its own."""
        return any(path.lower().endswith(f".{name}") for name, place in self.fields.items() if not place)

    def parts(self, path: str, name: str) -> Iterator[Part]:
        """The parts of an image; one whose file is missing has a size of -1, and is refused when it is read.

        Args:
            path: path of the image's file.
            name: its path below the source, with slashes.
        """
        for extension, place in self.fields.items():
            stem = os.path.join(place, os.path.splitext(name)[0]) if place else os.path.splitext(path)[0]
            tried = [f"{stem}.{extension}", f"{stem}.{extension.rpartition('.')[2]}"][: 2 if place else 1]
            found = next((one for one in tried if os.path.isfile(one)), None)
            yield Part(extension, 0, -1 if found is None else os.stat(found).st_size, path=found or tried[-1])
        if self.annotations is not None and (known := self.annotations(name)) is not None:
            yield Part.made(FIELD, json.dumps(known, ensure_ascii=False).encode())


NOTHING_BESIDE = Beside()


def folder_splits(root: Path, left_out: Collection[str] = (), beside: Beside = NOTHING_BESIDE) -> dict[str, Split]:
    """The splits in a folder, or the folder as one dataset, without the files that are left out.

    Raises:
        ConversionError: it is unclear which folders are splits and which are classes.
        DatasetError: there are no images.
    """
    names = [os.path.basename(path) for path in folders_in(str(root))]
    splits = [name for name in names if name in SPLIT_NAMES]
    if not splits or splits == ["test"]:
        return {"": _folder(root, root, left_out, beside)}
    if others := [name for name in names if name not in SPLIT_NAMES]:
        raise ConversionError(
            f"{root} contains {', '.join(splits)} beside {', '.join(others[:3])}, so it is unclear whether these are "
            f"splits or classes; convert {root / splits[0]} by itself, or move the other folders away"
        )
    found = {name: _folder(root / name, root, left_out, beside) for name in splits}
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


def _folder(root: Path, source: Path, left_out: Collection[str], beside: Beside) -> Split:
    """One split: `root`, which is the source or a folder of it."""
    folders = folders_in(str(root))
    loose = [path for path in _images_in(root, beside) if os.path.isfile(path)] if beside else []
    has_images = bool(loose)
    if loose and (inside := next((path for each in folders for path in _images_in(Path(each), beside)), None)):
        raise ConversionError(
            f"{root} has images itself ({loose[0]}) and in folders ({inside}), so it is unclear whether the folders "
            "are classes; move one kind away"
        )
    if not folders and not has_images:
        raise DatasetError(f"no class folders in {root}; expected {root}/CLASS/NAME.jpg, tar files or Parquet files")
    classes = None if has_images else [readable(os.path.basename(path)) for path in folders]
    refs: list[Ref] = []
    keys, ignored = Keys(), 0
    for label, folder in enumerate([str(root)] if has_images else folders):
        if not has_images:
            _check_is_class(root, folder)
        before = len(refs)
        for path in files_below(folder):
            if path in left_out:
                continue
            found = _stat(path)
            if not stat.S_ISREG(found.st_mode) or not _is_image(path, beside):
                ignored += not beside.is_field(path)
                continue
            relative = os.path.relpath(path, root)
            key = keys.unique(relative.rpartition(".")[0])
            parts = tuple(beside.parts(path, os.path.relpath(path, source).replace(os.sep, "/")))
            if beside.annotations is not None and not any(part.extension == FIELD for part in parts):
                ignored += 1  # annotations say which images belong to the dataset
                continue
            ref = Ref(key, NO_LABEL if has_images else label, path, 0, found.st_size, parts=parts)
            refs.append(ref._replace(source_path=relative.replace(os.sep, "/")))
        if len(refs) == before:
            _raise_no_images(folder, beside)
    return Split(classes=classes, refs=refs, fingerprint=listing(refs), ignored=ignored)


def _images_in(folder: Path, beside: Beside) -> list[str]:
    return [path for name in os.listdir(folder) if _is_image(path := os.path.join(folder, name), beside)]


def _is_image(path: str, beside: Beside) -> bool:
    return path.lower().endswith(FOLDER_EXTENSIONS) and not beside.is_field(path)


def _raise_no_images(folder: str, beside: Beside) -> None:
    if beside.annotations is not None:
        raise DatasetError(f"none of the images in {folder} has annotations; their names must be those of its files")
    accepted = " ".join(FOLDER_EXTENSIONS)
    raise DatasetError(f"no images in {folder}; accepted: {accepted}; remove the folder if it is not a class")


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
