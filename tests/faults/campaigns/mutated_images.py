"""A mutated image is decoded, or its error names sample and reason, by every backend for CPUs that is installed; with
fidelity="exact" native and turbojpeg give Pillow's pixels or refuse the image, as Pillow does.

A round has 64 images: a JPEG, PNG, WebP, GIF, BMP, TIFF or PGM with 1 to 8 random changes each, in memory or in files.
README.md makes an exception of JPEGs: damage that a window does not reach, or behind the file's end, may go
unnoticed.  Then the pixels are still those of Pillow, where it accepts files that are cut short.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import folders
import images
import make_corpus
import PIL.Image
import PIL.ImageFile
import torch
from mutations import mutated
from torch.utils.data import Dataset
from torchvision import transforms

from fastdata import DataLoader, DecodeError, ImageFolder
from fastdata.loaders import available_backends

ROUNDS = (18, 500, 16_000)
IMAGES, CLASS = 64, "class"
WINDOWS: dict[str, Any] = {"whole": transforms.Resize((12, 12)), "window": transforms.RandomResizedCrop(12)}
EXACT = ("native", "turbojpeg")
Found = dict[int, torch.Tensor | str]  # pixels, or the reason for which there are none


class InMemory(Dataset[Any]):
    """Encoded images that no file has."""

    def __init__(self, encoded: list[bytes], transform: Any) -> None:
        self._encoded, self.transform = encoded, transform

    def __len__(self) -> int:
        return len(self._encoded)

    def read_encoded(self, index: int) -> bytes:
        return self._encoded[index]

    def read_target(self, index: int) -> int:
        return index


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds with every backend, by one of the ways that errors take."""
    PIL.Image.MAX_IMAGE_PIXELS = 100_000  # sizes that mutation has made up are refused before they take time
    warnings.simplefilter("ignore")  # Pillow has some for many of these images
    seeds = _seeds()
    backends = [name for name in ("native", "turbojpeg", "opencv") if name in available_backends()]
    files = [folder / CLASS / f"{number:03}.jpg" for number in range(IMAGES)]
    (folder / CLASS).mkdir()
    for path in files:
        path.touch()
    in_files = folders.numbered(ImageFolder(folder))

    def one(rng: Random) -> str:
        encoded = [mutated(rng.choice(seeds), rng, seeds) for _ in range(IMAGES)]
        window, place = rng.choice(sorted(WINDOWS)), rng.choice(["memory", "files"])
        transform = transforms.Compose([WINDOWS[window], transforms.PILToTensor()])
        dataset: Any = InMemory(encoded, transform)
        if place == "files":
            dataset, in_files.transform = in_files, transform
            for path, data in zip(files, encoded, strict=True):
                path.write_bytes(data)
        loaded = rng.choice([_with_errors, _with_skips])
        theirs = loaded(dataset, "pil")
        for backend in backends:
            ours = loaded(dataset, backend)
            if backend in EXACT:
                _compare(ours, theirs, dataset, encoded, backend)
        return f"{place}, {window}, {loaded.__name__[1:].replace('_', ' ')}"

    return one


def _seeds() -> list[bytes]:
    found = [data for name, data in make_corpus.seeds().items() if not name.startswith("record-")]
    found += [images.saved(60, 50, kind="WEBP", mode=mode, **more) for mode in ("RGB", "RGBA") for more in _WEBPS]
    found += [
        images.saved(60, 50, kind=kind, mode=mode) for kind in ("GIF", "BMP", "TIFF") for mode in ("RGB", "L", "P")
    ]
    found += [images.saved(60, 50, kind="TIFF", compression=name) for name in ("tiff_lzw", "tiff_deflate", "packbits")]
    return [*found, images.saved(60, 50, kind="PPM", mode="L")]


_OTHERS = ("GIF", "BMP", "TIFF")
_WEBPS: tuple[dict[str, Any], ...] = ({"quality": 80}, {"lossless": True})


def _loader(dataset: Any, backend: str, batch: int, on_error: str) -> DataLoader:
    return DataLoader(dataset, batch, seed=1, num_workers=2, backend=backend, fidelity="exact", on_error=on_error)


def _with_errors(dataset: Any, backend: str) -> Found:
    """Batches of one image, each of which may be an error."""
    found: Found = {}
    batches = iter(_loader(dataset, backend, 1, "raise"))
    for index in range(len(dataset)):
        try:
            pixels, targets = next(batches)
            assert targets.tolist() == [index]
            found[index] = pixels[0]
        except DecodeError as error:
            found[index] = _reason(error, index)
    assert next(batches, None) is None
    return found


def _reason(error: DecodeError, index: int) -> str:
    """Checks that an error says which sample it is of, and why."""
    assert error.index == index, (error.index, index)
    assert error.reason, error
    assert re.match(rf"sample {index} \(.*\) (could not|does not) ", str(error), re.DOTALL), error
    return error.reason


def _with_skips(dataset: Any, backend: str) -> Found:
    """Batches that leave out what is an error."""
    loader = _loader(dataset, backend, 16, "skip")
    found: Found = {}
    for pixels, targets in loader:
        found |= dict(zip(targets.tolist(), pixels, strict=True))
    left_out = {index: reason for index, _, reason in loader.stats()["quarantine"]}
    assert all(left_out.values())
    assert not left_out.keys() & found.keys()
    assert left_out.keys() | found.keys() == set(range(len(dataset)))
    return found | left_out


def _compare(ours: Found, theirs: Found, dataset: Any, encoded: list[bytes], backend: str) -> None:
    """Fails unless both decode an image to the same pixels or refuse it, or only Pillow refuses a JPEG."""
    unnoticed = []
    for index, data in enumerate(encoded):
        mine, other = ours[index], theirs[index]
        if isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor):
            assert torch.equal(mine, other), f"image {index}: other pixels by {backend}"
        elif isinstance(mine, torch.Tensor):
            assert data[:2] == b"\xff\xd8", f"image {index}: {backend} decodes it, Pillow says {other}"
            unnoticed.append(index)
        else:
            assert isinstance(other, str), f"image {index}: Pillow decodes it, {backend} says {mine}"
    if unnoticed:
        with _accepting_cut_files():
            theirs = _with_skips(dataset, "pil")
        for index in unnoticed:
            mine, other = ours[index], theirs[index]
            assert isinstance(other, str) or torch.equal(mine, other), f"image {index}: other pixels by {backend}"


@contextmanager
def _accepting_cut_files() -> Iterator[None]:
    PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        yield
    finally:
        PIL.ImageFile.LOAD_TRUNCATED_IMAGES = False
