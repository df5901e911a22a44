"""Bad input: each gets its message, nothing is lost, neighbours are unharmed."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import images
import PIL
import pytest
import torch
import torchvision.transforms as v1
from folders import changed_copy, numbered
from torchvision.datasets import ImageFolder

import fastdata
from fastdata import DataLoader, DatasetError, DecodeError

SMALL = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
BAD = {"truncated": images.jpeg(90, 80)[:900], "empty": b"", "text": b"this is no image", "header": b"\xff\xd8\xff"}


@pytest.fixture(params=BAD)
def spoiled(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder whose sample 5 is bad."""
    return changed_copy(folder, tmp_path / "copy", {"apple/05.jpg": BAD[request.param]})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", ["pil", "native", "turbojpeg", "opencv", "dali"])
def test_raise_names_sample_file_backend_reason_and_remedy(spoiled: Path, backend: str, workers: int) -> None:
    loader = DataLoader(ImageFolder(spoiled, SMALL), 4, num_workers=workers, backend=backend)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(DecodeError) as caught:
        next(iterator)
    error = caught.value
    assert (error.index, error.backend) == (5, backend)
    assert error.location.endswith("apple/05.jpg")
    for words in ("sample 5", "apple/05.jpg", f"backend '{backend}'", error.reason, "on_error='skip'"):
        assert words in str(error)
    assert isinstance(error, OSError)
    assert error.__cause__ is not None
    assert len(list(iterator)) == 8  # whoever goes on gets the rest


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_makes_the_batch_smaller(spoiled: Path, workers: int) -> None:
    loader = DataLoader(numbered(ImageFolder(spoiled, SMALL)), 4, num_workers=workers, on_error="skip")
    labels = [batch[1].tolist() for batch in loader]
    assert labels[:2] == [[0, 1, 2, 3], [4, 6, 7]]
    assert sum(len(batch) for batch in labels) == 38
    stats = loader.stats()
    assert stats["failures"] == 1
    (index, location, _reason) = stats["quarantine"][0]
    assert (index, Path(location).name) == (5, "05.jpg")


def test_a_batch_with_nothing_left_is_left_out_and_counted(spoiled: Path) -> None:
    loader = DataLoader(numbered(ImageFolder(spoiled, SMALL)), 1, on_error="skip", num_workers=2)
    iterator = iter(loader)
    assert [next(iterator)[1].item() for _ in range(6)] == [0, 1, 2, 3, 4, 6]
    assert loader.state_dict()["delivered"] == 7


def test_replace_keeps_shape_and_is_the_same_in_every_run(spoiled: Path) -> None:
    runs = []
    for backend, workers in (("pil", 0), ("turbojpeg", 3), ("native", 0), ("native", 2)):
        options: dict[str, Any] = {"backend": backend, "num_workers": workers, "seed": 4}
        runs.append(list(DataLoader(numbered(ImageFolder(spoiled, SMALL)), 4, on_error="replace", **options)))
    assert [len(batch[1]) for batch in runs[0]] == [4] * 9 + [3]
    for batches in zip(*runs, strict=True):
        assert all(torch.equal(batch[0], batches[0][0]) for batch in batches)
        assert all(torch.equal(batch[1], batches[0][1]) for batch in batches)
    assert runs[0][1][1][1] != 5
    assert [label.item() for label in runs[0][1][1][[0, 2, 3]]] == [4, 6, 7]


def test_replace_gives_up_when_everything_is_bad(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"bad")
    with pytest.raises(DecodeError, match="not an image"):
        list(DataLoader(ImageFolder(tmp_path, SMALL), 2, on_error="replace"))


def test_a_file_that_vanished_is_reported_as_such(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    dataset = ImageFolder(tmp_path / "copy", SMALL)
    (tmp_path / "copy" / "bear" / "03.jpg").unlink()
    with pytest.raises(DecodeError, match=r"sample 16 .*bear/03\.jpg.*No such file"):
        list(DataLoader(dataset, 4, num_workers=2))


def test_a_bomb_does_not_reach_memory(tmp_path: Path) -> None:
    import struct

    data = bytearray(images.jpeg(40, 40))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65000, 65000)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "bomb.jpg").write_bytes(data)
    with pytest.raises(DecodeError, match=r"65000 × 65000 pixels exceed the limit of 178956970.*MAX_IMAGE_PIXELS"):
        next(iter(DataLoader(ImageFolder(tmp_path, SMALL))))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_users_own_mistake_keeps_its_type(folder: Path, workers: int) -> None:
    def broken(image: Any) -> Any:
        raise LookupError("mine")

    for on_error in ("raise", "skip"):
        dataset = ImageFolder(folder, v1.Compose([v1.Resize((8, 8)), broken]))
        with pytest.raises(LookupError, match="mine"):
            next(iter(DataLoader(dataset, num_workers=workers, on_error=on_error)))


