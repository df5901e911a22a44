"""A sample dataset: photo-like JPEGs in ten classes, drawn from a seed.

A photograph's power spectrum falls with about the square of the frequency (Field, "Relations between the statistics
of natural images and the response properties of cortical cells", 1987).  Each picture is such a texture, lit from one
side, with sharp-edged objects laid over it (the "dead leaves" model: Lee, Mumford and Huang, "Occlusion models for
natural images", 2001), so that JPEG compresses it much as it does photographs.  The objects' shape is the class.
Sizes and chroma subsampling follow ImageNet's training set.
"""

from __future__ import annotations

import io
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import OptionError
from fastdata.system.cpus import auto_threads
from fastdata.system.ordered_map import in_order

__all__ = ["CLASSES", "SampleOptions", "draw_picture", "make_sample_dataset"]

Image: TypeAlias = npt.NDArray[np.floating[Any]]

# Width and height of common ImageNet originals, with their share in per cent.
_SIZES = {(500, 375): 52, (375, 500): 16, (500, 333): 18, (333, 500): 6, (640, 480): 4, (500, 500): 2, (800, 600): 2}
# Chroma subsampling, with its share in per cent.
_SUBSAMPLING = {"4:4:4": 76, "4:2:0": 20, "4:2:2": 2, "grey": 2}
_TEXTURE_SIDE = 1024
_FARTHEST = 1.7  # radii, that an object reaches from its centre
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

    train: int = 500
    val: int = 100
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
    for split, name in itertools.product(("train", "val"), CLASSES):
        (root / split / name).mkdir(parents=True, exist_ok=True)
    draw = partial(_draw, root, options, _Textures(options.seed))
    jobs = [("train", n) for n in range(options.train)] + [("val", n) for n in range(options.val)]
    drawn = in_order(draw, jobs, threads=auto_threads(), name="fastdata-draw")
    for _ in progress(drawn, len(jobs)) if progress is not None else drawn:
        pass
    marker.write_text(json.dumps(asdict(options)))
    return True


def _draw(root: Path, options: SampleOptions, textures: _Textures, job: tuple[str, int]) -> None:
    split, number = job
    label = number % len(CLASSES)
    path = root / split / CLASSES[label] / f"{number:05}.jpg"
    path.write_bytes(_encode(options, split, number, label, textures))


def draw_picture(label: int, width: int, height: int, rng: np.random.Generator, textures: _Textures) -> Any:
    """Draws one picture: uint8 (height, width, 3)."""
    picture = textures.coloured(width, height, rng)
    for _ in range(rng.integers(2, 5)):  # leaves of no class, as distraction
        _lay_over(picture, _Patch(width, height, rng, low=0.05, high=0.15), _blob, textures, rng)
    for _ in range(rng.integers(1, 4)):
        shape = partial(_shape, label)
        _lay_over(picture, _Patch(width, height, rng, low=0.22, high=0.42), shape, textures, rng, contrast=0.5)
    picture *= np.linspace(rng.uniform(0.7, 1.1), rng.uniform(0.7, 1.1), width, dtype=np.float32)
    picture += 2.5 * textures.noise(width, height, rng)
    return np.moveaxis(np.clip(picture, 0, 255, out=picture).astype(np.uint8), 0, 2)


