"""Photographs with drawn targets: for each a mask as Pascal VOC stores them, and the boxes of what is in it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

__all__ = ["Annotation", "annotations", "write_annotated"]

CLASSES = 20
MOST_OBJECTS = 7


class Annotation(NamedTuple):
    """One photograph with its targets.

    Attributes:
        image: path of the file.
        mask: path of a PNG with a palette, whose values are class numbers, 0 for the background.
        boxes: (left, top, right, bottom) in pixels of each object.
        labels: class number of each object.
    """

    image: str
    mask: str
    boxes: list[list[float]]
    labels: list[int]


def annotations(folder: Path) -> list[Annotation]:
    """What `write_annotated` wrote."""
    rows = json.loads((folder / "annotations.json").read_text())
    return [Annotation(str(folder / image), str(folder / mask), boxes, labels) for image, mask, boxes, labels in rows]


def write_annotated(files: Sequence[Path], to: Path) -> None:
    """Copies photographs and draws one to seven objects for each: images/, masks/ and annotations.json.

    Args:
        files: the photographs.
        to: a folder that is there.
    """
    for name in ("images", "masks"):
        (to / name).mkdir()
    choose = random.Random(0)
    rows = []
    for number, path in enumerate(files):
        image, mask = f"images/{number:06}{path.suffix.lower()}", f"masks/{number:06}.png"
        shutil.copyfile(path, to / image)
        with Image.open(path) as opened:
            size = opened.size
        objects = [_blob(size, choose) for _ in range(choose.randint(1, MOST_OBJECTS))]
        labels = [choose.randint(1, CLASSES) for _ in objects]
        _draw(size, objects, labels, to / mask)
        boxes = [[*corners.min(0).tolist(), *corners.max(0).tolist()] for corners in objects]
        rows.append((image, mask, boxes, labels))
    (to / "annotations.json").write_text(json.dumps(rows))


def _blob(size: tuple[int, int], choose: random.Random) -> np.ndarray:
    """Corners [24, 2] of something round inside an image of (width, height)."""
    centre = np.array([choose.uniform(0.2, 0.8) * side for side in size])
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    reach = min(size) * choose.uniform(0.08, 0.3) * np.array([choose.uniform(0.6, 1) for _ in angles])
    corners = centre + reach[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    return np.clip(corners, 0, np.array(size) - 1)


def _draw(size: tuple[int, int], objects: Sequence[np.ndarray], labels: Sequence[int], to: Path) -> None:
    """Writes a mask with a palette; borders are 255, which training ignores."""
    mask = Image.new("P", size, 0)
    colours = random.Random(0)
    mask.putpalette([0, 0, 0, *(colours.randrange(256) for _ in range(765))])
    for corners, label in zip(objects, labels, strict=True):
        ImageDraw.Draw(mask).polygon([(x, y) for x, y in corners.tolist()], fill=label, outline=255)
    mask.save(to)
