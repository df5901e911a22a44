"""`fastdata.check` and `fastdata check`: batches beside torch's, what differs named, nothing trained, nothing moved."""

from __future__ import annotations

import random
import textwrap
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from torch.utils.data import Dataset, IterableDataset
from torchvision.datasets import ImageFolder
from warm_python import run_python

import fastdata
from fastdata import DataLoader, OptionError
from fastdata.run.differences import difference
from fastdata.testing import synthetic_dataset

TRAIN = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()])
VALIDATION = v1.Compose([v1.Resize(36), v1.CenterCrop(32), v1.ToTensor()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("checked")
    return synthetic_dataset(where, classes=2, images_per_class=9, size_px=(400, 320))


class Rows(Dataset[Any]):
    """Samples of many kinds, made by a function."""

    def __init__(self, make: Callable[[int], Any], count: int = 10) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def kinds(index: int) -> Any:
    return {
        "text": f"row {index}",
        "number": index / 3,
        "array": np.arange(index, index + 3),
        "flags": [True, None == 1],
    }


def fails_at_three(index: int) -> int:
    if index == 3:
        raise KeyError("row 3 is missing")
    return index


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_loaders_are_told_so_and_nothing_has_moved(folder: Path, workers: int) -> None:
    generator = torch.Generator().manual_seed(5)
    before = torch.get_rng_state(), random.getstate(), generator.get_state()
    loader = DataLoader(ImageFolder(folder, TRAIN), 4, shuffle=True, num_workers=workers, generator=generator)
    told = str(fastdata.check(loader))
    assert told.startswith("equal: ImageFolder, 5 batches of 4, training draws included (draws='torch'; by itself")
    theirs = torch.utils.data.DataLoader(ImageFolder(folder, VALIDATION), 4, num_workers=workers)
    found = fastdata.check(theirs, batches=3)
    assert (str(found), found.equal) == ("equal: ImageFolder, 3 batches of 4", True)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert torch.equal(generator.get_state(), before[2])
    assert loader.stats()["batches"] == 0


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(7))


@pytest.mark.parametrize(
    "dataset",
    [Rows(kinds), Rows(fails_at_three), Rows(lambda index: torch.rand(2, 3)), Stream()],
    ids=["kinds", "an error", "draws", "a stream"],
)
def test_datasets_of_every_kind_and_their_errors_are_compared(dataset: Any) -> None:
    found = fastdata.check(DataLoader(dataset, 2))
    assert found.equal, found
    assert found.batches == (4 if isinstance(dataset, Stream) else 5)


def test_a_difference_is_named_by_batch_sample_and_reason(folder: Path) -> None:
    order = [3, 1, 4, 2, 5, 9, 6, 8]
    loader = DataLoader(ImageFolder(folder, VALIDATION), 4, sampler=order, fidelity="fast")
    found = fastdata.check(loader)
    assert not found.equal
    assert str(found).startswith("different: ImageFolder, batch 0[0], sample 0 (dataset[3]): ")
    assert "of 12288 values differ, by up to 0." in str(found)


class Counts(Dataset[int]):
    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return self.asked


def test_a_dataset_that_never_repeats_itself_cannot_be_compared() -> None:
    found = fastdata.check(DataLoader(Counts(), 2))
    assert not found.repeatable
    assert str(found).startswith(
        "cannot be compared: Counts: torch's own DataLoader gives other batches the second time"
    )


def test_large_batches_are_compared_as_far_as_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.run.check._MOST_BYTES", 5000)
    found = fastdata.check(DataLoader(Rows(lambda index: torch.zeros(500)), 2), batches=4)
    assert (found.equal, found.batches) == (True, 2), found


def test_samplers_are_copied_and_those_that_can_be_read_only_once_refused() -> None:
    class Counting(torch.utils.data.Sampler[int]):
        epoch = 0

        def __iter__(self) -> Any:
            self.epoch += 1
            return iter(range(10))

    sampler = Counting()
    assert fastdata.check(DataLoader(Rows(kinds), 2, sampler=sampler)).equal
    assert sampler.epoch == 0
    loader = DataLoader(Rows(kinds), 2, sampler=(index for index in range(10)))
    with pytest.raises(OptionError, match=r"sampler cannot be copied.*iterated more than once"):
        fastdata.check(loader)
    assert len(list(loader)) == 5


def test_labels_are_compared_whoever_draws(folder: Path) -> None:
    torchs = [torch.zeros(4, 3, 8, 8), torch.arange(4)]
    assert difference(torchs, [torch.ones(4, 3, 8, 8), torch.arange(4)], values=False) is None
    assert difference(torchs, [torch.ones(3, 3, 8, 8), torch.arange(3)], values=False) is not None
    found = difference(torchs, [torch.ones(4, 3, 8, 8), torch.arange(4) + 1], values=False)
    assert found is not None
    assert found.place == "[1]"


def test_our_own_datasets_are_compared_with_their_plain_samples(folder: Path) -> None:
    for dataset in (
        fastdata.ImageFolder(folder, TRAIN),
        torch.utils.data.Subset(fastdata.ImageFolder(folder, TRAIN), [3, 1]),
    ):
        found = fastdata.check(DataLoader(dataset, 2, shuffle=True))
        assert found.equal, found


def test_a_loader_without_batches_cannot_be_compared() -> None:
    assert str(fastdata.check(DataLoader(Rows(kinds, 0), 2))) == "cannot be compared: Rows: the loader gives no batch"


def test_what_is_no_loader_is_refused(folder: Path) -> None:
    with pytest.raises(OptionError, match="check compares a DataLoader, not list"):
        fastdata.check([1, 2])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="batches=0; use an integer of at least 1"):
        fastdata.check(DataLoader(Rows(kinds)), batches=0)