def test_too_large_a_random_crop_is_torchvisions_error(folder: Path) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.RandomCrop(500), v1.ToTensor()]))
    with pytest.raises(ValueError, match=r"sample 0 .*00\.jpg.*Required crop size \(500, 500\) is larger than input"):
        next(iter(DataLoader(dataset)))


@pytest.mark.parametrize("backend", ["native", "pil"])
def test_an_image_smaller_than_the_crop_is_one_bad_sample(folder: Path, tmp_path: Path, backend: str) -> None:
    small = changed_copy(folder, tmp_path / "copy", {"apple/05.jpg": images.jpeg(20, 20)})
    dataset = ImageFolder(small, v1.Compose([v1.RandomCrop(40), v1.ToTensor()]))
    loader = DataLoader(dataset, 4, num_workers=2, backend=backend, on_error="skip")
    assert sum(len(labels) for _, labels in loader) == 38
    assert loader.stats()["quarantine"][0][0] == 5


def test_a_damaged_header_of_another_format_is_one_bad_sample(folder: Path, tmp_path: Path) -> None:
    damaged = changed_copy(folder, tmp_path / "copy", {"apple/05.jpg": b"P6\n12"})  # Pillow raises a ValueError for it
    loader = DataLoader(ImageFolder(damaged, SMALL), 4, num_workers=2, on_error="skip")
    assert sum(len(labels) for _, labels in loader) == 38


@pytest.mark.parametrize("backend", ["native", "pil"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, backend: str) -> None:
    (tmp_path / "cats").mkdir()
    dataset = fastdata.ImageFolder(tmp_path, SMALL, allow_empty=True)
    dataset.samples.append((_pipe(tmp_path), 0))
    loader = DataLoader(dataset, num_workers=1, backend=backend, on_error="skip", timeout=100)
    with pytest.raises(DatasetError, match=r"all 1 samples .*pipe\.jpg"):
        list(loader)
    assert loader.stats()["failures"] == 1


def _pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe.jpg")
    return str(folder / "pipe.jpg")


def test_missing_empty_and_imageless_folders(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"no such folder: {tmp_path}/none"):
        fastdata.ImageFolder(tmp_path / "none")
    with pytest.raises(DatasetError, match="no class folders"):
        fastdata.ImageFolder(tmp_path)
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    with pytest.raises(DatasetError, match=r"no images for 1 of 1 classes.*cats.*accepted: \.jpg \.jpeg"):
        fastdata.ImageFolder(tmp_path)
    assert len(fastdata.ImageFolder(tmp_path, allow_empty=True)) == 0
    with pytest.raises(FileNotFoundError):
        fastdata.ImageFolder(tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", ["native", "pil", "dali"])
def test_the_error_that_torchvision_would_have_raised_is_caught(folder: Path, backend: str, workers: int) -> None:
    dataset = ImageFolder(folder, SMALL)
    dataset.samples = [*dataset.samples[:4], (str(folder / "gone.jpg"), 0), (__file__, 1)]
    iterator = iter(DataLoader(dataset, 1, num_workers=workers, backend=backend))
    assert [len(next(iterator)[1]) for _ in range(4)] == [1] * 4
    with pytest.raises(FileNotFoundError, match=r"sample 4 .*gone\.jpg") as gone:
        next(iterator)
    assert (gone.value.errno, Path(gone.value.filename).name) == (errno.ENOENT, "gone.jpg")
    with pytest.raises(PIL.UnidentifiedImageError, match="sample 5 "):
        next(iterator)
    copy = pickle.loads(pickle.dumps(gone.value))
    assert isinstance(copy, FileNotFoundError)
    assert isinstance(copy, DecodeError)
    assert (str(copy), copy.errno, copy.index) == (str(gone.value), errno.ENOENT, 4)


def test_a_reason_that_ends_with_a_full_stop_gets_no_second_one() -> None:
    error = DecodeError(index=3, location="a.jpg", backend="pil", reason="It is too large.")
    assert "'pil': It is too large. Repair" in str(error)


def test_errors_survive_pickling() -> None:
    error = DecodeError(index=3, location="a.jpg", backend="pil", reason="cut short")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.index, copy.reason) == (str(error), 3, "cut short")
