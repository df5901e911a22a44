"""A decode backend of one's own: torchvision's JPEG decoder behind fastdata's loader.

    python examples/own_backend.py [--data FOLDER]

A class with one method is all: reading, random views, augmentations, failures and batches are the loader's.  Prints how
far its pixels are from Pillow's, and whose batches the loader gives.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import ClassVar

import torch
from common import MEAN, STD, data_folder
from torchvision import transforms
from torchvision.io import ImageReadMode, decode_jpeg

from fastdata import DataLoader, ImageFolder
from fastdata.loaders import register_backend
from fastdata.loaders.backend import Encoded, HandBack, Pixels
from fastdata.loaders.per_image import PerImageBackend
from fastdata.loaders.resample import see
from fastdata.testing import check_backend
from fastdata.views.view import View


class TorchvisionBackend(PerImageBackend):
    """torchvision.io for JPEGs, Pillow for the rest; windows are resized with Pillow's arithmetic."""

    name = "torchvision"
    mean_tolerance: ClassVar = {"exact": 0.5, "fast": 0.5}  # grey levels: its libjpeg may round chroma otherwise
    install_hint = "install it with: pip install torchvision"

    @classmethod
    def version(cls) -> str:
        """Torchvision's."""
        return f"torchvision {version('torchvision')}"

    def decode_view(self, image: Encoded, view: View, out: Pixels) -> None:
        """Decodes the whole image, of which it keeps what the view shows."""
        if not image.is_whole_jpeg():
            raise HandBack("another format, or damaged")
        data = torch.frombuffer(bytearray(image.data), dtype=torch.uint8)
        try:
            pixels = decode_jpeg(data, mode=ImageReadMode.RGB)
        except RuntimeError as error:
            raise HandBack(str(error)) from error
        out[:] = see(pixels.permute(1, 2, 0).contiguous().numpy(), view)


def main() -> None:
    """Checks the contract, then loads an epoch."""
    check_backend(TorchvisionBackend)
    print("the contract of backends is kept: pixels, failures, threads, copies")
    steps = [transforms.RandomResizedCrop(64), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    dataset = ImageFolder(data_folder(), transforms.Compose(steps))
    backend = register_backend(TorchvisionBackend)
    ours, pillows = (DataLoader(dataset, 16, seed=1, backend=name) for name in (backend, "pil"))
    most = max(float((a - b).abs().max()) for (a, _), (b, _) in zip(ours, pillows, strict=True))
    print(f"{ours.stats()['samples']} images by {ours.stats()['backend']}; largest difference from Pillow {most:.3f}")


if __name__ == "__main__":
    main()