class _Textures:
    """A few large textures with a natural power spectrum, and white noise, cut at random places."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 1])
        self._planes = [_natural_noise(_TEXTURE_SIDE, rng) for _ in range(8)]
        self._noise = rng.standard_normal((_TEXTURE_SIDE, _TEXTURE_SIDE), np.float32)

    def coloured(self, width: int, height: int, rng: np.random.Generator, *, contrast: float = 1.0) -> Image:
        """Float32 (3, height, width): a random base colour with correlated texture in each channel."""
        base = rng.uniform(40, 215, 3).astype(np.float32)
        shared, own = self._cut(width, height, rng), self._cut(width, height, rng)
        strength = rng.uniform(18, 50) * contrast
        tint = rng.uniform(-1, 1, 3).astype(np.float32)
        coloured = np.empty((3, height, width), np.float32)
        for plane, level, share in zip(coloured, base, 0.35 * tint, strict=True):
            np.multiply(own, share, out=plane)
            plane += shared
            plane *= np.float32(strength)
            plane += level
        return coloured

    def noise(self, width: int, height: int, rng: np.random.Generator) -> Image:
        """Float32 (height, width), of variance 1."""
        return self._part(self._noise, width, height, rng)

    def _cut(self, width: int, height: int, rng: np.random.Generator) -> Image:
        return self._part(self._planes[rng.integers(len(self._planes))], width, height, rng)

    @staticmethod
    def _part(plane: Image, width: int, height: int, rng: np.random.Generator) -> Image:
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


class _Patch:
    """A place in a picture, around a random centre: with coordinates turned by a random angle, in units of a radius."""

    def __init__(self, width: int, height: int, rng: np.random.Generator, *, low: float, high: float) -> None:
        self.radius = rng.uniform(low, high) * min(width, height)
        column, row = rng.uniform(0.3, 0.7) * width, rng.uniform(0.3, 0.7) * height
        reach = _FARTHEST * self.radius
        self.columns = slice(max(0, int(column - reach)), min(width, int(column + reach) + 1))
        self.rows = slice(max(0, int(row - reach)), min(height, int(row + reach) + 1))
        x = np.arange(self.columns.start, self.columns.stop, dtype=np.float32)[None, :] - np.float32(column)
        y = np.arange(self.rows.start, self.rows.stop, dtype=np.float32)[:, None] - np.float32(row)
        angle = rng.uniform(0, 2 * np.pi)
        cos, sin = np.float32(np.cos(angle) / self.radius), np.float32(np.sin(angle) / self.radius)
        self.x, self.y = cos * x + sin * y, cos * y - sin * x


def _lay_over(
    picture: Image,
    patch: _Patch,
    signed: Callable[[Image, Image, np.random.Generator], Image],
    textures: _Textures,
    rng: np.random.Generator,
    *,
    contrast: float = 1.0,
) -> None:
    """Lays an object over a picture; `signed` gives its signed distances, and its edge is soft over 1.5 pixels."""
    inside = signed(patch.x, patch.y, rng)
    mask = np.clip(inside * np.float32(patch.radius / 1.5) + np.float32(0.5), 0, 1)
    under = picture[:, patch.rows, patch.columns]
    over = textures.coloured(under.shape[2], under.shape[1], rng, contrast=contrast)
    over -= under
    over *= mask
    under += over


def _blob(x: Image, y: Image, rng: np.random.Generator) -> Image:
    return np.asarray(1 - np.hypot(x * np.float32(rng.uniform(0.6, 1.6)), y), np.float32)


def _shape(label: int, x: Image, y: Image, _: np.random.Generator) -> Image:
    r, box = np.hypot(x, y), np.maximum(abs(x), abs(y))
    signed: dict[str, Callable[[], Image]] = {
        "disc": lambda: 1 - r,
        "ring": lambda: 0.25 - abs(r - 0.8),
        "square": lambda: 0.85 - box,
        "frame": lambda: 0.17 - abs(box - 0.75),
        "bar": lambda: np.minimum(1.2 - abs(x), 0.28 - abs(y)),
        "cross": lambda: np.minimum(0.95 - box, 0.25 - np.minimum(abs(x), abs(y))),
        "triangle": lambda: 0.55 - np.maximum(-y, np.maximum(0.866 * x + 0.5 * y, -0.866 * x + 0.5 * y)),
        "star": lambda: 0.65 + 0.35 * np.cos(5 * np.arctan2(y, x)) - r,
        "wave": lambda: np.minimum(1.2 - abs(x), 0.2 - abs(y - 0.4 * np.sin(5 * x))),
        "checker": lambda: np.minimum(0.95 - box, 0.3 * np.sin(6 * x) * np.sin(6 * y)),
    }
    return np.asarray(signed[CLASSES[label]](), np.float32)


def _encode(options: SampleOptions, split: str, number: int, label: int, textures: _Textures) -> bytes:
    import PIL.Image

    rng = np.random.default_rng([options.seed, 2 + (split == "val"), number])
    width, height = list(_SIZES)[rng.choice(len(_SIZES), p=np.array(list(_SIZES.values())) / 100)]
    subsampling = list(_SUBSAMPLING)[rng.choice(len(_SUBSAMPLING), p=np.array(list(_SUBSAMPLING.values())) / 100)]
    image = PIL.Image.fromarray(draw_picture(label, width, height, rng, textures))
    buffer = io.BytesIO()
    if subsampling == "grey":
        image.convert("L").save(buffer, "JPEG", quality=options.quality)
    else:
        image.save(buffer, "JPEG", quality=options.quality, subsampling=subsampling)
    return buffer.getvalue()
