"""What is called per sample behaves as in a worker process: an object and generators of its own, Pillow's image."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import choice, uniform
from typing import Any

import images
import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from PIL import Image, ImageOps
from torch.utils.data import Subset, default_collate, get_worker_info
from torchvision.datasets import ImageFolder

from fastdata import DataLoader

BACKENDS = ("native", "pil", "turbojpeg", "dali")


class KeepsState:
    """Puts what it is working on on itself, as many classes do, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, image: Image.Image) -> Image.Image:
        self.calls += 1
        self.image = image
        time.sleep(0.001)  # other threads run now
        return self.image


class CannotBeCopied(KeepsState):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def pixels(loader: Any) -> list[torch.Tensor]:
    return [batch[0] for batch in loader]


@pytest.mark.parametrize("tail", [KeepsState, CannotBeCopied])
def test_a_transform_that_keeps_state_is_in_one_thread_at_a_time(folder: Path, tail: type[KeepsState]) -> None:
    transform = v1.Compose([v1.Resize((16, 16)), tail(), v1.PILToTensor()])
    dataset = ImageFolder(folder, transform)
    ours = pixels(DataLoader(dataset, 13, num_workers=4, prefetch_factor=4, workers="threads"))
    torchs = pixels(torch.utils.data.DataLoader(ImageFolder(folder, transform), 13))
    assert all(torch.equal(*pair) for pair in zip(ours, torchs, strict=True))


def test_in_the_callers_thread_it_is_the_users_own_object(folder: Path) -> None:
    tail = KeepsState()
    transform = v1.Compose([v1.Resize((16, 16)), tail, v1.PILToTensor()])
    pixels(DataLoader(ImageFolder(folder, transform), 13))
    assert tail.calls == 39
    pixels(DataLoader(ImageFolder(folder, transform), 13, num_workers=2, workers="threads"))
    assert tail.calls == 39  # as with torch's workers, whose copies count for themselves


def test_a_collate_object_that_keeps_state_is_not_shared_either(folder: Path) -> None:
    class Collates:
        def __call__(self, samples: list[Any]) -> Any:
            self.samples = samples
            time.sleep(0.001)
            return default_collate(self.samples)

    dataset = ImageFolder(folder, v1.Compose([v1.Resize((8, 8)), v1.PILToTensor()]))
    ours = pixels(DataLoader(dataset, 2, num_workers=4, prefetch_factor=8, collate_fn=Collates(), workers="threads"))
    torchs = pixels(torch.utils.data.DataLoader(dataset, 2))
    assert all(torch.equal(*pair) for pair in zip(ours, torchs, strict=True))


# ---- random numbers

DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "random, by name": lambda: random.random(),
    "uniform, imported before": lambda: uniform(0, 1),
    "choice, imported before": lambda: choice(range(10**6)),
    "gauss": lambda: random.gauss(0, 1),
    "numpy.rand": lambda: np.random.rand(),
    "numpy.randint": lambda: int(np.random.randint(0, 10**6)),
    "numpy.sample": lambda: float(np.random.sample()),
    "torch.rand": lambda: torch.rand(()).item(),
    "Beta": lambda: torch.distributions.Beta(0.5, 0.5).sample().item(),
    "Gamma": lambda: torch.distributions.Gamma(0.5, 0.5).sample().item(),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(40)).tolist(),
}
del DRAWS["random"]  # a name bound before: see patches/random_functions.py


def states() -> list[str]:
    return [str(state) for state in (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist())]


