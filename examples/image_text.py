"""Images and texts from shards, trained as CLIP is: each image finds its own caption among those of the batch.

    python examples/image_text.py

Draws images with captions, writes them to shards, mixes two sources by weight, and trains two small encoders.  Prints
per epoch how often an image finds a caption of its colour, and the loader's verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SCRATCH, as_jpeg
from torch import nn
from torchvision import transforms

from fastdata import DataLoader, EpochSampler, MixedDataset, ShardDataset, ShardWriter
from fastdata.train import Task, TrainOptions, fit

COLOURS = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200), "grey": (110,) * 3, "white": (200,) * 3}
WORDS = {word: number for number, word in enumerate([*COLOURS, "a", "photo", "drawing", "of", "something"])}


def write_shards(folder: Path, kind: str, count: int) -> Path:
    """Images in the colours, with captions."""
    rng = np.random.default_rng(len(kind))
    with ShardWriter(folder / kind) as writer:
        for number in range(count):
            name = list(COLOURS)[number % len(COLOURS)]
            pixels = (rng.integers(0, 50, (64, 64, 3)) + np.array(COLOURS[name])).astype(np.uint8)
            writer.write({"__key__": f"{number:03}", "jpg": as_jpeg(pixels), "txt": f"a {kind} of something {name}"})
    return folder / kind


class Encoders(nn.Module):
    """One encoder for images, one for the words of a text; both give vectors of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.ReLU(), nn.AvgPool2d(6), nn.Flatten(), nn.Linear(16, 8))
        self.words = nn.EmbeddingBag(len(WORDS), 8)

    def forward(self, batch: Any) -> torch.Tensor:
        """Similarity of each image with each text: (N, N)."""
        texts = torch.tensor([[WORDS[word] for word in text.split()] for text in batch[1]])
        ours, theirs = self.images(batch[0]), self.words(texts)
        return 10 * nn.functional.normalize(ours) @ nn.functional.normalize(theirs).T


def loss(model: Any, batch: Any) -> torch.Tensor:
    """Cross entropy in both directions (Radford et al., "Learning transferable visual models", 2021)."""
    similar, own = model(batch), torch.arange(len(batch[1]))
    return (nn.functional.cross_entropy(similar, own) + nn.functional.cross_entropy(similar.T, own)) / 2


def metrics(model: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Whether the nearest caption names the colour of the image."""
    colours = [text.split()[-1] for text in batch[1]]
    nearest = [colours[at] for at in model(batch).argmax(1).tolist()]
    return {"right": torch.tensor([one == other for one, other in zip(nearest, colours, strict=True)])}


def main() -> None:
    """Trains for six epochs."""
    torch.manual_seed(0)  # of the first weights
    steps = transforms.Compose([transforms.RandomResizedCrop(48), transforms.ToTensor()])
    made = [write_shards(Path(SCRATCH.name), kind, count) for kind, count in (("photo", 60), ("drawing", 20))]
    mixed = MixedDataset([(ShardDataset(each, steps, fields=("image", "txt")), 0.5) for each in made])
    loader = DataLoader(mixed, batch_size=16, sampler=EpochSampler(mixed), num_workers=2)
    options = TrainOptions(epochs=6, batch_size=16, opt="adamw", lr=0.02, device="cpu")
    fit(Encoders(), loader, loader, options, task=Task(loss=loss, metrics=metrics))
    print(loader.verdict())  # known once there were batches


if __name__ == "__main__":
    main()
