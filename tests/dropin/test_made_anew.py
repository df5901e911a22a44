"""Loaders that frameworks make anew: by ignite's, Lightning's and accelerate's rules from what a loader shows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from torch.utils.data import BatchSampler, SequentialSampler
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.dataloader.loader import StatelessDataLoader
from fastdata.loaders.dali_options import DaliOptions

CROP = v1.Compose([v1.CenterCrop(16), v1.PILToTensor()])

# Every argument of ours once, with a value that is not the default.
CHOICES: dict[str, dict[str, Any]] = {
    "none": {},
    "backend": {"backend": "pil", "fidelity": "fast"},
    "device": {"device": "cpu", "memory_format": torch.channels_last},
    "seed": {"seed": 3, "on_error": "skip"},
    "augment_on": {"augment_on": "device"},
    "draws": {"draws": "torch"},
    "defer": {"defer": False, "progress": True},
    "dali": {"decode_device": "cpu", "dali": DaliOptions(prefetch=3)},
    "cache": {"cache": "ram", "cache_bytes": 1 << 26},
    "workers": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
    "auto": {"num_workers": "auto"},
}


def ignites(loader: Any, sampler: Any) -> Any:
    """`update_dataloader` of ignite.engine.deterministic, in its own words."""
    names = [name for name in vars(loader) if not name.startswith("_")]
    names = [
        name for name in names if name not in ("batch_size", "sampler", "drop_last", "batch_sampler", "dataset_kind")
    ]
    return type(loader)(**{name: getattr(loader, name) for name in names}, batch_sampler=sampler)


def lightnings(loader: Any, sampler: Any) -> Any:
    data = pytest.importorskip("lightning.fabric.utilities.data")
    return data._update_dataloader(loader, SequentialSampler(loader.dataset))


def accelerates(loader: Any, sampler: Any) -> Any:
    accelerate = pytest.importorskip("accelerate.data_loader")
    return accelerate.prepare_data_loader(loader, num_processes=1, process_index=0, put_on_device=False)


RULES: dict[str, Callable[[Any, Any], Any]] = {
    "ignite": ignites,
    "Lightning": lightnings,
    "accelerate": accelerates,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("choice", CHOICES)
def test_a_loader_is_made_anew_with_all_its_choices(folder: Path, choice: str, rule: str) -> None:
    if rule == "accelerate":
        pytest.importorskip("accelerate.data_loader")  # as programs do, before they make a loader
    loader = DataLoader(ImageFolder(folder, CROP), 4, **CHOICES[choice])
    sampler = BatchSampler(SequentialSampler(loader.dataset), 4, False)
    anew = RULES[rule](loader, sampler)
    for name, value in CHOICES[choice].items():
        own = getattr(anew, "base_dataloader", anew)  # accelerate's own has a `device`, too
        assert getattr(own, name) == (loader.num_workers if value == "auto" else value)
    for batch, expected in zip(anew, loader, strict=True):
        assert all(map(torch.equal, batch, expected))


@pytest.mark.parametrize("cls", [DataLoader, StatelessDataLoader])
def test_what_a_loader_shows_are_its_arguments(folder: Path, cls: Any) -> None:
    """As torch's class shows `dataset_kind`-like names by underscores only; also after it has been used."""
    arguments = {*inspect.signature(cls.__init__).parameters}
    for choice in CHOICES.values():
        loader = cls(ImageFolder(folder, CROP), 4, **choice)
        list(loader), loader.explain(), loader.stats(), str(loader.verdict())
        assert {name for name in vars(loader) if not name.startswith("_")} <= arguments
