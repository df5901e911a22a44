"""Whole files decoded to RGB, images per second by backend, image size and number of threads.

Setup: no crop and no resize; the same files for every backend, also as copies with a shorter side of 128, 256 and 512
pixels at quality 90; best of several interleaved rounds.  And how far each backend's pixels are from Pillow's.
Result: benchmarks/results/decode.json.

    python benchmarks/decode.py FOLDER
"""

from __future__ import annotations

import io
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import benchmark

from fastdata import DataLoader, ImageFolder
from fastdata.loaders import available_backends, create_backend
from fastdata.loaders.backend import Encoded, Pixels
from fastdata.loaders.fallback import inspect
from fastdata.loaders.rows import decode_each
from fastdata.system.cpus import usable_cpus
from fastdata.transforms import Compose, PILToTensor, RandomResizedCrop
from fastdata.views.view import View

SIDES_PX = (128, 256, 512)


def decode_speeds(files: Sequence[bytes], *, rounds: int = 3) -> dict[str, float]:
    """Images per second by backend, decoding whole files in one thread without a resize; the best of the rounds.

    Backends with pipelines of their own for whole batches are left out: one image at a time says nothing about them.
    """
    images = [inspect(data) for data in files]
    made = {name: create_backend(name) for name in available_backends() if name != "synthetic"}
    backends = {name: backend for name, backend in made.items() if name != "dali"}
    best: dict[str, float] = dict.fromkeys(backends, 0.0)
    for _ in range(rounds):
        for name, backend in backends.items():
            began = time.perf_counter()
            for image in images:
                view = View.whole(image.width, image.height)
                (status,) = decode_each(backend, [image], [view], [_empty(image)])
                if status is not None:
                    raise status
            best[name] = max(best[name], len(images) / (time.perf_counter() - began))
    return best


def resized_copies(files: Sequence[bytes], side_px: int) -> list[bytes]:
    """Copies of the pictures as JPEGs with a shorter side of `side_px` pixels."""
    import PIL.Image

    copies = []
    for data in files:
        with PIL.Image.open(io.BytesIO(data)) as image:
            scale = side_px / min(image.size)
            small = image.convert("RGB").resize((round(image.width * scale), round(image.height * scale)))
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=90)
        copies.append(buffer.getvalue())
    return copies


def _empty(image: Encoded) -> Pixels:
    return np.empty((image.height, image.width, 3), np.uint8)


def in_threads(files: list[bytes], threads: int, rounds: int) -> dict[str, float]:
    """Images per second with each of several threads decoding a share of the files."""
    if threads == 1:
        return decode_speeds(files, rounds=rounds)
    with ThreadPoolExecutor(threads) as pool:
        shares = list(pool.map(lambda n: decode_speeds(files[n::threads], rounds=rounds), range(threads)))
    return {name: sum(share[name] for share in shares) for name in shares[0]}


def differences(folder: Path) -> dict[str, dict[str, float]]:
    """Grey levels of 255 by which windows of 224 pixels differ from Pillow's: over all images, and of the worst one."""
    dataset = ImageFolder(folder, Compose([RandomResizedCrop(224), PILToTensor()]))

    def windows(backend: str) -> torch.Tensor:
        return torch.cat([images for images, _ in DataLoader(dataset, 32, seed=1, backend=backend)]).float()

    reference = windows("pil")
    names = [name for name in available_backends() if name not in ("pil", "synthetic")]
    means = {name: (windows(name) - reference).abs().mean(dim=(1, 2, 3)) for name in names}
    return {
        name: {"mean": round(float(m.mean()), 4), "worst image": round(float(m.max()), 4)} for name, m in means.items()
    }


def measured(given: Namespace) -> dict[str, Any]:
    """Images per second of every backend, and how far their pixels are from Pillow's."""
    samples = ImageFolder(given.folder).samples
    step = max(1, len(samples) // given.images)
    files = [Path(path).read_bytes() for path, _ in samples[::step][: given.images]]
    by_size = {"original": files, **{f"{side} px": resized_copies(files, side) for side in SIDES_PX}}
    results: dict[str, Any] = {}
    for threads in (1, usable_cpus()):
        results[f"{threads} threads"] = {
            name: in_threads(group, threads, given.rounds) for name, group in by_size.items()
        }
    for label, sizes in results.items():
        for name, speeds in sizes.items():
            print(label, name, {backend: round(speed) for backend, speed in speeds.items()})
    results["difference from Pillow"] = differences(given.folder)
    print(results["difference from Pillow"])
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, folder="one folder of images per class", images=64, rounds=5)
