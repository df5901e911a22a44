"""Layouts of Pascal VOC, COCO and Carvana over photographs, with drawn masks, polygons and boxes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

CLASSES = 20


def prepare(files: list[Path], data: Path) -> None:
    """Makes `VOCdevkit`, `coco` and `unet` under `data`; what is there already stays."""
    voc, coco, unet = data / "VOCdevkit/VOC2012", data / "coco", data / "unet"
    if (coco / "annotations/instances_train2017.json").exists():
        return
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (voc / folder).mkdir(parents=True, exist_ok=True)
    for folder in (coco / "train2017", coco / "annotations", unet / "imgs", unet / "masks"):
        folder.mkdir(parents=True, exist_ok=True)
    choose, names, described, objects = random.Random(0), [], [], []
    for number, path in enumerate(files):
        names.append(name := f"{number:06d}")
        for folder in (voc / "JPEGImages", coco / "train2017", unet / "imgs"):
            if not (link := folder / f"{name}.jpg").is_symlink():
                link.symlink_to(path.resolve())
        with Image.open(path) as image:
            size = image.size
        described.append({"id": number, "file_name": f"{name}.jpg", "width": size[0], "height": size[1]})
        shapes = [_polygon(size, choose) for _ in range(choose.randint(1, 7))]
        _draw(size, shapes, voc / "SegmentationClass" / f"{name}.png", unet / "masks" / f"{name}.png")
        objects += [_annotation(number, len(objects) + at, *shape) for at, shape in enumerate(shapes)]
    for split in ("train", "val", "trainval"):
        (voc / "ImageSets/Segmentation" / f"{split}.txt").write_text("\n".join(names) + "\n")
    categories = [{"id": label, "name": str(label)} for label in range(1, CLASSES + 1)]
    record = {"images": described, "annotations": objects, "categories": categories}
    (coco / "annotations/instances_train2017.json").write_text(json.dumps(record))


def _polygon(size: tuple[int, int], choose: random.Random) -> tuple[int, list[tuple[float, float]]]:
    """A class, and the corners of a blob inside an image of (width, height)."""
    width, height = size
    x, y = choose.uniform(0.15, 0.85) * width, choose.uniform(0.15, 0.85) * height
    radius = choose.uniform(0.08, 0.3) * min(size)
    corners = []
    for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False):
        reach = radius * choose.uniform(0.6, 1)
        corner = np.clip([x + reach * np.cos(angle), y + reach * np.sin(angle)], 0, [width - 1, height - 1])
        corners.append((float(corner[0]), float(corner[1])))
    return choose.randint(1, CLASSES), corners


def _draw(size: tuple[int, int], shapes: list[Any], classes: Path, binary: Path) -> None:
    """Writes the mask of classes, with a palette and borders of 255, and the binary mask."""
    colours, foreground = Image.new("P", size, 0), Image.new("L", size, 0)
    colours.putpalette([random.Random(level).randrange(256) for level in range(768)])
    for label, corners in shapes:
        ImageDraw.Draw(colours).polygon(corners, fill=label, outline=255)
        ImageDraw.Draw(foreground).polygon(corners, fill=255)
    colours.save(classes)
    foreground.save(binary)


def _annotation(image: int, number: int, label: int, corners: list[tuple[float, float]]) -> dict[str, Any]:
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    width, height = (high - low).tolist()
    return {
        "id": number + 1,
        "image_id": image,
        "category_id": label,
        "iscrowd": 0,
        "area": width * height,
        "bbox": [*low.tolist(), width, height],
        "segmentation": [[value for corner in corners for value in corner]],
    }
