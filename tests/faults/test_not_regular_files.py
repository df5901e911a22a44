"""A FIFO in the place of a file: reading it may never end, so it is refused by name; whoever hangs here is interrupted.

Each FIFO has a writer that writes nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import images
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, DatasetError, DecodeError, ShardDataset, ShardError
from fastdata.cli.main import main
from fastdata.errors import TrainError
from fastdata.jpeg_index.index_file import IndexFile
from fastdata.shards.verify import verify_folder
from fastdata.system.files import NotRegularFile, read_file
from fastdata.train.checkpoint_files import load_checkpoint

SMALL = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])
REFUSAL = "a FIFO, not a regular file"


@pytest.fixture(autouse=True)
def _interrupted() -> Iterator[None]:
    def end(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def put_fifo() -> Iterator[Callable[[Path], Path]]:
    """Puts a FIFO with a silent writer in the place of a file."""
    writers = []

    def put(path: Path) -> Path:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        writers.append(os.open(path, os.O_RDWR))
        return path

    yield put
    for number in writers:
        os.close(number)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", ["pil", "native", "opencv"])
def test_an_image(folder: Path, tmp_path: Path, backend: str, workers: int, put_fifo: Any) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    path = put_fifo(tmp_path / "copy" / "apple" / "05.jpg")
    iterator = iter(DataLoader(ImageFolder(tmp_path / "copy", SMALL), 4, num_workers=workers, backend=backend))
    next(iterator)
    with pytest.raises(DecodeError, match=REFUSAL) as caught:
        next(iterator)
    assert caught.value.index == 5
    assert isinstance(caught.value, NotRegularFile)
    assert str(path) in str(caught.value)
    assert len(list(iterator)) == 8


@pytest.mark.parametrize("name", ["shard-000001.tar", "shard-000001.idx", "manifest.json"])
def test_a_part_of_a_shard(own: Path, name: str, put_fifo: Any) -> None:
    path = put_fifo(own / name)
    with pytest.raises(ShardError, match=REFUSAL) as caught:
        ShardDataset(own, SMALL)
    assert caught.value.shard == str(path)


@pytest.mark.parametrize("backend", ["pil", "native"])
def test_a_shard_that_became_one(own: Path, backend: str, put_fifo: Any) -> None:
    dataset = ShardDataset(own, SMALL)
    put_fifo(own / "shard-000000.tar")
    with pytest.raises(DecodeError, match=REFUSAL):
        next(iter(DataLoader(dataset, 4, num_workers=0, backend=backend)))


@pytest.mark.parametrize("name", ["shard-000001.tar", "shard-000001.idx"])
def test_verify_lists_it(own: Path, name: str, put_fifo: Any) -> None:
    put_fifo(own / name)
    assert [REFUSAL in str(fault) for fault in verify_folder(own)] == [True]


def test_a_tar_file_that_is_converted(tmp_path: Path, put_fifo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = put_fifo(tmp_path / "a.tar")
    assert main(["convert", str(path), str(tmp_path / "out")]) != 0
    assert f"{path}: it is {REFUSAL}" in capsys.readouterr().err


def test_indexes_of_images(tmp_path: Path, put_fifo: Any) -> None:
    with pytest.raises(DatasetError, match="it is not a regular file"):
        IndexFile(put_fifo(tmp_path / "some.jpegindex"))


def test_a_checkpoint(tmp_path: Path, put_fifo: Any) -> None:
    with pytest.raises(TrainError, match=REFUSAL):
        load_checkpoint(put_fifo(tmp_path / "checkpoint.pt"))


def test_a_device_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(NotRegularFile, match="/dev/zero is a device, not a regular file"):
        read_file("/dev/zero")
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_file(tmp_path / "link") == b"data"


class OfPipes(torch.utils.data.Dataset[Any]):
    """Opens a FIFO by Pillow, as torch's loader would let it."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths, self.transform = paths, SMALL

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]).convert("RGB"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Pillow leaves the FIFO open
def test_an_image_that_the_datasets_own_code_opens_is_left_to_pillow(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jpg" for number in range(40)]
    for path in paths:
        os.mkfifo(path)

    def write() -> None:
        for number, path in enumerate(paths):
            path.write_bytes(images.jpeg(40, 30, seed=number))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    (batch,) = DataLoader(OfPipes(paths), 40, num_workers=0)
    writer.join(10)
    assert batch.shape == (40, 3, 16, 16)
