"""Datasets of one's own in hard use: kept samples, changed transforms, odd files, inner loaders, late imports."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from own_tables import TRAIN, VALIDATE, Table, batches, same
from PIL import Image
from taken_over import decodes_natively, per_sample
from torch.utils.data import Dataset, Subset, get_worker_info
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder

from fastdata import DataLoader

linux = pytest.mark.skipif(sys.platform != "linux", reason="has no /dev/fd for this")


class Closing(Table):
    """Holds something that is closed when the dataset goes."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder, transform)
        self.file = (folder / "labels.csv").open()
        self.get = self.take
        self.calls = 0

    def __del__(self) -> None:
        self.file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "file": None}

    def take(self, index: int) -> Any:
        self.calls += 1
        self.file.seek(0)
        return super().__getitem__(index)[0], self.calls

    def __getitem__(self, index: int) -> Any:
        return self.get(index)


def seeds(worker: int) -> None:
    """A worker_init_fn that could do anything."""


@pytest.mark.parametrize("workers", [0, 1])
def test_datasets_are_not_copied(table: Path, workers: int) -> None:
    dataset = Closing(table, VALIDATE)
    for _ in range(2):
        loader = DataLoader(dataset, 4, num_workers=workers)
        calls = [call for _, calls in loader for call in calls.tolist()]
        assert calls == list(range(calls[0], calls[0] + 14))
        assert loader.verdict().kind == "accelerated"
        assert not dataset.file.closed
    del loader
    assert dataset.calls == (0 if workers else 28)


class Changing(Table):
    """Changes what it does in the middle of an epoch."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            self.transform.transforms[0] = v1.Resize((24, 24))  # type: ignore[attr-defined]
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_transforms_that_change_are_heeded(table: Path, workers: int) -> None:
    made = [
        kind(
            Changing(table, v1.Compose([v1.Resize((30, 30)), v1.CenterCrop(24), v1.ToTensor()])), 1, num_workers=workers
        )
        for kind in (DataLoader, torch.utils.data.DataLoader)
    ]
    assert same(*map(batches, made))
    dataset = Table(table, TRAIN)
    iterator = iter(DataLoader(dataset, 4))
    next(iterator)
    dataset.transform = v1.Compose([v1.Resize((9, 9)), v1.ToTensor()])
    assert next(iterator)[0].shape == (4, 3, 9, 9)


class Caching(Table):
    """Keeps what it has made."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder, transform)
        self.made: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.made:
            self.made[index] = super().__getitem__(index)
        return self.made[index]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_samples_that_are_kept_are_decoded_once(table: Path, options: dict[str, Any]) -> None:
    loader = DataLoader(Caching(table, VALIDATE), 4, **options)
    expected = batches(torch.utils.data.DataLoader(Table(table, VALIDATE), 4))
    for _ in range(3):
        epoch = batches(loader)
        assert {type(pixels) for pixels, _ in epoch} == {torch.Tensor}
        assert same(epoch, expected)


class Sack:
    """What nobody can look into."""

    def __init__(self, samples: list[Any]) -> None:
        self.pixels = torch.stack([pixels for pixels, _ in samples])


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_in_objects_of_ones_own_are_decoded(table: Path, workers: int) -> None:
    for sack in DataLoader(Table(table, VALIDATE), 4, num_workers=workers, collate_fn=Sack):
        assert type(torch.as_tensor(sack.pixels.numpy())) is torch.Tensor
        assert torch.tensor(sack.pixels.tolist()).shape[1:] == (3, 24, 24)


class Inner(Table):
    """Uses a loader of torch's for each sample."""

    def __getitem__(self, index: int) -> Any:
        loader = torch.utils.data.DataLoader(Subset(Table(self.folder, VALIDATE), [index]), batch_size=1)
        ((pixels, _),) = loader
        return pixels.mean(), index


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_of_torchs_inside_of_a_dataset_are_torchs(table: Path, workers: int) -> None:
    assert same(
        batches(DataLoader(Inner(table, VALIDATE), 4, num_workers=workers)),
        batches(torch.utils.data.DataLoader(Inner(table, VALIDATE), 4)),
    )


