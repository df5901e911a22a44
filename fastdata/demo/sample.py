"""A sample dataset: photo-like JPEGs in ten classes, drawn from a seed.

A photograph's power spectrum falls with about the square of the frequency (Field, "Relations between the statistics
of natural images and the response properties of cortical cells", 1987).  Each picture is such a texture, lit from one
side, with sharp-edged objects laid over it (the "dead leaves" model: Lee, Mumford and Huang, "Occlusion models for
natural images", 2001), so that JPEG compresses it much as it does photographs.  The objects' shape is the class.
Sizes and chroma subsampling follow ImageNet's training set.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import OptionError

__all__ = ["CLASSES", "SampleOptions", "draw_picture", "make_sample_dataset"]

Image: TypeAlias = npt.NDArray[np.floating[Any]]

# Width and height of common ImageNet originals, with their share in per cent.
_SIZES = {(500, 375): 52, (375, 500): 16, (500, 333): 18, (333, 500): 6, (640, 480): 4, (500, 500): 2, (800, 600): 2}
# Chroma subsampling, with its share in per cent.
_SUBSAMPLING = {"4:4:4": 76, "4:2:0": 20, "4:2:2": 2, "grey": 2}
_TEXTURE_SIDE = 1024
_MARKER = "sample-dataset.json"

CLASSES = ("disc", "ring", "square", "frame", "bar", "cross", "triangle", "star", "wave", "checker")


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Options of the sample dataset.

    Attributes:
        train: number of training images, over all classes.
        val: number of validation images, over all classes.
        seed: random seed that decides every pixel.
        quality: JPEG quality; 93 gives about as many bytes per pixel as ImageNet has.
    """

    train: int = 1000
    val: int = 200
    seed: int = 0
    quality: int = 93

    def __post_init__(self) -> None:
        if self.train < len(CLASSES) or self.val < len(CLASSES):
            raise OptionError(f"train={self.train} and val={self.val} must be at least {len(CLASSES)}, one per class")
        if not 1 <= self.quality <= 100:
            raise OptionError(f"quality={self.quality} is not between 1 and 100")


def make_sample_dataset(
    root: Path, options: SampleOptions, *, progress: Callable[[Iterator[Any], int], Iterator[Any]] | None = None
) -> bool:
    """Writes ROOT/train/CLASS/NUMBER.jpg and ROOT/val/CLASS/NUMBER.jpg.

    A folder that already holds the dataset with these options is not changed; an earlier sample dataset with other
    options is replaced.

    Args:
        root: the folder to write to; created if missing.
        options: options of the images to draw.
        progress: wraps the iterator over images, given their number.

    Returns:
        True if images were written, False if they existed already.

    Raises:
        FileExistsError: the folder holds other files.
    """
    marker = root / _MARKER
    if marker.exists() and json.loads(marker.read_text()) == asdict(options):
        return False
    if root.exists() and any(root.iterdir()) and not marker.exists():
        raise FileExistsError(f"{root} is not empty and is not a sample dataset; name another folder")
    if marker.exists():  # another sample, of which nothing may be left
        for split in ("train", "val"):
            shutil.rmtree(root / split, ignore_errors=True)
    marker.unlink(missing_ok=True)
    textures = _Textures(options.seed)
    jobs = [("train", n) for n in range(options.train)] + [("val", n) for n in range(options.val)]
    steps: Iterator[tuple[str, int]] = iter(jobs)
    for split, number in progress(steps, len(jobs)) if progress is not None else steps:
        label = number % len(CLASSES)
        path = root / split / CLASSES[label] / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_encode(options, split, number, label, textures))
    marker.write_text(json.dumps(asdict(options)))
    return True


def draw_picture(label: int, width: int, height: int, rng: np.random.Generator, textures: _Textures) -> Image:
    """Draws one picture: float32 (height, width, 3), 0 to 255."""
    picture = textures.coloured(width, height, rng)
    for _ in range(rng.integers(2, 5)):  # leaves of no class, as distraction
        picture = _lay_over(picture, _blob(width, height, rng), textures.coloured(width, height, rng))
    for _ in range(rng.integers(1, 4)):
        mask = _shape(label, width, height, rng)
        picture = _lay_over(picture, mask, textures.coloured(width, height, rng, contrast=0.5))
    light = np.linspace(rng.uniform(0.7, 1.1), rng.uniform(0.7, 1.1), width, dtype=np.float32)
    noise = rng.normal(0, 2.5, (height, width, 1)).astype(np.float32)
    return np.asarray(np.clip(picture * light[None, :, None] + noise, 0, 255), np.float32)


