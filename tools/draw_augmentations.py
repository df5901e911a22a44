"""Draw what every operation of the fused augmentations makes of a picture, beside torchvision.

    python tools/draw_augmentations.py

writes docs/augmentations.png: for each operation the original, what fastdata and torchvision make of it with the same
parameters, and how far the two are apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms as v1
from PIL import Image, ImageDraw, ImageFont
from torchvision.transforms import functional

from fastdata import native
from fastdata.augment.erasing import RandomErasing
from fastdata.tables import Format
from fastdata.transforms.compile import compile_transform
from fastdata.views.philox import Key
from fastdata.views.streams import Draws

Pixels: TypeAlias = npt.NDArray[np.uint8]  # (SIDE, SIDE, 3)
Theirs: TypeAlias = Callable[[Image.Image, dict[str, Any]], Any]  # given what we drew

SIDE, GAP, LINE, MARGIN = 112, 4, 20, 10  # in pixels; a line is one of text
BLOCKS = 2  # of rows, side by side
MAGNIFIED = 32
COLUMNS = ("original", "fastdata", "torchvision", f"difference x {MAGNIFIED}")
PAPER, INK, OUTSIDE = (255, 255, 255), (40, 40, 40), (200, 200, 205)
BILINEAR, BICUBIC = v1.InterpolationMode.BILINEAR, v1.InterpolationMode.BICUBIC


def _moved(image: Image.Image, own: dict[str, Any]) -> Any:
    return functional.affine(image, 0.0, own["moves"].tolist(), 1.0, [0.0, 0.0], fill=OUTSIDE)


def _erased(image: Image.Image, own: dict[str, Any]) -> Any:
    left, top, right, bottom = own["boxes"][0].tolist()
    erased = functional.erase(functional.pil_to_tensor(image), top, left, bottom - top, right - left, torch.tensor(0))
    return functional.to_pil_image(erased)


# Transforms whose ranges are single numbers, which float32 holds exactly, so that torchvision draws what we draw; and
# for those that cannot be so, torchvision's function.
_TURN: dict[str, Any] = {"degrees": (-25, -25), "scale": (0.75, 0.75), "shear": (15, 15), "fill": OUTSIDE}
OPERATIONS: dict[str, tuple[Any, Theirs | None]] = {
    "brightness x 1.5": (v1.ColorJitter(brightness=(1.5, 1.5)), None),
    "contrast x 0.5": (v1.ColorJitter(contrast=(0.5, 0.5)), None),
    "saturation x 2": (v1.ColorJitter(saturation=(2.0, 2.0)), None),
    "hue turned by a quarter": (v1.ColorJitter(hue=(0.25, 0.25)), None),
    "sharpness x 4": (v1.RandomAdjustSharpness(4.0, 1.0), None),
    "grey": (v1.Grayscale(3), None),
    "inverted": (v1.RandomInvert(1.0), None),
    "posterized, 2 bits": (v1.RandomPosterize(2, 1.0), None),
    "solarized from 128": (v1.RandomSolarize(128, 1.0), None),
    "autocontrast": (v1.RandomAutocontrast(1.0), None),
    "equalized": (v1.RandomEqualize(1.0), None),
    "Gaussian blur, sigma 2": (v1.GaussianBlur(9, (2.0, 2.0)), None),
    "rotated by 30°, nearest": (v1.RandomRotation((30, 30), fill=OUTSIDE), None),
    "sheared by 20°, nearest": (v1.RandomAffine(0, shear=(20, 20), fill=OUTSIDE), None),
    "translated": (v1.RandomAffine(0, translate=(0.4, 0.4), fill=OUTSIDE), _moved),
    "affine, bilinear": (v1.RandomAffine(**_TURN, interpolation=BILINEAR), None),
    "affine, bicubic": (v1.RandomAffine(**_TURN, interpolation=BICUBIC), None),
    "erased": (v1.RandomErasing(1.0, scale=(0.1, 0.3)), _erased),
}


def draw_scene() -> Image.Image:
    """A house between hills, with fine lines, all colours, and levels from about 20 to 230."""
    fine = 4
    scene = Image.new("RGB", (SIDE * fine, SIDE * fine))
    draw = ImageDraw.Draw(scene)

    def at(*places: float) -> list[float]:
        return [place * fine for place in places]

    for y in range(SIDE):
        draw.rectangle(at(0, y, SIDE, y + 1), fill=(60 + y, 110 + y, 215))
    draw.ellipse(at(76, 10, 98, 32), fill=(230, 205, 70))
    draw.ellipse(at(-50, 58, 80, 170), fill=(60, 125, 60))
    draw.ellipse(at(40, 66, 170, 190), fill=(85, 150, 55))
    draw.rectangle(at(26, 50, 60, 82), fill=(215, 195, 165))
    draw.polygon(at(20, 51, 43, 30, 66, 51), fill=(170, 50, 40))
    draw.rectangle(at(32, 57, 41, 66), fill=(40, 55, 90))
    draw.rectangle(at(46, 60, 55, 82), fill=(95, 60, 40))
    for x in range(70, 108, 6):  # a fence
        draw.line(at(x, 78, x, 92), fill=(225, 220, 210), width=fine)
    draw.line(at(67, 82, 109, 82), fill=(225, 220, 210), width=fine)
    for x in range(SIDE):
        hue = Image.new("HSV", (1, 1), (x * 256 // SIDE, 190, 225)).convert("RGB").getpixel((0, 0))
        draw.rectangle(at(x, 97, x + 1, 104), fill=hue)
        draw.rectangle(at(x, 105, x + 1, SIDE), fill=(20 + x * 210 // SIDE,) * 3)
    return scene.reduce(fine)


def by_fastdata(step: Any, pixels: Pixels) -> tuple[Pixels, dict[str, Any]]:
    """What the step of a transform makes of the pixels, and what was drawn for them."""
    steps = [v1.ToTensor(), step] if isinstance(step, v1.RandomErasing) else [step, v1.ToTensor()]
    plan = compile_transform(v1.Compose([v1.CenterCrop(SIDE), *steps])).plan
    assert plan is not None
    augmentation: Any = (plan.effects + plan.float_augmentations)[0]
    zero = np.zeros(1, np.int64)
    parameters = augmentation.draw(Draws(key=Key(seed=0, epoch=0), indices=zero, occurrences=zero), (SIDE, SIDE))
    result = pixels.copy()
    if isinstance(augmentation, RandomErasing):
        for erased in augmentation.erased(parameters)[0]:
            erased.apply(torch.from_numpy(result).permute(2, 0, 1))
    else:
        table = augmentation.effects(parameters, (SIDE, SIDE))
        native.load().convert(pixels, result.ctypes.data, Format(), table)
    return result, {name: values[0] for name, values in parameters.items()}


def in_words(difference: npt.NDArray[Any]) -> str:
    """How far apart two images are."""
    if not difference.any():
        return "equal"
    levels = int(difference.max())
    return f"{levels} level{'s' if levels > 1 else ''} in {100 * (difference > 0).mean():.2g} % of values"


def draw_all() -> Image.Image:
    """All operations in rows; prints how far apart the results are."""
    rows = -(-len(OPERATIONS) // BLOCKS)
    block_px, row_px = len(COLUMNS) * (SIDE + GAP) + 2 * MARGIN, SIDE + LINE + GAP
    sheet = Image.new("RGB", (BLOCKS * block_px, LINE + rows * row_px + MARGIN), PAPER)
    for block in range(BLOCKS):
        for column, title in enumerate(COLUMNS):
            _write(sheet, title, block * block_px + MARGIN + column * (SIDE + GAP), 0)
    for number, name in enumerate(OPERATIONS):
        block, row = divmod(number, rows)
        _draw_row(sheet, name, block * block_px + MARGIN, LINE + row * row_px)
    return sheet


def _draw_row(sheet: Image.Image, name: str, left: int, top: int) -> None:
    step, given = OPERATIONS[name]
    scene = draw_scene()
    ours, own = by_fastdata(step, np.asarray(scene))
    theirs = np.asarray(given(scene, own) if given is not None else step(scene))
    difference = np.abs(ours.astype(int) - theirs)
    magnified = np.minimum(difference * MAGNIFIED, 255).astype(np.uint8)
    for column, tile in enumerate((np.asarray(scene), ours, theirs, magnified)):
        sheet.paste(Image.fromarray(tile), (left + column * (SIDE + GAP), top))
    words = in_words(difference)
    print(f"{name}: {words}")
    _write(sheet, name, left, top + SIDE)
    _write(sheet, words, left + len(COLUMNS) * (SIDE + GAP) - GAP, top + SIDE, anchor="ra")


def _write(sheet: Image.Image, text: str, left: int, top: int, anchor: str = "la") -> None:
    ImageDraw.Draw(sheet).text((left, top + 2), text, fill=INK, font=ImageFont.load_default(12), anchor=anchor)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[1] / "docs" / "augmentations.png"
    parser.add_argument("--to", type=Path, default=default, help="file to write (default: docs/augmentations.png)")
    draw_all().save(parser.parse_args().to, optimize=True)


if __name__ == "__main__":
    main()