class Plain:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slots:
    __slots__ = ("image",)

    def __init__(self, image: torch.Tensor) -> None:
        self.image = image


def nested(value: int) -> Any:
    array = np.empty(2, object)
    array[:] = [np.full(3, value), "x"]
    return array


ONES = torch.ones(2, 3)
CHANGED = torch.tensor([[1.0, 1, 1], [1, 1, 3]])
PAIRS: dict[str, tuple[Any, Any, str | None]] = {
    "a type": (ONES, ONES.numpy(), "torch gives torch.Tensor, fastdata numpy.ndarray"),
    "a dtype": (ONES, ONES.int(), "dtype torch.float32 with torch, torch.int32 with fastdata"),
    "a shape": (ONES, ONES[:1], r"shape \(2, 3\) with torch, \(1, 3\) with fastdata"),
    "strides": (torch.ones(3, 3), torch.ones(3, 3).t(), r"strides \(3, 1\) with torch, \(1, 3\) with fastdata"),
    "a value": (ONES, CHANGED, "1 of 6 values differ, by up to 2"),
    "bfloat16": (ONES.bfloat16(), CHANGED.bfloat16(), "1 of 6 values differ, by up to 2"),
    "not a number": (torch.tensor([torch.nan]), torch.tensor([torch.nan]), None),
    "a key": ({"a": 1}, {"b": 1}, r"keys \['a'\] with torch, \['b'\] with fastdata"),
    "a length": ([1, 2], [1], "2 parts with torch, 1 with fastdata"),
    "a text": (["a", "b"], ["a", "c"], "'b' with torch, 'c' with fastdata"),
    "a mode": (Image.new("L", (2, 2)), Image.new("RGB", (2, 2)), r"L \(2, 2\) with torch, RGB \(2, 2\)"),
    "a pixel": (Image.new("L", (2, 2)), Image.new("L", (2, 2), 9), "4 of 4 values differ, by up to 9"),
    "words": (np.array(["a", None], object), np.array(["a", "b"], object), "torch gives NoneType, fastdata str"),
    "an error": (ValueError("no"), KeyError("no"), "torch raises ValueError: no, fastdata KeyError: 'no'"),
    "an error less": (ValueError("no"), ONES, "torch raises ValueError: no, fastdata gives a batch"),
    "an error more": (ONES, ValueError("no"), "torch gives a batch, fastdata raises ValueError: no"),
    "an attribute": (Plain(image=ONES), Plain(image=CHANGED), "1 of 6 values differ"),
    "slots": (Slots(ONES), Slots(CHANGED), "1 of 6 values differ"),
    "a deque": (deque([ONES]), deque([CHANGED]), "1 of 6 values differ"),
    "a NumPy number": (np.float32(1), np.float32(2), "1.0 with torch|np.float32"),
    "sparse": (ONES.to_sparse(), CHANGED.to_sparse(), "1 of 6 values differ"),
    "another message": (IndexError("row 3"), IndexError("row 9"), "torch raises IndexError: row 3, fastdata"),
    "arrays of arrays": (nested(1), nested(2), "3 of 3 values differ"),
    "a namespace with tensors": (SimpleNamespace(image=ONES), SimpleNamespace(image=CHANGED), "1 of 6 values differ"),
    "none": ({"a": [ONES, "x", None, 1.5]}, {"a": [ONES.clone(), "x", None, 1.5]}, None),
}


