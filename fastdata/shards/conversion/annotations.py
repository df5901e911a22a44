"""Annotations of images beside an image folder: COCO's JSON files, and folders of Pascal VOC's XML files.

Both become the field "json" of a sample, so that any reader of shards has boxes, polygons and captions without knowing
where they came from.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from typing import Any

from fastdata.errors import ConversionError, DatasetError
from fastdata.system.files import read_file

__all__ = ["FIELD", "Annotated", "read_annotations"]

FIELD = "json"

Annotated = Callable[
    [str], dict[str, Any] | None
]  # annotations of an image by its path below the source, if it has any


def read_annotations(paths: Sequence[str]) -> Annotated:
    """Reads the annotations of a source.

    Args:
        paths: one or more JSON files in COCO's format, whose annotations of an image are put together; or one folder
            with a Pascal VOC XML file per image.

    Returns:
        A function that gives the annotations of an image by its path below the source, with slashes.  Of COCO: its
        entry in `images`, with `annotations`, a list of its annotations, each with the name of its `category`.  Of VOC:
        `width`, `height` and `objects`, each with `name`, `bbox` (left, top, right, bottom as in the file) and the
        numbers in the file.

    Raises:
        DatasetError: a file or folder does not exist.
        ConversionError: a file is not what it should be.
    """
    for path in paths:
        if not os.path.exists(path):
            raise DatasetError(f"no such file or folder of annotations: {path}")
    folders = [path for path in paths if os.path.isdir(path)]
    if folders and len(paths) > 1:
        raise ConversionError(
            f"{folders[0]} is a folder of Pascal VOC annotations, which cannot be combined with others; name it alone"
        )
    if folders:
        return lambda name: _voc(folders[0], name)
    entries: dict[str, dict[str, Any]] = {}
    for path in paths:
        _add_coco(entries, path)
    return _Lookup(entries, ", ".join(paths))


# ---- COCO


class _Lookup:
    """Annotations by an image's path below the source, or by its name where the files give names alone."""

    def __init__(self, entries: dict[str, dict[str, Any]], where: str) -> None:
        self._entries, self._where = entries, where
        self._taken: dict[str, str] = {}  # paths of images by the entry that they took

    def __call__(self, name: str) -> dict[str, Any] | None:
        key = name if name in self._entries else posixpath.basename(name)
        if key not in self._entries:
            return None
        if (other := self._taken.setdefault(key, name)) != name:
            raise ConversionError(
                f"{self._where} has one image {key}, but there are {other} and {name}; convert one folder at a time, "
                "each with its own annotations"
            )
        return self._entries[key]


def _add_coco(entries: dict[str, dict[str, Any]], path: str) -> None:
    try:
        content = json.loads(read_file(path))
        images, annotations = content["images"], content.get("annotations", [])
        names = {category["id"]: category["name"] for category in content.get("categories", [])}
        by_id: dict[Any, dict[str, Any]] = {}
        for image in images:
            entry = by_id[image["id"]] = entries.setdefault(image["file_name"], {**image, "annotations": []})
            both = [fact for fact in ("id", "width", "height") if fact in image and fact in entry]
            differing = [fact for fact in both if entry[fact] != image[fact]]
            if differing:
                facts = f"{differing[0]} {image[differing[0]]!r}, but {entry.get(differing[0])!r} in a file before it"
                raise ConversionError(f"{path}: image {image['file_name']} has {facts}; are they of other images?")
        for annotation in annotations:
            category = {"category": names[number]} if (number := annotation.get("category_id")) in names else {}
            by_id[annotation["image_id"]]["annotations"].append({**annotation, **category})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConversionError(
            f"{path} is not a file of COCO annotations, with images and annotations of them "
            f"({type(error).__name__}: {error})"
        ) from error


# ---- Pascal VOC


def _voc(folder: str, name: str) -> dict[str, Any] | None:
    path = os.path.join(folder, f"{posixpath.splitext(name)[0]}.xml")
    try:
        root = ET.fromstring(read_file(path))
    except FileNotFoundError:
        return None
    except ET.ParseError as error:
        raise ConversionError(f"{path} is not XML: {error}") from error
    size = {
        side: number for side in ("width", "height") if (number := _number(root.findtext(f"size/{side}"))) is not None
    }
    return {**size, "objects": [_voc_object(path, each) for each in root.findall("object")]}


def _voc_object(path: str, element: ET.Element) -> dict[str, Any]:
    box = [_number(element.findtext(f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
    name = element.findtext("name")
    if name is None or None in box:
        raise ConversionError(f"{path}: an object has no name, or no bndbox with xmin, ymin, xmax and ymax")
    numbers = {each.tag: number for each in element if (number := _number(each.text)) is not None}
    return {**numbers, "name": name, "bbox": box}


def _number(text: str | None) -> int | float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number