def drawn_in_tails(folder: Path, draw: Callable[[], Any], *, workers: int, seed: int) -> dict[str, Any]:
    """What each image's transform drew, by the image's pixels."""
    drawn: dict[str, Any] = {}

    def tail(image: Image.Image) -> Image.Image:
        drawn[str(hash(image.tobytes()))] = draw()
        return image

    transform = v1.Compose([v1.Resize((16, 16)), tail, v1.PILToTensor()])
    pixels(DataLoader(ImageFolder(folder, transform), 4, num_workers=workers, seed=seed, workers="threads"))
    return drawn


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("random, by name", "numpy.rand", "torch.rand", "Beta")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in DRAWS
    ],
)
def test_draws_follow_from_seed_and_sample_and_leave_the_training_loops_alone(folder: Path, name: str) -> None:
    drawn_in_tails(folder, DRAWS[name], workers=0, seed=1)
    random.seed(0), np.random.seed(0)
    torch.manual_seed(0)
    before = states()
    runs = [drawn_in_tails(folder, DRAWS[name], workers=workers, seed=1) for workers in (0, 3)]
    torch.set_rng_state(torch.Generator().manual_seed(0).get_state())  # iterators draw a base seed, as torch's do
    assert states() == before
    assert runs[0] == runs[1]
    assert len(set(map(str, runs[0].values()))) > 30
    assert drawn_in_tails(folder, DRAWS[name], workers=2, seed=2) != runs[0]


def _manual_seed() -> list[float]:
    torch.manual_seed(7)
    return torch.rand(3).tolist()


def _forked() -> list[float]:
    torch.manual_seed(7)
    with torch.random.fork_rng():
        torch.rand(100)
    return torch.rand(3).tolist()


def _state_put_back() -> list[float]:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    torch.rand(100)
    torch.set_rng_state(state)
    return torch.rand(3).tolist()


@pytest.mark.parametrize("seeding", [_manual_seed, _forked, _state_put_back])
@pytest.mark.parametrize("workers", [0, 2])
def test_seeding_in_a_transform_means_what_it_means_in_a_worker(
    folder: Path, seeding: Callable[[], list[float]], workers: int
) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(7)).tolist()
    drawn = drawn_in_tails(folder, seeding, workers=workers, seed=1)
    assert all(found == expected for found in drawn.values())
    assert torch.initial_seed() == 3


def test_pythons_and_numpys_seeds_in_a_transform_too(folder: Path) -> None:
    def seeding() -> tuple[float, float]:
        random.seed(5), np.random.seed(6)
        return random.random(), float(np.random.rand())

    drawn = drawn_in_tails(folder, seeding, workers=2, seed=1)
    assert set(drawn.values()) == {(random.Random(5).random(), np.random.RandomState(6).rand())}


@pytest.mark.parametrize("backend", ["native", "pil"])
def test_random_target_transforms_follow_from_the_seed(folder: Path, backend: str) -> None:
    transform = v1.Compose([v1.Resize((8, 8)), v1.PILToTensor()])
    before = states()[:2]
    runs = []
    for workers in (0, 3):
        dataset = ImageFolder(
            folder, transform, target_transform=lambda label: (label, random.random(), torch.rand(()))
        )
        loader = DataLoader(dataset, 4, num_workers=workers, seed=1, backend=backend, workers="threads")
        runs.append([torch.stack([each.double() for each in targets]) for _, targets in loader])
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))
    assert len({row for each in runs[0] for row in each[1].tolist()}) == 39
    assert states()[:2] == before


@pytest.mark.parametrize("mix", [v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)], ids=["MixUp", "CutMix"])
def test_random_collate_functions_follow_from_the_seed(folder: Path, mix: Any) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]))
    runs = []
    for workers in (0, 3):
        torch.manual_seed(0)
        own = {"collate_fn": lambda samples: mix(*default_collate(samples)), "workers": "threads"}
        loader = DataLoader(dataset, 4, num_workers=workers, seed=1, **own)
        runs.append([torch.cat([images_.flatten(), labels.flatten()]) for images_, labels in loader])
        after = torch.get_rng_state()
        torch.manual_seed(0)
        torch.empty((), dtype=torch.int64).random_()  # the base seed
        assert torch.equal(after, torch.get_rng_state())
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


# ---- where torch would run it


