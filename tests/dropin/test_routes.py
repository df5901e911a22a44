"""Which way the batches go, and the reason for it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from taken_over import decodes_natively, per_sample
from torch.utils.data import ConcatDataset
from torchvision.datasets import DatasetFolder, ImageFolder

import fastdata
from fastdata import DataLoader

SMALL = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])


class Overridden(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image * 0, label


class OwnOverridden(fastdata.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image * 0, label


class OwnResize(v1.Resize):
    def forward(self, image: Any) -> Any:
        return super().forward(image).rotate(90)


def doing_nothing(worker: int) -> None:
    pass


def opening(path: str) -> Any:
    return fastdata.image_folder.pil_loader(path).rotate(90)


DECLINED = {
    "no transform": (lambda root: ImageFolder(root), {}, "no transform"),
    "lambda first": (lambda root: ImageFolder(root, v1.Lambda(v1.ToTensor())), {}, "Lambda is called per sample"),
    "overridden": (lambda root: Overridden(root, SMALL), {}, "Overridden is not an image dataset"),
    "own overridden": (lambda root: OwnOverridden(root, SMALL), {}, "__getitem__ of its own"),
    "own loader": (lambda root: ImageFolder(root, SMALL, loader=opening), {}, "loader 'opening'"),
    "own loader, own folder": (lambda root: fastdata.ImageFolder(root, SMALL, loader=opening), {}, "loader 'opening'"),
    "subclassed transform": (lambda root: ImageFolder(root, OwnResize((8, 8))), {}, "cannot fuse it"),
    "parts differ": (
        lambda root: ConcatDataset([ImageFolder(root, SMALL), ImageFolder(root, v1.ToTensor())]),
        {},
        "different transforms",
    ),
    "unbatched": (lambda root: ImageFolder(root, SMALL), {"batch_size": None}, "batch_size=None"),
    "worker_init_fn": (
        lambda root: ImageFolder(root, SMALL),
        {"worker_init_fn": doing_nothing, "num_workers": 1},
        "worker_init_fn runs in worker processes",
    ),
    "context": (
        lambda root: ImageFolder(root, SMALL),
        {"multiprocessing_context": "fork", "num_workers": 1},
        "multiprocessing_context asks",
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_does_not_fit_goes_through_torch_and_says_why(folder: Path, name: str) -> None:
    make, options, reason = DECLINED[name]
    loader = DataLoader(make(folder), **options)
    assert loader._route().by_torchs_code
    assert reason in loader._route().reason


@pytest.mark.parametrize("name", ["overridden", "own overridden", "own loader", "subclassed transform"])
def test_declined_datasets_give_their_own_samples(folder: Path, name: str) -> None:
    dataset = DECLINED[name][0](folder)
    if name == "subclassed transform":
        dataset.transform = v1.Compose([dataset.transform, v1.ToTensor()])
    ours, torchs = (next(iter(cls(dataset, 4)))[0] for cls in (DataLoader, torch.utils.data.DataLoader))
    assert torch.equal(ours, torchs)


def test_dataset_folder_with_default_loader_is_recognised(folder: Path) -> None:
    from torchvision.datasets.folder import default_loader

    dataset = DatasetFolder(folder, default_loader, extensions=(".jpg",), transform=SMALL)
    loader = DataLoader(dataset, 4)
    assert loader._route().is_image_pipeline
    assert torch.equal(next(iter(loader))[0], next(iter(torch.utils.data.DataLoader(dataset, 4)))[0])


def test_the_route_names_what_is_fused_and_what_is_not(folder: Path) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(32), v1.ElasticTransform(), v1.ToTensor()])
    loader = DataLoader(ImageFolder(folder, transform), 4, num_workers=2)
    assert "ElasticTransform is called per sample: fastdata cannot fuse it" in loader._route().reason
    assert per_sample(loader) == ["ElasticTransform", "ToTensor"]
    next(iter(loader))
    assert loader.verdict().kind == "partly accelerated"
    assert decodes_natively(loader)


def test_a_backend_without_effect_warns_once() -> None:
    loader = DataLoader([1, 2], backend="pil")
    with pytest.warns(UserWarning, match="backend='pil' has no effect"):
        list(loader)
    list(loader)


def test_source_protocol_goes_through_the_pipeline(folder: Path) -> None:
    files = sorted(folder.glob("*/*.jpg"))

    class Source(torch.utils.data.Dataset[Any]):
        transform = SMALL

        def __len__(self) -> int:
            return len(files)

        def read_encoded(self, index: int) -> bytes:
            return files[index].read_bytes()

        def read_target(self, index: int) -> Any:
            return files[index].parent.name

    loader = DataLoader(Source(), 4, num_workers=2)
    images, names = next(iter(loader))
    assert loader._route().is_image_pipeline
    assert names == ("apple",) * 4
    assert torch.equal(images[1], SMALL(fastdata.image_folder.pil_loader(str(files[1]))))


def test_every_argument_is_kept_as_an_attribute(folder: Path) -> None:
    parameters = [name for name in inspect.signature(DataLoader.__init__).parameters if name not in ("self", "shuffle")]
    loader = DataLoader(ImageFolder(folder, SMALL), 4)
    assert [name for name in parameters if not hasattr(loader, name)] == []
    again = {
        name: getattr(loader, name) for name in parameters if name not in ("batch_sampler", "multiprocessing_context")
    }
    copy = DataLoader(**again)
    assert torch.equal(next(iter(copy))[0], next(iter(loader))[0])


def test_arguments_of_torch_come_first_and_in_torchs_order() -> None:
    torchs = list(inspect.signature(torch.utils.data.DataLoader.__init__).parameters.values())
    ours = list(inspect.signature(DataLoader.__init__).parameters.values())
    assert [(p.name, p.kind) for p in ours[: len(torchs)]] == [(p.name, p.kind) for p in torchs]
    assert {p.name: p.default for p in ours[: len(torchs)]} == {p.name: p.default for p in torchs}


def test_num_workers_auto_counts_usable_cpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdata.system.cpus import usable_cpus

    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert DataLoader([1], num_workers="auto").num_workers == usable_cpus()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert DataLoader([1], num_workers="auto").num_workers == 1


@pytest.mark.parametrize(("quota", "cpus"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1)])
def test_cgroup_quota_is_respected(tmp_path: Path, quota: str, cpus: int | None) -> None:
    import os

    from fastdata.system.cpus import usable_cpus

    (tmp_path / "cpu.max").write_text(quota + "\n")
    affinity = len(os.sched_getaffinity(0))
    assert usable_cpus(tmp_path) == (affinity if cpus is None else min(cpus, affinity))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "pillow"}, "backend='pillow' is unknown; known: auto, pil"),
        ({"fidelity": "exactly"}, "fidelity='exactly' is not accepted; use one of 'exact', 'fast'"),
        ({"on_error": "ignore"}, "on_error='ignore' is not accepted; use one of 'raise', 'skip', 'replace'"),
        ({"num_workers": "all"}, "num_workers='all'; accepted: an integer or 'auto'"),
        ({"seed": 1.5}, "seed=1.5 is not an integer"),
        ({"device": "gpu"}, "device='gpu' is not a valid device"),
        ({"memory_format": torch.preserve_format}, "memory_format="),
    ],
    ids=str,
)
def test_bad_extras_name_the_accepted_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fastdata.OptionError) as error:
        DataLoader([1, 2], **options)
    assert message in str(error.value)


def test_a_loader_prints_what_it_will_do(folder: Path) -> None:
    dataset = fastdata.ImageFolder(folder, SMALL)
    assert repr(DataLoader(dataset, 8, num_workers=2, backend="pil")) == (
        "DataLoader(ImageFolder, batch_size=8; image pipeline, num_workers=2 (threads), backend='pil')"
    )
    assert repr(DataLoader([1, 2], 2)) == (
        "DataLoader(list, batch_size=2; torch's own path (list is not an image dataset that fastdata recognises), "
        "num_workers=0 (processes))"
    )