@pytest.mark.parametrize("name", PAIRS)
def test_differences_of_every_kind_are_seen(name: str) -> None:
    import re

    torchs, ours, told = PAIRS[name]
    found = difference(torchs, ours)
    assert (found is None) == (told is None), found
    if found is not None and told is not None:
        assert re.match(told, found.reason), found


CHECK = ["-m", "fastdata", "check"]
PROGRAM = """
    import sys, torch, torchvision.transforms as v1
    from pathlib import Path
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    train = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor()])
    validation = v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])
    loaders = [DataLoader(ImageFolder(sys.argv[1], each), 4, shuffle=True) for each in (train, validation)]
    if sys.argv[2] == "children":
        import subprocess
        sys.exit(subprocess.run([sys.executable, __file__, sys.argv[1], "train"]).returncode)
    if len(sys.argv) > 3:
        import fastdata
        loaders.append(fastdata.DataLoader(ImageFolder(sys.argv[1], validation), 4, fidelity="fast"))
    try:
        if sys.argv[2] != "nothing":
            for batch in loaders[0]:
                Path("trained").touch()
    finally:
        Path("ended").touch()
"""


@pytest.mark.parametrize(
    ("arguments", "status", "lines"),
    [
        (
            ["train"],
            0,
            ["equal: ImageFolder, 3 batches of 4, training draws included", "equal: ImageFolder, 3 batches"],
        ),
        (["train", "fast"], 1, ["equal: ", "equal: ", "different: ImageFolder, batch 0[0], sample 0 (dataset[0]): "]),
        (["nothing"], 2, []),
        (
            ["children"],
            0,
            ["equal: ImageFolder, 3 batches of 4, training draws included", "equal: ImageFolder, 3 batches"],
        ),
    ],
)
def test_a_programs_loaders_are_compared_and_it_does_not_train(
    folder: Path, tmp_path: Path, arguments: list[str], status: int, lines: list[str]
) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    done = run_python([*CHECK, "--batches", "3", "program.py", folder, *arguments], cwd=tmp_path, timeout=200)
    assert done.returncode == status, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == len(lines)
    for wanted in lines:
        assert any(line.startswith(f"fastdata: {wanted}") for line in told), told
    assert not (tmp_path / "trained").exists()
    assert (tmp_path / "ended").exists() == (arguments == ["nothing"])
    assert ("ended without reading from a DataLoader" in done.stderr) == (status == 2)


def test_the_command_says_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    for arguments, told in (
        ([], "name a SCRIPT, or a module with -m MODULE"),
        (["missing.py"], "can't open file 'missing.py'"),
        (["--batches", "0", "x.py"], "'0' is not a positive integer"),
    ):
        done = run_python([*CHECK, *arguments], cwd=tmp_path)
        assert done.returncode == 2
        assert told in done.stderr