class Slow(Table):
    """The first sample is made at once, and the others only when somebody says so."""

    def __init__(self, folder: Path, go: Any) -> None:
        super().__init__(folder, VALIDATE)
        self.go = go

    def __getitem__(self, index: int) -> Any:
        if index > 0:
            self.go.wait()
        return super().__getitem__(index)


def test_a_batch_that_is_there_is_not_held_back(table: Path) -> None:
    go = torch.multiprocessing.get_context("fork").Event()
    iterator = iter(DataLoader(Slow(table, go), 1, num_workers=1, prefetch_factor=4, timeout=60))
    assert next(iterator)[1].tolist() == [0]  # would wait for ever
    go.set()
    assert len(list(iterator)) == 13


class Dying(Table):
    def __getitem__(self, index: int) -> Any:
        if index == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch raises in a signal handler
def test_a_worker_that_is_killed_ends_in_an_error(table: Path) -> None:
    for _ in range(2):
        with pytest.raises(Exception, match=r"exited unexpectedly|killed by signal|reset by peer|closed|EOF|Ran out"):
            list(DataLoader(Dying(table, VALIDATE), 1, num_workers=2))


def target_plus_one(label: int) -> int:
    info = get_worker_info()
    return label + (1000 if info is None else 1)


def test_functions_of_the_users_run_in_worker_processes(table: Path) -> None:
    folder = ImageFolder(
        table, VALIDATE, target_transform=target_plus_one, loader=lambda path: Image.open(path).convert("RGB")
    )
    loader = DataLoader(folder, 4, num_workers=1)
    assert loader._route().by_torchs_code
    assert same(batches(loader), batches(torch.utils.data.DataLoader(folder, 4, num_workers=1)))


class Joint(Table):
    """Its tensors know that they are images."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return isinstance(image, tv_tensors.Image), image, label


def test_tensors_are_of_the_class_that_the_transform_makes(table: Path) -> None:
    transform = v2.Compose([v2.Resize((24, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    ours, theirs = (batches(kind(Joint(table, transform), 4)) for kind in (DataLoader, torch.utils.data.DataLoader))
    assert same(ours, theirs)


class Odd(Table):
    """Opens what is no file at rest."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, VALIDATE)
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        data = (self.folder / self.rows[index][0]).read_bytes()
        if self.kind == "closed":
            file = io.BytesIO(data)
            file.close()
            return self.transform(Image.open(file)), index
        if self.kind == "socket":
            return self.transform(self.of_a_socket(data)), index
        reading, writing = os.pipe()
        writer = threading.Thread(target=lambda: (os.write(writing, data), os.close(writing)))
        writer.start()
        if self.kind == "pipe":
            with open(reading, "rb") as file:
                return self.transform(Image.open(file).convert("RGB")), index
        sample = self.transform(Image.open(f"/dev/fd/{reading}").convert("RGB")), index
        writer.join()
        os.close(reading)
        return sample

    @staticmethod
    def of_a_socket(data: bytes) -> Image.Image:
        here, there = socket.socketpair()
        with here, there:
            writer = threading.Thread(target=lambda: (there.sendall(data), there.shutdown(socket.SHUT_WR)))
            writer.start()
            with here.makefile("rb") as file:
                image = Image.open(file).convert("RGB")
            writer.join()
        return image


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Pillow leaves a pipe open
@pytest.mark.parametrize("kind", ["pipe", "socket", "closed", pytest.param("path of a pipe", marks=linux)])
def test_what_is_no_file_at_rest_is_opened_by_pillow(table: Path, kind: str) -> None:
    def outcome(loader: Any) -> Any:
        try:
            return batches(loader)
        except Exception as error:  # noqa: BLE001 - whatever it is
            return type(error), str(error)

    ours, theirs = (outcome(each(Odd(table, kind), 7)) for each in (DataLoader, torch.utils.data.DataLoader))
    assert same(ours, theirs)


