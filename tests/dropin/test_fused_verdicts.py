"""What a loader says of datasets of one's own: whether they gain, and why not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms as v1
from own_tables import MEAN, STD, TRAIN, VALIDATE, Table, batches, same
from torch.utils.data import default_collate
from torchvision.datasets import ImageFolder

import fastdata
from fastdata import DataLoader
from fastdata.dataloader import verdict


@pytest.fixture
def not_warned() -> Any:
    verdict._warned.cache_clear()
    yield
    verdict._warned.cache_clear()


class Arrays(Table):
    """Gives its transform something else than images."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.rand(3, 40, 40)), index


FLOATS = v1.Compose([v1.RandomResizedCrop(24), v1.Normalize(MEAN, STD)])


@pytest.mark.usefixtures("not_warned")
def test_a_loader_of_images_that_gains_nothing_says_so_once(table: Path) -> None:
    loader = DataLoader(Arrays(table, FLOATS), 2)
    expected = "Arrays is loaded at torch's speed: Arrays decodes its images itself"
    with pytest.warns(fastdata.NotAccelerated, match=expected):
        batches(loader)
    assert loader.verdict().kind == "not accelerated"
    assert loader.verdict().reason.startswith("Arrays decodes its images itself")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches(DataLoader(Arrays(table, FLOATS), 2))


def test_steps_of_a_transform_that_is_not_fused_as_a_whole(table: Path) -> None:
    steps = v1.Compose([lambda image: image.rotate(90), v1.RandomResizedCrop(20), v1.ToTensor()])
    loader = DataLoader(Table(table, steps), 2)
    batches(loader)
    said = loader.verdict()
    assert said.kind == "partly accelerated"
    assert "transform: 2 of 3 steps fused, per sample: <lambda>" in said.reason


@pytest.mark.usefixtures("not_warned")
def test_others_are_not_warned_of(table: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", fastdata.NotAccelerated)
        batches(DataLoader(Table(table, TRAIN), 2))
        batches(DataLoader(Table(table, lambda image: TRAIN(image)), 2))
        batches(DataLoader(torch.utils.data.TensorDataset(torch.rand(20, 3, 8, 8)), 2))
    assert verdict._warned() == []


def seeds(worker: int) -> None:
    """A worker_init_fn that could do anything."""


def pl_worker_init_function(worker: int, rank: int | None = None) -> None:
    """Stands where Lightning's would."""


pl_worker_init_function.__module__ = "lightning.fabric.utilities.seed"


def test_the_way_is_named(table: Path) -> None:
    folder = ImageFolder(table, TRAIN)
    seeded = DataLoader(folder, 2, num_workers=1, worker_init_fn=pl_worker_init_function)
    assert seeded._route().is_image_pipeline
    assert seeded.verdict().reason.startswith("images are decoded by the image pipeline")
    by_processes = DataLoader(folder, 2, num_workers=1, worker_init_fn=seeds)
    assert by_processes.verdict().kind == "not known before the first batches"
    assert by_processes._route().by_torchs_code
    assert same(batches(by_processes, 5), batches(DataLoader(folder, 2), 5))
    assert by_processes.verdict().kind == "accelerated"
    assert by_processes.verdict().reason.startswith("images are decoded by the native core")
    own = Table(table, v1.Compose([v1.RandomResizedCrop(24), v1.ElasticTransform(), v1.ToTensor()]))
    assert "2 of 3 steps fused, per sample: ElasticTransform" in DataLoader(own, 2, num_workers=2).verdict().reason


def test_default_collate_alone_stacks_pending_images(table: Path) -> None:
    samples = [Table(table, VALIDATE)[index] for index in range(3)]
    assert default_collate(samples)[0].shape == (3, 3, 24, 24)