class Asks:
    """A step that notes where it runs: worker, seeds, process."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        self.size = image.size
        return torch.tensor(where())


def where() -> list[int]:
    info = get_worker_info()
    main = multiprocessing.parent_process() is None
    seeds = [torch.initial_seed(), int(random.random() * 1e9), int(np.random.randint(10**9))]
    return [int(main), -1 if info is None else info.id, -1 if info is None else info.seed % 2**31, *seeds]


def target_where(label: int) -> list[int]:
    return where()[:4]


def collated_where(samples: list[Any]) -> Any:
    return default_collate(samples), where()[:3]


def everywhere(loader: Any) -> list[Any]:
    torch.manual_seed(11), random.seed(12), np.random.seed(13)
    return [(*batch, *seen) for batch, seen in loader]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "fork"}])
def test_code_of_the_users_runs_where_torch_runs_it_and_draws_what_it_would(
    folder: Path, options: dict[str, Any]
) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.Resize((8, 8)), Asks()]), target_transform=target_where)
    ours, torchs = (
        everywhere(kind(dataset, 4, collate_fn=collated_where, **options))
        for kind in (DataLoader, torch.utils.data.DataLoader)
    )
    assert str(ours) == str(torchs)


def test_a_step_of_ones_own_is_called_in_worker_processes_by_rule(folder: Path) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.Resize((8, 8)), KeepsState(), v1.PILToTensor()]))
    for options in ({}, {"collate_fn": collated_where}):
        loader = DataLoader(dataset, 4, num_workers=2, **options)
        assert loader._route().by_torchs_code
        assert loader.num_workers == 2
    loader = DataLoader(ImageFolder(folder, v1.Compose([v1.Resize((8, 8)), v1.PILToTensor()])), 4, num_workers=2)
    assert loader._route().is_image_pipeline


class Stretches:
    """A step of one's own, in Python."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.point(lambda level: min(255, 2 * level))


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_damaged_files_are_named_from_worker_processes_too(folder: Path, tmp_path: Path, on_error: Any) -> None:
    shutil.copytree(folder, tmp_path / "own")
    (tmp_path / "own" / "bear" / "05.jpg").write_bytes(b"\xff\xd8 no JPEG")
    dataset = ImageFolder(tmp_path / "own", v1.Compose([v1.RandomResizedCrop(32), Stretches(), v1.ToTensor()]))
    loader = DataLoader(dataset, 4, num_workers=2, seed=3, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(OSError, match=r"sample 18 .*05\.jpg.*not an image"):
            list(loader)
        return
    labels = torch.cat([batch[1] for batch in loader])
    assert len(labels) == (38 if on_error == "skip" else 39)
    assert [(index, Path(place).name) for index, place, _ in loader.stats()["quarantine"]] == [(18, "05.jpg")]
    here = DataLoader(dataset, 4, seed=3, on_error=on_error)
    assert torch.equal(labels, torch.cat([batch[1] for batch in here]))


def test_views_of_subsets_are_drawn_for_each_sample(folder: Path) -> None:
    steps = [v1.RandomResizedCrop(32), Stretches(), v1.ToTensor()]
    inner = Subset(ImageFolder(folder, v1.Compose(steps)), range(3, 30))
    for dataset in (inner, Subset(inner, [5, 4, 3, 9, 8, 7])):
        epochs = [pixels(DataLoader(dataset, 4, num_workers=workers, seed=2)) for workers in (0, 2)]
        assert all(torch.equal(*pair) for pair in zip(*epochs, strict=True))


@pytest.mark.parametrize("steps", [[v1.RandomCrop(64)], [v1.RandomInvert(1), v1.Resize(70), v1.RandomCrop((64, 90))]])
@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_a_crop_cannot_be_taken_from(folder: Path, steps: list[Any], workers: int) -> None:
    """The folder's images are 60 to 260 pixels wide and high."""
    dataset = ImageFolder(folder, v1.Compose([*steps, Stretches(), v1.ToTensor()]))
    with pytest.raises(ValueError, match="Required crop size"):
        list(DataLoader(dataset, 4, num_workers=workers))
    for on_error in ("skip", "replace"):
        loader = DataLoader(dataset, 4, num_workers=workers, seed=2, on_error=on_error)
        labels = torch.cat([batch[1] for batch in loader])
        failed = {entry[0] for entry in loader.stats()["quarantine"]}
        assert failed
        assert len(labels) == 39 - (len(failed) if on_error == "skip" else 0)


class Refuses(Stretches):
    """Fails now and then, by an error made anew each time, since one remembers the frames it came through."""

    def __init__(self, kind: type[Exception], *arguments: Any) -> None:
        self.kind, self.arguments = kind, arguments

    def __call__(self, image: Image.Image) -> Image.Image:
        if image.getpixel((3, 3))[0] > 200:  # type: ignore[index]
            raise self.kind(*self.arguments)
        return super().__call__(image)


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [(OwnError, "own"), (ValueError, "own")])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "threads"}])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_errors_of_a_step_are_its_own(folder: Path, error: Any, options: dict[str, Any], on_error: Any) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.Resize((20, 20)), Refuses(*error), v1.ToTensor()]))
    loader = DataLoader(dataset, 4, on_error=on_error, **options)
    with pytest.raises(error[0], match="own"):
        list(loader)
    assert loader.stats()["quarantine"] == []