@pytest.mark.parametrize("limit", [100, 2900], ids=["refused", "warned of"])
def test_huge_images_of_ones_own_datasets_are_pillows(table: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    warnings_or_errors = []
    for each in (DataLoader, torch.utils.data.DataLoader):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", Image.DecompressionBombWarning)
            try:
                list(each(Table(table, VALIDATE), 7))
                error = None
            except Image.DecompressionBombError as bomb:
                error = str(bomb).split("\n")[0]
        kinds = {w.category for w in warned if w.category is Image.DecompressionBombWarning}
        warnings_or_errors.append((error, kinds))
    ours, theirs = warnings_or_errors
    assert ours == theirs
    assert ours[0] or ours[1]


SPAWNED = """
import sys
from pathlib import Path
import torch
from fastdata import DataLoader, transforms


class Late(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))
        self.transform = transforms.Compose([transforms.CenterCrop(20), transforms.ToTensor()])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        from PIL import Image

        return self.transform(Image.open(self.paths[index]).convert("RGB"))


if __name__ == "__main__":
    loader = DataLoader(Late(sys.argv[1]), 7, num_workers=1, multiprocessing_context="spawn")
    print([tuple(batch.shape) for batch in loader], loader.verdict().kind)
"""


@pytest.mark.slow
def test_worker_processes_that_import_pillow_late(table: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWNED)
    done = subprocess.run([sys.executable, program, table], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[(7, 3, 20, 20), (7, 3, 20, 20)] accelerated\n", done.stderr


AUGMENTED = v1.Compose(
    [
        v1.RandomResizedCrop(24),
        v1.RandomHorizontalFlip(),
        v1.RandAugment(),
        v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.6),
        v1.ToTensor(),
        v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        v1.RandomErasing(0.6),
    ]
)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"backend": "pil"}])
def test_augmentations_are_fused(table: Path, options: dict[str, Any]) -> None:
    """As the image pipeline makes them of the same files."""
    folder = ImageFolder(table, AUGMENTED)
    expected = batches(DataLoader(folder, 3, seed=7))
    fused = DataLoader(folder, 3, seed=7, worker_init_fn=seeds, **options)
    if not options.get("num_workers"):
        fused = DataLoader(Files(folder), 3, seed=7, **options)
    assert same(batches(fused), expected)
    assert fused.verdict().kind == "accelerated"
    assert decodes_natively(fused)


class Files(Dataset[Any]):
    """The same files as an image folder."""

    def __init__(self, folder: ImageFolder) -> None:
        self.samples, self.transform = folder.samples, folder.transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label


@pytest.mark.parametrize("workers", [0, 1])
def test_augmentations_without_chance_are_torchs(table: Path, workers: int) -> None:
    always = [
        v1.RandomEqualize(1.0),
        v1.ColorJitter((0.5, 0.5)),
        v1.RandomInvert(1.0),
        v1.RandomAdjustSharpness(3, 1.0),
    ]
    steps = v1.Compose([v1.Resize(30), v1.CenterCrop(24), *always, v1.ToTensor()])
    ours = DataLoader(Table(table, steps), 2, num_workers=workers)
    theirs = torch.utils.data.DataLoader(Table(table, steps), 2, num_workers=workers)
    assert len(ours._route().fused["transform"].fused) == 7
    assert per_sample(ours) == []
    assert same(batches(ours), batches(theirs))


class Views(Table):
    """Two views, of which one is looked at, and pixels that were touched before."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.folder / self.rows[index][0]).convert("RGB")
        first, second = self.transform(image), self.transform(image)
        image.load()[0, 0]
        return first, second + 0.25, float(second.sum()), self.transform(image)


def test_augmented_images_that_somebody_looks_at(table: Path) -> None:
    """The same numbers, whoever makes them when."""
    loaders = [DataLoader(Views(table, AUGMENTED), 3, seed=7, num_workers=workers) for workers in (0, 1)]
    one, other = map(batches, loaders)
    assert same(one, other)
    assert all(torch.isfinite(each).all() for batch in one for each in batch)
    sums = [float((batch[1][row] - 0.25).sum()) for batch in one for row in range(len(batch[1]))]
    assert sums == pytest.approx([float(each) for batch in one for each in batch[2]], abs=0.05)
