"""FASTDATA, FASTDATA_DEFER and FASTDATA_RUN: what they turn off, and how no is spelled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from PIL import Image
from torch.utils.data import Dataset, Subset
from torchvision.datasets import CIFAR10, ImageFolder

import fastdata
from fastdata import DataLoader, OptionError
from fastdata.cli.main import main
from fastdata.run.startup import SITE
from fastdata.testing import check_resume

TRANSFORM = v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()])
NO = ["0", "false", "off", "no", "False", "OFF", " no "]
SETTINGS = [("FASTDATA", "0"), ("FASTDATA_DEFER", "0"), ("defer", False)]


class Own(Dataset[Any]):
    """Opens the images of a folder, and keeps what it opened."""

    def __init__(self, folder: Path) -> None:
        self.samples, self.transform, self.types = ImageFolder(folder).samples, TRANSFORM, set[type]()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.samples[index][0])
        self.types.add(type(image))
        return self.transform(image.convert("RGB")), index


def cifar() -> CIFAR10:
    dataset = CIFAR10.__new__(CIFAR10)
    dataset.data = torch.randint(0, 256, (12, 32, 32, 3), dtype=torch.uint8).numpy()
    dataset.targets, dataset.transform, dataset.target_transform = list(range(12)), TRANSFORM, None
    return dataset


def datasets(folder: Path) -> list[Any]:
    whole = ImageFolder(folder, TRANSFORM)
    return [whole, Subset(whole, range(6)), Own(folder), cifar()]


@pytest.mark.parametrize(("name", "value"), SETTINGS, ids=["all", "defer everywhere", "defer"])
@pytest.mark.parametrize("workers", [0, 2])
def test_everything_is_left_to_torch_and_pillow(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, workers: int
) -> None:
    more = {name: value} if name == "defer" else {}
    for dataset in datasets(folder):
        with monkeypatch.context() as patched:
            if not more:
                patched.setenv(name, value)
            torch.manual_seed(5)
            theirs = list(torch.utils.data.DataLoader(dataset, 4, shuffle=True, num_workers=workers))
            torch.manual_seed(5)
            loader = DataLoader(dataset, 4, shuffle=True, num_workers=workers, **more)
            ours = list(loader)
            said = str(loader.verdict())
        for one, other in zip(theirs, ours, strict=True):
            assert all(map(torch.equal, one, other))
        assert said.startswith("not accelerated")
        assert "FASTDATA=0" in said
        if isinstance(dataset, Own) and not workers:
            assert {each.__module__ for each in dataset.types} == {"PIL.JpegImagePlugin"}


@pytest.mark.parametrize("spelled", NO)
@pytest.mark.parametrize("name", ["FASTDATA", "FASTDATA_DEFER"])
def test_no_is_spelled_in_the_usual_ways(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, spelled: str
) -> None:
    monkeypatch.setenv(name, spelled)
    assert str(DataLoader(ImageFolder(folder, TRANSFORM), 4).verdict()).startswith("not accelerated")


@pytest.mark.parametrize("spelled", ["1", "true", "on", "Yes", ""])
@pytest.mark.parametrize("name", ["FASTDATA", "FASTDATA_DEFER"])
def test_so_is_yes(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, spelled: str) -> None:
    monkeypatch.setenv(name, spelled)
    assert str(DataLoader(ImageFolder(folder, TRANSFORM), 4).verdict()).startswith("accelerated")


@pytest.mark.parametrize("name", ["FASTDATA", "FASTDATA_DEFER"])
def test_another_value_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(OptionError, match=f"{name}='maybe' is not accepted; use one of 1, true, on, yes, 0, false"):
        list(DataLoader(ImageFolder(folder, TRANSFORM), 4))


def test_a_state_is_kept_where_everything_is_left_to_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDATA", "0")
    for workers in (0, 2):
        check_resume(lambda w=workers: DataLoader(Own(folder), 16, shuffle=True, num_workers=w))


@pytest.mark.parametrize("name", ["FASTDATA", "FASTDATA_DEFER"])
def test_a_folder_of_ours_gives_torchs_loader_lists_that_pillow_decodes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    dataset = fastdata.ImageFolder(folder, TRANSFORM)
    torch.manual_seed(5)
    natively = dataset.__getitems__([0, 1])
    monkeypatch.setenv(name, "0")
    torch.manual_seed(5)
    by_pillow = dataset.__getitems__([0, 1])
    torch.manual_seed(5)
    assert all(torch.equal(image, dataset[index][0]) for index, (image, _) in enumerate(by_pillow))
    assert not torch.equal(natively[0][0], by_pillow[0][0])  # which has draws of its own


@pytest.mark.parametrize("command", [["bench"], ["demo"], ["check", "SCRIPT"]])
def test_nothing_compares_torch_with_itself(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    (tmp_path / "program.py").write_text("")
    monkeypatch.setenv("FASTDATA", "off")
    name, *script = command
    assert main([name, str(tmp_path / "program.py") if script else str(folder)]) in (1, 2)
    said = f"fastdata: fastdata {name} compares fastdata with torch, but FASTDATA=off leaves everything to torch; unset"
    assert said in capsys.readouterr().err
    with pytest.raises(OptionError, match="check compares fastdata with torch, but FASTDATA=off"):
        fastdata.check(DataLoader(ImageFolder(folder, TRANSFORM), 4))


def test_an_image_that_is_opened_is_pillows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDATA", "0")
    path = ImageFolder(folder).samples[0][0]
    with fastdata.open_image(path) as image:
        assert type(image).__module__ == "PIL.JpegImagePlugin"


PROGRAM = """
import subprocess, sys, torch.utils.data
print(torch.utils.data.DataLoader.__init__.__module__)
if sys.argv[1:]:
    subprocess.run([sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("value", ["0", "off"])
@pytest.mark.parametrize("name", ["FASTDATA", "FASTDATA_RUN"])
def test_run_replaces_nothing_where_it_is_off(tmp_path: Path, name: str, value: str) -> None:
    """Neither in the program nor in what it starts, also where another variable asks for it."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    known = {key: each for key, each in os.environ.items() if key not in ("FASTDATA_RUN", "PYTHONPATH")}
    path = os.pathsep.join(filter(None, [SITE, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "fastdata", "run", str(script), str(script)]
    environment = {**known, "FASTDATA_RUN": "1", "PYTHONPATH": path, name: value}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["torch.utils.data.dataloader"] * 2
    assert f"fastdata: {name}={value} is set, so torch's DataLoader is not replaced" in done.stderr