def test_the_users_own_class_of_known_steps_is_his_code_too(folder: Path) -> None:
    """A pair of views from a known transform, by a class of one's own: it asks which process it is in."""
    dataset = ImageFolder(folder, TwoViews(v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])))
    loader = DataLoader(dataset, 4, num_workers=2)
    workers = {int(worker) for (_, _, ids), _ in loader for worker in ids}
    assert workers == {0, 1}


class TwoViews:
    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> Any:
        info = get_worker_info()
        return self.transform(image), self.transform(image), -1 if info is None else info.id


# ---- the image


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = orientation, "a description"
    return exif


WITH_INFO = {
    "exif.jpg": images.saved(exif=_exif(6), dpi=(72, 72), comment=b"hello"),
    "grey.jpg": images.saved(mode="L", exif=_exif(3)),
    "cmyk.jpg": images.saved(mode="CMYK", icc_profile=b"profile" * 30),
    "plain.jpg": images.jpeg(60, 40),
    "progressive.jpg": images.saved(progressive=True, exif=_exif(8)),
    "plain.png": images.saved(kind="PNG"),
    "exif.png": images.saved(kind="PNG", exif=_exif(5), icc_profile=b"profile" * 30, dpi=(30, 40)),
    "rgba.png": images.saved(mode="RGBA", kind="PNG"),
    "palette.png": images.saved(mode="P", kind="PNG", transparency=3),
    "exif.webp": images.saved(kind="WEBP", exif=_exif(7)),
    "grey.tif": images.saved(mode="L", kind="TIFF", dpi=(72, 72)),
}


@pytest.fixture
def with_info(tmp_path: Path) -> Path:
    (tmp_path / "all").mkdir()
    for name, data in WITH_INFO.items():
        (tmp_path / "all" / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "first", [v1.Resize((24, 36)), v1.CenterCrop(30), v1.CenterCrop(200), v1.RandomHorizontalFlip(1)]
)
def test_a_tail_sees_the_info_that_torchvision_would_show_it(with_info: Path, backend: str, first: Any) -> None:
    seen: list[Any] = []

    def look(image: Image.Image) -> Image.Image:
        info = dict(image.info)
        if image.size == (200, 200):
            info.pop("transparency", None)  # all that padding leaves, and no more than a trace of the palette
        seen.append((image.__class__, image.mode, image.size, image.format, info, dict(image.getexif())))
        return image.resize((4, 4))

    dataset = ImageFolder(with_info, v1.Compose([first, look, v1.PILToTensor()]))
    pixels(torch.utils.data.DataLoader(dataset, 4))
    torchs, seen = seen, []
    pixels(DataLoader(dataset, 4, backend=backend, fidelity="exact"))
    assert seen == torchs


def test_exif_transpose_in_a_tail_turns_the_image(with_info: Path) -> None:
    transform = v1.Compose([v1.Resize(30), ImageOps.exif_transpose, v1.CenterCrop(30), v1.PILToTensor()])
    dataset = ImageFolder(with_info, transform)
    ours, torchs = pixels(DataLoader(dataset, 4, num_workers=2)), pixels(torch.utils.data.DataLoader(dataset, 4))
    assert all(torch.equal(*pair) for pair in zip(ours, torchs, strict=True))
