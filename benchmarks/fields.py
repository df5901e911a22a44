"""Samples with several fields: from files beside each other, from shards, and from the same tar files by WebDataset.

Setup: each photograph has a caption and a mask of its size; random crops of 224 pixels, flips and normalising (of image
and mask 256 pixels, by torchvision's v2), to batches of float32 with a list of captions, or with masks.  "files" is a
dataset of one's own that opens the image with Pillow and reads the file beside it, "shards" a ShardDataset with fields,
each by torch's loader and by fastdata's.  WebDataset is its documented pipeline over the same tar files.  Batches of
64, two worker processes or threads; CPU time of the whole process tree; loaders stay open.

    python benchmarks/fields.py FOLDER
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data
import webdataset
from harness import benchmark
from PIL import Image, ImageDraw
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastdata
from fastdata.measuring.rounds import compare

RESULT = Path(__file__).parent / "results" / "fields.json"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WORKERS, BATCH = 2, 64
OTHER = {"captions": "txt", "masks": "mask.png"}


def write_files(photographs: list[Path], count: int, folder: Path) -> None:
    """Copies photographs, and writes a caption and a mask beside each."""
    folder.mkdir()
    for number in range(count):
        path = photographs[number % len(photographs)]
        shutil.copyfile(path, folder / f"{number:05}.jpg")
        (folder / f"{number:05}.txt").write_text(f"photograph {number} of {path.parent.name}")
        with Image.open(path) as image:
            mask = Image.new("L", image.size, 0)
        ImageDraw.Draw(mask).ellipse(
            [side * share // 4 for share in (1, 3) for side in mask.size], fill=1 + number % 20
        )
        mask.save(folder / f"{number:05}.mask.png")


class OneView:
    """The image's view; the caption as it is."""

    def __init__(self) -> None:
        steps = [
            v2.RandomResizedCrop(224),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
        self.steps = v2.Compose([*steps, v2.Normalize(MEAN, STD)])

    def __call__(self, image: Any, caption: str) -> tuple[Any, str]:
        """Both."""
        return self.steps(image), caption


class Joint:
    """The same view of image and mask."""

    def __init__(self) -> None:
        kinds = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
        steps = [v2.ToImage(), v2.RandomResizedCrop(256), v2.RandomHorizontalFlip(), v2.ToDtype(kinds, scale=True)]
        self.steps = v2.Compose([*steps, v2.Normalize(MEAN, STD)])

    def __call__(self, image: Any, mask: Any) -> tuple[Any, Any]:
        """Both."""
        return self.steps(image, tv_tensors.Mask(v2.functional.pil_to_tensor(mask)))


class Files(torch.utils.data.Dataset[Any]):
    """Images with a file beside each."""

    def __init__(self, folder: Path, kind: str, view: Any) -> None:
        self.paths, self.kind, self.view = sorted(map(str, folder.glob("*.jpg"))), kind, view

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = Path(self.paths[index])
        beside = path.with_suffix(f".{OTHER[self.kind]}")
        other = beside.read_text() if self.kind == "captions" else Image.open(beside)
        return self.view(Image.open(path).convert("RGB"), other)


def by_webdataset(folder: Path, kind: str, view: Any) -> Any:
    """WebDataset's pipeline: decoded, transformed and batched in the workers."""
    tars = sorted(map(str, folder.glob("*.tar")))
    pairs = webdataset.WebDataset(tars, shardshuffle=False).decode("pil").to_tuple("jpg", OTHER[kind])
    made = pairs.map(lambda pair: view(pair[0], pair[1] if kind == "captions" else Image.fromarray(_levels(pair[1]))))
    batches = made.batched(BATCH, collation_fn=torch.utils.data.default_collate)
    return webdataset.WebLoader(batches, batch_size=None, num_workers=WORKERS)


def _levels(mask: Any) -> np.ndarray:
    """The mask as WebDataset decodes it, in RGB, with one channel."""
    return np.asarray(mask)[..., 0] if np.asarray(mask).ndim == 3 else np.asarray(mask)


def loaders(files: Path, shards: Path, kind: str, view: Any) -> dict[str, Any]:
    """The contenders."""
    dataset = Files(files, kind, view)
    sharded = fastdata.ShardDataset(shards, fields=("image", OTHER[kind]), transforms=view)
    return {
        "files, torch": torch.utils.data.DataLoader(dataset, BATCH, num_workers=WORKERS),
        "files, fastdata": fastdata.DataLoader(dataset, BATCH, num_workers=WORKERS),
        "WebDataset": by_webdataset(shards, kind, view),
        "shards, torch": torch.utils.data.DataLoader(sharded, BATCH, num_workers=WORKERS),
        "shards, fastdata": fastdata.DataLoader(sharded, BATCH, num_workers=WORKERS),
    }


def measured(given: Namespace) -> dict[str, Any]:
    """Every way to read captions, and masks."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    photographs = sorted(path for path in given.folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        files, shards = Path(scratch, "files"), Path(scratch, "shards")
        write_files(photographs, given.images, files)
        with fastdata.ShardWriter(shards, shard_bytes=16 << 20) as writer:
            for path in sorted(files.glob("*.jpg")):
                others = {name: path.with_suffix(f".{name}") for name in OTHER.values()}
                writer.write({"__key__": path.stem, "jpg": path, **others})
        for kind, view in (("captions", OneView()), ("masks", Joint())):
            made = loaders(files, shards, kind, view)
            epochs = {name: partial(iter, loader) for name, loader in made.items()}
            results[kind] = compare(epochs, "files, torch", images=given.images, rounds=given.rounds)
            results[kind]["verdicts"] = {
                name: str(made[name].verdict()) for name in ("files, fastdata", "shards, fastdata")
            }
            print(results[kind]["verdicts"], flush=True)
    return {"works": results, "versions": {"webdataset": webdataset.__version__}}


if __name__ == "__main__":
    benchmark(__file__, measured, folder="folder of photographs", images=512, rounds=5)
