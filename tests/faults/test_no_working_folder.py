"""A process whose working folder has been removed, as that of a finished job: absolute paths go on working."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, tempfile
import torch
from PIL import Image
from torchvision import datasets, transforms
import fastdata

folder, workers, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
crop = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])

class Own(torch.utils.data.Dataset):
    samples = datasets.ImageFolder(folder).samples
    def __len__(self): return 8
    def __getitem__(self, index): return crop(Image.open(self.samples[index][0]).convert("RGB")), index

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(Own()[index] for index in range(8))

def leave():
    os.chdir(gone)
    os.rmdir(gone)

gone = tempfile.mkdtemp()
if when == "before": leave()
made = [datasets.ImageFolder(folder, crop), fastdata.ImageFolder(folder, crop), Own(), Stream()]
classes = torch.utils.data.DataLoader, fastdata.DataLoader
loaders = [cls(data, 4, num_workers=workers) for data in made for cls in classes]
more = {"num_workers": workers, "persistent_workers": workers > 0, "cache": folder + "-cache"}
loaders.append(fastdata.DataLoader(made[0], 4, **more))
if when == "after": leave()
for loader in loaders:
    for _ in range(2): print(len(list(loader)), end=" ")
    if isinstance(loader, fastdata.DataLoader): str(loader.verdict()), loader.explain(), repr(loader)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_of_all_kinds_go_on(folder: Path, tmp_path: Path, workers: int, when: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), str(workers), when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = list(map(int, done.stdout.split()))
    assert counts[0:2] == counts[2:4] == counts[4:6] == counts[6:8] == counts[16:18]
    assert counts[8:16] == [2] * 8 if not workers else counts[8:12] == [2] * 4