class _Textures:
    """A few large textures with a natural power spectrum, cut at random places."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 1])
        self._planes = [_natural_noise(_TEXTURE_SIDE, rng) for _ in range(8)]

    def coloured(self, width: int, height: int, rng: np.random.Generator, *, contrast: float = 1.0) -> Image:
        """Float32 (height, width, 3): a random base colour with correlated texture in each channel."""
        base = rng.uniform(40, 215, 3).astype(np.float32)
        shared, own = self._cut(width, height, rng), self._cut(width, height, rng)
        strength = rng.uniform(18, 50) * contrast
        tint = rng.uniform(-1, 1, 3).astype(np.float32)
        coloured = base + strength * (shared[..., None] + 0.35 * own[..., None] * tint)
        return np.asarray(coloured, np.float32)

    def _cut(self, width: int, height: int, rng: np.random.Generator) -> Image:
        plane = self._planes[rng.integers(len(self._planes))]
        top, left = rng.integers(0, _TEXTURE_SIDE - height), rng.integers(0, _TEXTURE_SIDE - width)
        cut = plane[top : top + height, left : left + width]
        return cut[:: rng.choice([-1, 1]), :: rng.choice([-1, 1])]


def _natural_noise(side: int, rng: np.random.Generator) -> Image:
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :])
    frequency[0, 0] = 1.0
    spectrum = np.fft.rfft2(rng.normal(size=(side, side))) / frequency**1.1
    spectrum[0, 0] = 0
    plane = np.fft.irfft2(spectrum, s=(side, side))
    return np.asarray(plane / plane.std(), dtype=np.float32)


def _lay_over(picture: Image, mask: Image, texture: Image) -> Image:
    return picture + mask[..., None] * (texture - picture)


def _grid(width: int, height: int, rng: np.random.Generator, *, low: float, high: float) -> tuple[Image, Image, float]:
    """Coordinates around a random centre, turned by a random angle, in units of a random radius; and that radius."""
    radius = rng.uniform(low, high) * min(width, height)
    x = np.arange(width, dtype=np.float32)[None, :] - rng.uniform(0.3, 0.7) * width
    y = np.arange(height, dtype=np.float32)[:, None] - rng.uniform(0.3, 0.7) * height
    angle = rng.uniform(0, 2 * np.pi)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return (cos * x + sin * y) / np.float32(radius), (cos * y - sin * x) / np.float32(radius), radius


def _edge(inside: Image, radius: float) -> Image:
    """A mask from a signed distance in units of the radius, soft over about a pixel and a half."""
    return np.asarray(np.clip(inside * (radius / 1.5) + 0.5, 0, 1), np.float32)


def _blob(width: int, height: int, rng: np.random.Generator) -> Image:
    x, y, radius = _grid(width, height, rng, low=0.05, high=0.15)
    return _edge(1 - np.hypot(x * np.float32(rng.uniform(0.6, 1.6)), y), radius)


def _shape(label: int, width: int, height: int, rng: np.random.Generator) -> Image:
    x, y, radius = _grid(width, height, rng, low=0.22, high=0.42)
    r, box = np.hypot(x, y), np.maximum(abs(x), abs(y))
    angle = np.arctan2(y, x)
    three_sides = np.maximum(-y, np.maximum(0.866 * x + 0.5 * y, -0.866 * x + 0.5 * y))
    signed: dict[str, Callable[[], Image]] = {
        "disc": lambda: 1 - r,
        "ring": lambda: 0.25 - abs(r - 0.8),
        "square": lambda: 0.85 - box,
        "frame": lambda: 0.17 - abs(box - 0.75),
        "bar": lambda: np.minimum(1.2 - abs(x), 0.28 - abs(y)),
        "cross": lambda: np.minimum(0.95 - box, 0.25 - np.minimum(abs(x), abs(y))),
        "triangle": lambda: 0.55 - three_sides,
        "star": lambda: 0.65 + 0.35 * np.cos(5 * angle) - r,
        "wave": lambda: np.minimum(1.2 - abs(x), 0.2 - abs(y - 0.4 * np.sin(5 * x))),
        "checker": lambda: np.minimum(0.95 - box, 0.3 * np.sin(6 * x) * np.sin(6 * y)),
    }
    return _edge(np.asarray(signed[CLASSES[label]](), np.float32), radius)


def _encode(options: SampleOptions, split: str, number: int, label: int, textures: _Textures) -> bytes:
    import PIL.Image

    rng = np.random.default_rng([options.seed, 2 + (split == "val"), number])
    width, height = list(_SIZES)[rng.choice(len(_SIZES), p=np.array(list(_SIZES.values())) / 100)]
    subsampling = list(_SUBSAMPLING)[rng.choice(len(_SUBSAMPLING), p=np.array(list(_SUBSAMPLING.values())) / 100)]
    image = PIL.Image.fromarray(draw_picture(label, width, height, rng, textures).astype(np.uint8))
    buffer = io.BytesIO()
    if subsampling == "grey":
        image.convert("L").save(buffer, "JPEG", quality=options.quality)
    else:
        image.save(buffer, "JPEG", quality=options.quality, subsampling=subsampling)
    return buffer.getvalue()
