"""A cache folder that is no longer reached, or has no room: one warning, and the epochs of a loader without cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from images import jpeg
from small_disks import small_disk
from torchvision import transforms as v1

from fastdata import DataLoader, ImageFolder

TO_TENSOR = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])

# An ordinary user, whose rights to the folder above are gone from the fourth epoch on.
PROGRAM = """
import os, sys, warnings
import psutil  # before another user runs, who may not read the packages
from torchvision import transforms as v1
from fastdata import DataLoader, ImageFolder
images, above, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
if os.getuid() == 0:
    os.setegid(65534); os.seteuid(65534)
warnings.simplefilter("always")
to_tensor = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])
loader = DataLoader(ImageFolder(images, to_tensor), 4, num_workers=workers, cache=above + "/cache")
for epoch in range(6):
    if epoch == 3:
        own = os.geteuid()
        os.seteuid(os.getuid()); os.chmod(above, 0); os.seteuid(own)
    print(sum(float(batch.double().sum()) for batch, _ in loader), flush=True)
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number in range(12):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(60 + number, 50, seed=number))
    return tmp_path / "images"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_that_cannot_be_reached_any_more_ends_no_training(images: Path, workers: int) -> None:
    with tempfile.TemporaryDirectory() as top:  # other users cannot reach pytest's folders
        place, mount = Path(top) / "images", Path(top) / "mount"
        shutil.copytree(images, place)
        mount.mkdir()
        for folder in [Path(top), place, *place.iterdir()]:
            folder.chmod(0o755)
        mount.chmod(0o777)
        command = [sys.executable, "-c", PROGRAM, str(place), str(mount), str(workers)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 1  # six epochs of the same pixels
    assert "Permission denied" in done.stderr
    assert mount.name in done.stderr


def test_a_folder_that_can_never_be_written_is_said_once(images: Path, tmp_path: Path) -> None:
    """What makes the folder unusable is a file in the place of one above it."""
    plain = [batch for batch, _ in DataLoader(ImageFolder(images, TO_TENSOR), 4)]
    loader = DataLoader(ImageFolder(images, TO_TENSOR), 4, cache=tmp_path / "above" / "cache")
    (tmp_path / "above" / "cache").rmdir()
    (tmp_path / "above").rmdir()
    (tmp_path / "above").write_bytes(b"")
    for _ in range(2):
        with pytest.warns(UserWarning, match="the cache in .*above.* keeps no more"):
            assert all(map(torch.equal, plain, [batch for batch, _ in loader]))


def test_a_disk_without_room_for_one_chunk_is_told(images: Path, tmp_path: Path) -> None:
    plain = [batch for batch, _ in DataLoader(ImageFolder(images, TO_TENSOR), 4)]
    with small_disk(disk := tmp_path / "disk", "20m"):
        loader = DataLoader(ImageFolder(images, TO_TENSOR), 4, cache=disk / "cache")
        with pytest.warns(UserWarning, match=r"keeps nothing: it may take half of what is free, 10\.\d MB, but needs"):
            assert all(map(torch.equal, plain, [batch for batch, _ in loader]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert all(map(torch.equal, plain, [batch for batch, _ in loader]))  # not again
