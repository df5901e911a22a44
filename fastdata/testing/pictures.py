"""Images made from numbers, for tests: pictures, encoded files, a folder of them, and Pillow's view of one."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.errors import OptionError
from fastdata.views.view import View

__all__ = ["check_close", "encoded", "pillows_view", "picture", "synthetic_dataset", "valid_files"]

_SUBSAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}  # as Pillow numbers them


def picture(width: int, height: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Waves of colour with some noise: uint8 (height, width, 3)."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width, :1][:2] / 17
    down, across = rng.uniform(0.3, 2.0, (2, 3))  # frequencies for each colour
    waves = np.sin(rows * down) + np.cos(columns * across)
    noise = rng.normal(0, 6, (height, width, 3))
    pixels: npt.NDArray[np.uint8] = np.clip(128 + 50 * waves + noise, 0, 255).astype(np.uint8)
    return pixels


def encoded(
    width: int,
    height: int,
    *,
    seed: int = 0,
    kind: str = "JPEG",
    mode: str = "RGB",
    sampling: str = "4:2:0",
    **more: Any,
) -> bytes:
    """A picture as a file.

    Args:
        width: in pixels.
        height: in pixels.
        seed: of the picture.
        kind: Pillow's name of the format.
        mode: Pillow's mode, such as "RGB", "L" or "CMYK".
        sampling: of the chroma of a JPEG: "4:4:4", "4:2:2" or "4:2:0".
        more: what Pillow's `save` takes for the format.
    """
    file = io.BytesIO()
    if kind == "JPEG" and mode == "RGB":
        more = {"subsampling": _SUBSAMPLINGS[sampling], "quality": 88, **more}
    Image.fromarray(picture(width, height, seed)).convert(mode).save(file, kind, **more)
    return file.getvalue()


def valid_files() -> dict[str, bytes]:
    """Files of many kinds that Pillow decodes, by name."""
    rotated = Image.Exif()
    rotated[0x0112] = 6  # the orientation, which is left alone
    return {
        "progressive JPEG": encoded(120, 90, progressive=True),
        "JPEG with restart markers": encoded(120, 90, restart_marker_blocks=3),
        "grey JPEG": encoded(120, 90, mode="L"),
        "CMYK JPEG": encoded(120, 90, mode="CMYK"),
        "JPEG with an orientation": encoded(120, 90, exif=rotated),
        "JPEG of one pixel": encoded(1, 1),
        "PNG": encoded(120, 90, kind="PNG"),
        "grey PNG": encoded(120, 90, kind="PNG", mode="L"),
        "PNG with a palette": encoded(120, 90, kind="PNG", mode="P"),
        "PNG with alpha": encoded(120, 90, kind="PNG", mode="RGBA"),
        "GIF": encoded(120, 90, kind="GIF", mode="P"),
        "BMP": encoded(120, 90, kind="BMP"),
        "TIFF": encoded(120, 90, kind="TIFF"),
    }


def pillows_view(data: bytes, view: View) -> npt.NDArray[np.uint8]:
    """A view of an image by Pillow, in the plainest words: uint8 (height, width, 3).

    Raises:
        OSError: Pillow refuses the image.
    """
    image = Image.open(io.BytesIO(data)).convert("RGB").crop(view.window_px)
    image = image.resize(view.resize_px, view.interpolation.value).crop(view.crop_px)
    if view.flip_horizontal:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if view.flip_vertical:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return np.asarray(image)


def synthetic_dataset(
    folder: str | os.PathLike[str],
    *,
    classes: int = 3,
    images_per_class: int = 8,
    size_px: tuple[int, int] = (96, 72),
    seed: int = 0,
) -> Path:
    """Writes a folder of JPEGs, with a folder for each class, as `torchvision.datasets.ImageFolder` reads it.

    Args:
        folder: made if it is missing; files in it of the same names are replaced.
        classes: number of classes, called class0, class1, ...
        images_per_class: JPEGs in each.
        size_px: largest width and height; each image is a little smaller, no two next to each other of one size.
        seed: of the pictures.

    Returns:
        The folder.

    Raises:
        OptionError: a number is below 1, or the size below 16.
    """
    if min(classes, images_per_class) < 1 or min(size_px) < 16:
        raise OptionError(
            f"classes={classes}, images_per_class={images_per_class} and size_px={size_px}: at least 1 class, 1 image "
            "and 16 pixels are needed"
        )
    root, (width, height) = Path(folder), size_px
    for number in range(classes * images_per_class):
        path = root / f"class{number // images_per_class}" / f"{number % images_per_class:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        sampling = list(_SUBSAMPLINGS)[number % 3]
        path.write_bytes(encoded(width - number % 7, height - number % 5, seed=seed + number, sampling=sampling))
    return root


def check_close(pixels: npt.NDArray[np.uint8], expected: npt.NDArray[np.uint8], tolerance: float, what: str) -> None:
    """Raises AssertionError if pixels differ from Pillow's by more than `tolerance` grey levels on average."""
    difference = float(np.abs(pixels.astype(np.int16) - expected).mean())
    assert difference <= tolerance, f"{what}: {difference:.3f} grey levels from Pillow, {tolerance} are allowed"
