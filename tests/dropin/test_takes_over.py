"""Only what stays the same is taken over: what the user's code sees and gives is what torch's loader shows and gets."""

from __future__ import annotations

import copy
import io
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from PIL import Image, JpegImagePlugin
from torch.utils.data import Dataset, Subset
from torch.utils.data._utils import collate as torch_collate
from torchvision.datasets import ImageFolder

import fastdata
from fastdata import DataLoader
from fastdata.dataloader import map_style
from fastdata.transforms.settings import TransformSnapshot

TORCHS = torch.utils.data.DataLoader
SMALL = [v1.Resize((16, 16)), v1.ToTensor()]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Eight JPEGs of one class."""
    (tmp_path / "root" / "all").mkdir(parents=True)
    paths = [tmp_path / "root" / "all" / f"{number}.jpg" for number in range(8)]
    for number, path in enumerate(paths):
        path.write_bytes(images.jpeg(40 + number, 30, seed=number))
    return paths


@pytest.fixture
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the test count as older than the program, so worker processes keep their paths."""
    monkeypatch.setattr(map_style, "program_began", lambda: time.time() + 60)


class Own(Dataset[Any]):
    """Opens files and gives them to a transform; what a test changes is done before that."""

    def __init__(self, files: list[Any], steps: list[Any], change: Callable[[Any], Any] = lambda self: None) -> None:
        self.files, self.t, self.change = list(files), v1.Compose(steps), change
        self.resize, self.normalize = v1.Resize((16, 16)), v1.Normalize([0.5] * 3, [0.5] * 3)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        self.change(self)
        return self.t(Image.open(self.files[index]).convert("RGB")), index


def epoch(kind: Any, dataset: Any, seed: int = 5, **options: Any) -> list[Any]:
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    return list(kind(dataset, 4, **options))


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return isinstance(ours, torch.Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


def check_like_torch(make: Callable[[], Any], **options: Any) -> list[Any]:
    ours, theirs = epoch(DataLoader, make(), **options), epoch(TORCHS, make(), **options)
    assert same(ours, theirs)
    return ours


# ---- settings of a fused transform


def _another_list(dataset: Own) -> None:
    dataset.t.transforms = [v1.Resize((8, 8)), v1.ToTensor()]


def _in_a_thread(dataset: Own) -> None:
    thread = threading.Thread(target=setattr, args=(dataset.t.transforms[0], "size", (9, 9)))
    thread.start()
    thread.join()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a step's size": lambda self: setattr(self.t.transforms[0], "size", (8, 8)),
    "the list": _another_list,
    "an item": lambda self: self.t.transforms.__setitem__(0, v1.Resize((8, 8))),
    "another step": lambda self: len(self.t.transforms) < 3 and self.t.transforms.append(self.normalize),
    "from a thread": _in_a_thread,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_settings_that_the_dataset_changes_are_obeyed(files: list[Path], change: str, workers: int) -> None:
    check_like_torch(lambda: Own(files, [v1.Resize((16, 16)), v1.ToTensor()], CHANGES[change]), num_workers=workers)


class Single(Own):
    """Calls a fused step by itself, and sets something on it."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index]).convert("RGB")
        self.resize.size = (4 + index, 6)
        self.normalize.mean = [0.1 * index] * 3
        return self.normalize(v1.functional.to_tensor(self.resize(image))).sum(), index


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_set_on_a_step_reaches_the_users_object(files: list[Path], workers: int) -> None:
    dataset = Single(files, SMALL)
    ours, theirs = (epoch(kind, Single(files, SMALL), num_workers=workers) for kind in (DataLoader, TORCHS))
    assert same(ours, theirs)
    epoch(DataLoader, dataset)
    assert dataset.resize.size == (11, 6)
    assert type(dataset.resize) is v1.Resize


class Growing(Own):
    """A size that grows with every sample that one worker makes; persistent workers go on from there."""

    def __getitem__(self, index: int) -> Any:
        height, width = self.t.transforms[0].size
        self.t.transforms[0].size = (height + 1, width)
        return self.t(Image.open(self.files[index]).convert("RGB")).shape[1], index


def test_persistent_workers_keep_what_the_dataset_has_set(files: list[Path]) -> None:
    runs = []
    for kind in (DataLoader, TORCHS):
        loader = kind(Growing(files, [v1.Resize((4, 4)), v1.ToTensor()]), 2, num_workers=2, persistent_workers=True)
        runs.append([[sizes.tolist() for sizes, _ in loader] for _ in range(2)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_settings_notice_every_change() -> None:
    mean, std = torch.full((3, 1, 1), 0.5), np.full(3, 0.5)
    steps = [v1.RandomHorizontalFlip(0.0), v1.Normalize([0.5] * 3, [0.5] * 3), v2.RandomApply([v2.ColorJitter(0.1)])]
    transform = v1.Compose(list(steps))
    steps[1].kept = {"mean": mean, "std": [std]}
    hue = steps[2].transforms[0].hue
    changes: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: setattr(steps[0], "p", 1.0), lambda: setattr(steps[0], "p", 0.0)),
        (lambda: steps[1].mean.__setitem__(0, 0.4), lambda: steps[1].mean.__setitem__(0, 0.5)),
        (lambda: transform.transforms.pop(), lambda: transform.transforms.append(steps[2])),
        (lambda: setattr(steps[2].transforms[0], "hue", 1), lambda: setattr(steps[2].transforms[0], "hue", hue)),
        (lambda: std.__setitem__(1, 0.4), lambda: std.__setitem__(1, 0.5)),
    ]
    for change, back in changes:
        snapshot = TransformSnapshot(transform)
        assert snapshot.is_current()
        change()
        assert not snapshot.is_current()
        back()
        assert snapshot.is_current()
    for write in (
        lambda: mean.mul_(2),
        lambda: mean.data.mul_(2),  # which version counters do not count
        lambda: mean.numpy().__setitem__(0, 7.0),
        lambda: setattr(mean, "data", mean.clone()),
    ):
        snapshot = TransformSnapshot(transform)
        write()
        assert not snapshot.is_current()


MEAN = np.zeros(3, np.float32)


class Outside(Own):
    """What its transform reads is changed from outside of it, for every second sample."""

    def __init__(self, files: list[Path], change: str) -> None:
        mean = torch.from_numpy(MEAN)
        super().__init__(files, [v1.Resize((8, 8)), v1.ToTensor(), v1.Normalize(mean, [1.0] * 3)])
        self.what, self.mean = change, mean

    def __getitem__(self, index: int) -> Any:
        MEAN[:] = 0.0
        if self.what == "by NumPy":
            MEAN[:] = 0.1 * index
        elif self.what == "by .data":
            self.mean.data.fill_(0.1 * index)
        elif self.what == "by dtype":
            torch.set_default_dtype(torch.float64 if index % 2 else torch.float32)
        try:
            with torch.autocast("cpu", enabled=self.what == "by autocast" and index % 2 == 1):
                image, label = super().__getitem__(index)
            return image.double(), str(image.dtype), label
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("change", ["by NumPy", "by .data", "by dtype", "by autocast"])
def test_what_a_transform_reads_is_read_at_that_moment(files: list[Path], change: str, workers: int) -> None:
    check_like_torch(lambda: Outside(files, change), num_workers=workers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_settings_of_any_dtype_are_noticed(dtype: torch.dtype) -> None:
    mean = torch.full((3,), 0.5, dtype=dtype)
    snapshot = TransformSnapshot(v1.Compose([v1.ToTensor(), v1.Normalize(mean, [0.5] * 3)]))
    assert snapshot.is_current()
    mean.mul_(2)
    assert not snapshot.is_current()


def test_hooks_are_noticed() -> None:
    step = v1.RandomHorizontalFlip(0.0)
    snapshot = TransformSnapshot(v1.Compose([step, v1.ToTensor()]))
    handle = step.register_forward_hook(lambda *_: None)
    assert not snapshot.is_current()
    handle.remove()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not snapshot.is_current()
    handle.remove()
    assert snapshot.is_current()


class Seeded(Own):
    """Two images are to be seen alike, by one of the ways that segmentation code has for it."""

    way = "seed"

    def __getitem__(self, index: int) -> Any:
        image, mask = (Image.open(self.files[index]).convert(mode) for mode in ("RGB", "L"))
        if self.way == "seed":
            torch.manual_seed(index % 3)
            one = self.t(image)
            torch.manual_seed(index % 3)
        else:
            state = torch.get_rng_state()
            one = self.t(image)
            torch.set_rng_state(state)
        return one, self.t(mask), torch.rand(1), index


class SetBack(Seeded):
    way = "state"


@pytest.mark.parametrize("kind", [Seeded, SetBack])
@pytest.mark.parametrize("workers", [0, 2])
def test_where_the_users_code_seeds_it_gets_torchs_draws(files: list[Path], kind: Any, workers: int) -> None:
    steps = [v1.RandomResizedCrop(8), v1.RandomHorizontalFlip(), v1.ToTensor()]
    check_like_torch(lambda: kind(files, steps), num_workers=workers)


class DrawsAfterwards(Own):
    def __getitem__(self, index: int) -> Any:
        image, _ = super().__getitem__(index)
        return image, torch.rand(()), random.random(), np.random.random()


DRAWING_NOTHING: dict[str, list[Any]] = {
    "v1": [v1.Resize(20), v1.Pad(2), v1.CenterCrop(16), v1.Grayscale(3), v1.ToTensor()],
    "v1 of tensors": [v1.ToTensor(), v1.Resize((9, 9)), v1.Grayscale(3), v1.Normalize(0.5, 0.2)],
    "v2": [v2.ToImage(), v2.Grayscale(3), v2.Resize(20), v2.CenterCrop(9), v2.ToDtype(torch.float32, scale=True)],
    "an own step between": [v1.Resize(20), lambda image: image, v1.Grayscale(3), v1.CenterCrop(9), v1.ToTensor()],
}


@pytest.mark.parametrize("name", DRAWING_NOTHING)
@pytest.mark.parametrize("workers", [0, 2])
def test_steps_that_draw_nothing_leave_the_users_numbers_alone(files: list[Path], name: str, workers: int) -> None:
    check_like_torch(lambda: DrawsAfterwards(files, DRAWING_NOTHING[name]), num_workers=workers)


def test_other_loaders_of_the_process_go_on_as_before(files: list[Path]) -> None:
    steps = [v1.RandomResizedCrop(8), v1.ToTensor()]
    before = list(DataLoader(Own(files, steps), 4, seed=3))
    list(DataLoader(SetBack(files, steps), 4))
    assert same(list(DataLoader(Own(files, steps), 4, seed=3)), before)


# ---- collation that the user replaced


def mine(batch: Any, *, collate_fn_map: Any = None) -> str:
    return "mine"


def with_a_copied_map(batch: Any) -> Any:
    return torch_collate.collate(batch, collate_fn_map={**torch_collate.default_collate_fn_map, torch.Tensor: mine})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["own", "folder"])
def test_collation_of_ones_own_is_heeded(
    files: list[Path], kind: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Any:
        return Own(files, SMALL) if kind == "own" else ImageFolder(files[0].parents[1], v1.Compose(SMALL))

    (first, *_), *_ = check_like_torch(make, num_workers=workers, collate_fn=with_a_copied_map)
    assert first == "mine"
    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, mine)
    (first, *_), *_ = check_like_torch(make, num_workers=workers)
    assert first == "mine"
    assert torch_collate.default_collate_fn_map[torch.Tensor] is mine


def test_torchs_map_is_left_as_it_was(files: list[Path]) -> None:
    before = dict(torch_collate.default_collate_fn_map)
    epoch(DataLoader, Own(files, SMALL))
    assert dict(torch_collate.default_collate_fn_map) == before
    assert torch_collate.default_collate_fn_map[torch.Tensor] is torch_collate.collate_tensor_fn


# ---- files that change under their paths


class Switching(Own):
    """Opens every file by one link, which it switches for each sample."""

    def __getitem__(self, index: int) -> Any:
        link = self.files[0].parent / f"link-{index % 1}"
        link.unlink(missing_ok=True)
        link.symlink_to(self.files[index])
        return self.t(Image.open(link).convert("RGB")), index


class SwitchingFolder(Own):
    """The same with a link to the folder."""

    def __getitem__(self, index: int) -> Any:
        folder = self.files[0].parents[2] / f"only-{index}"
        folder.mkdir(exist_ok=True)
        if not (folder / "now.jpg").exists():
            (folder / "now.jpg").write_bytes(self.files[index].read_bytes())
        link = self.files[0].parents[2] / "current"
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        return self.t(Image.open(link / "now.jpg").convert("RGB")), index


@pytest.mark.usefixtures("old_files")
@pytest.mark.parametrize("kind", [Switching, SwitchingFolder])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_link_that_is_switched_shows_the_file_that_was_opened(files: list[Path], kind: Any, workers: int) -> None:
    check_like_torch(lambda: kind(files, SMALL), num_workers=workers)


class Moving(Own):
    """Each file goes when it has been read: temporary files of a download, for example."""

    def __getitem__(self, index: int) -> Any:
        path = self.files[index].with_suffix(".new.jpg")
        path.write_bytes(self.files[index].read_bytes())
        sample = self.t(Image.open(path).convert("RGB")), index
        path.rename(path.with_suffix(".done")) if index % 2 else path.unlink()
        return sample


@pytest.mark.parametrize("workers", [0, 1])
def test_young_files_may_be_renamed_and_deleted(files: list[Path], workers: int) -> None:
    check_like_torch(lambda: Moving(files, SMALL), num_workers=workers)


class Catching(Own):
    """Has an image of its own for those that cannot be opened."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            return torch.full((3, 16, 16), float(index)), -index


class Overwriting(Catching):
    """Another picture is put in the place of a file, of the same length, once it has been opened."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index == 2:
            self.files[2].write_bytes(self.files[5].read_bytes())
        if index == 4:
            self.files[4].unlink(missing_ok=True)
        return sample


@pytest.mark.usefixtures("old_files")
def test_changed_files_are_opened_again_by_the_users_own_code(files: list[Path]) -> None:
    batches = epoch(DataLoader, Overwriting(files, SMALL), num_workers=1)
    fifth = v1.Compose(SMALL)(Image.open(files[5]).convert("RGB"))
    assert torch.equal(batches[0][0][2], fifth)  # as it is now, not half of one and half of the other
    assert batches[1][1].tolist() == [-4, 5, 6, 7]  # and the handler has met the file that is gone


# ---- damaged images


def png_with_a_flipped_bit() -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(images.jpeg(80, 60))).convert("RGB").save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[len(data) // 2] ^= 1
    return bytes(data)


def jpeg_with_a_stray_marker() -> bytes:
    data = bytearray(images.jpeg(300, 200, quality=95))
    at = data.rfind(b"\xff\xda") + 400
    data[at : at + 2] = b"\xff\xd8"
    return bytes(data)


DAMAGED = {"png": png_with_a_flipped_bit, "jpeg": jpeg_with_a_stray_marker}


class Drawing(Catching):
    """Draws before it opens: a sample that is made again must draw the same."""

    def __getitem__(self, index: int) -> Any:
        drawn = torch.rand(1), random.random(), np.random.rand()
        return super().__getitem__(index), *drawn


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_a_datasets_own_handler_meets_what_only_the_decoder_finds(
    files: list[Path], kind: str, options: dict[str, Any]
) -> None:
    files[6].write_bytes(DAMAGED[kind]())
    (*_, second) = check_like_torch(lambda: Drawing(files, SMALL), **options)
    assert second[0][1].tolist() == [4, 5, -6, 7]


class Filtered(Own):
    """Gives None for what cannot be decoded."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            return None


def without_none(samples: list[Any]) -> Any:
    return torch_collate.default_collate([sample for sample in samples if sample is not None])


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize("workers", [0, 2])
def test_none_and_a_filtering_collate_function(files: list[Path], kind: str, workers: int) -> None:
    files[1].write_bytes(DAMAGED[kind]())
    first, _ = check_like_torch(lambda: Filtered(files, SMALL), num_workers=workers, collate_fn=without_none)
    assert first[1].tolist() == [0, 2, 3]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_what_escapes_the_users_code_is_an_error_at_its_place(files: list[Path], options: dict[str, Any]) -> None:
    files[7].write_bytes(jpeg_with_a_stray_marker())  # in the last batch: the workers are still needed then
    loader = DataLoader(Own(files, SMALL), 2, **options)
    for _ in range(2 if options.get("persistent_workers") else 1):
        iterator = iter(loader)
        assert [next(iterator)[1].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(fastdata.DecodeError, match=r"sample 7 .*7\.jpg"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)


class Closing(Own):
    """Closes what it opens, also if that is damaged."""

    def __getitem__(self, index: int) -> Any:
        with open(self.files[index], "rb") as file:
            return self.t(Image.open(file).convert("RGB")), index


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
@pytest.mark.parametrize("kind", ["own", "folder"])
def test_skipped_samples_are_not_counted_and_told_once_an_epoch(
    files: list[Path], kind: str, options: dict[str, Any]
) -> None:
    files[1].write_bytes(images.jpeg(40, 30)[:-200])
    files[6].write_bytes(b"no image at all")
    own = Closing(files, SMALL)
    loader = DataLoader(
        own if kind == "own" else ImageFolder(files[0].parents[1], own.t), 4, on_error="skip", **options
    )
    for number in range(2):
        told = rf"epoch {number}: 2 samples were left out \(on_error='skip'\): 1 \w+( \w+)*, 1 \w+( \w+)*;"
        with pytest.warns(fastdata.SamplesSkipped, match=told):
            assert sum(len(batch[1]) for batch in loader) == 6
    assert loader.stats()["samples"] == 12
    assert loader.stats()["failures"] == 4
    assert sum(loader.stats()["kinds"].values()) == 4


# ---- what the loop changes


def changed_in_the_loop(kind: Any, dataset: Any, change: Callable[[Any, int], None], **options: Any) -> list[Any]:
    seen = []
    for number, (batch, labels) in enumerate(kind(dataset, 2, **options)):
        seen.append((tuple(batch.shape[2:]), labels.tolist()))
        change(dataset, number)
    return seen


LOOPS: dict[str, Callable[[Any, int], None]] = {
    "another transform": lambda ds, n: setattr(ds.dataset, "transform", v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])),
    "a size": lambda ds, n: setattr(ds.dataset.transform.transforms[0], "size", (8 + n, 8)),
    "own code": lambda ds, n: setattr(ds.dataset, "transform", lambda image: v1.functional.to_tensor(image)[:, :5, :5]),
    "and back": lambda ds, n: setattr(
        ds.dataset, "transform", v1.Compose([v1.CenterCrop(6), (lambda image: image), v1.ToTensor()][:: 1 + n % 2])
    ),
    "other indices": lambda ds, n: setattr(ds, "indices", list(range(8))[::-1]),
    "an index": lambda ds, n: ds.indices.__setitem__(2 * (n + 1) % 8, 7),
    "other files": lambda ds, n: setattr(ds.dataset, "samples", [(path, 9) for path, _ in ds.dataset.samples]),
    "a label": lambda ds, n: ds.dataset.samples.__setitem__(5, (ds.dataset.samples[5][0], 77)),
    "a target_transform": lambda ds, n: setattr(ds.dataset, "target_transform", lambda label: label + 100),
}


@pytest.mark.parametrize("change", LOOPS)
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
@pytest.mark.parametrize("kind", [ImageFolder, fastdata.ImageFolder])
def test_what_the_loop_changes_counts_as_with_torch(
    files: list[Path], change: str, options: dict[str, Any], kind: Any
) -> None:
    """From the next batch on with num_workers=0; worker processes have their own copy."""

    def make() -> Any:
        return Subset(kind(str(files[0].parents[1]), v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])), list(range(8)))

    ours, theirs = (changed_in_the_loop(kind, make(), LOOPS[change], **options) for kind in (DataLoader, TORCHS))
    assert ours == theirs


def test_persistent_workers_keep_the_dataset_of_their_first_epoch(files: list[Path]) -> None:
    runs = []
    for kind in (DataLoader, TORCHS):
        dataset = ImageFolder(files[0].parents[1], v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]))
        loader = kind(dataset, 4, num_workers=1, persistent_workers=True)
        shapes = [next(iter(loader))[0].shape]
        dataset.transform = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
        runs.append([*shapes, *(batch.shape for batch, _ in loader)])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("make", [ImageFolder, fastdata.ImageFolder], ids=["torchvision's", "ours"])
@pytest.mark.parametrize("persistent", [False, True])
def test_relative_paths_mean_what_they_mean_in_worker_processes(
    files: list[Path], make: Any, persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files[0].parents[2])
    loader = DataLoader(make("root", v1.Compose(SMALL)), 2, num_workers=2, persistent_workers=persistent)
    own = DataLoader(Own([path.relative_to(Path.cwd()) for path in files], SMALL), 2, num_workers=2)
    for each in (loader, own):
        iterator = iter(each)
        next(iterator)
        monkeypatch.chdir(files[0].parent)
        assert len(list(iterator)) == 3
        monkeypatch.chdir(files[0].parents[2])


# ---- types, and how to have all of torch's


class Types(Own):
    def __getitem__(self, index: int) -> Any:
        opened = Image.open(self.files[index])
        rgb, buffer = opened.convert("RGB"), io.BytesIO()
        tensor = self.t(rgb)
        kept = Image.open(self.files[index])
        kept.save(buffer, "JPEG", quality="keep")
        return {
            "isinstance": [isinstance(opened, JpegImagePlugin.JpegImageFile), isinstance(tensor, torch.Tensor)],
            "__class__": [opened.__class__.__name__, rgb.__class__.__name__, rgb.__class__ is Image.Image],
            "sampling": JpegImagePlugin.get_sampling(Image.open(self.files[index])),
            "keep": buffer.getvalue(),
            "repr": repr(opened).partition(" at ")[0],
        }


class ExactTypes(Own):
    def __getitem__(self, index: int) -> Any:
        rgb = Image.open(self.files[index]).convert("RGB")
        return type(rgb) is Image.Image, type(self.t(rgb)) is torch.Tensor


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that nobody closes
@pytest.mark.parametrize("workers", [0, 1])
def test_types_are_pillows_and_torchs_as_far_as_they_can_be(
    files: list[Path], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_like_torch(lambda: Types(files, SMALL), num_workers=workers, collate_fn=list)
    exact = ExactTypes(files[:1], SMALL)
    assert epoch(DataLoader, exact, num_workers=workers, collate_fn=list) == [[(False, False)]]
    assert epoch(DataLoader, exact, num_workers=workers, collate_fn=list, defer=False) == [[(True, True)]]
    monkeypatch.setenv("FASTDATA_DEFER", "0")
    assert epoch(DataLoader, exact, num_workers=workers, collate_fn=list) == [[(True, True)]]
    said = DataLoader(exact).verdict()
    assert said.kind == "not accelerated"
    assert "FASTDATA_DEFER=0" in said.reason


# ---- nothing is left behind


def replaced_functions() -> dict[str, Any]:
    from torchvision.transforms import functional
    from torchvision.transforms.v2 import functional as functional2

    modules = (random, np.random, torch, torch.random, Image, functional, functional2)
    return {f"{module.__name__}.{name}": each for module in modules for name, each in vars(module).items()}


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_every_replaced_function_is_taken_back(files: list[Path], options: dict[str, Any]) -> None:
    before, kind = replaced_functions(), type(random._inst)
    own = [v1.Resize((16, 16)), lambda image: image, v1.ToTensor()]
    for dataset in (Own(files, SMALL), Own(files, own), ImageFolder(files[0].parents[1], v1.Compose(own))):
        assert len(list(DataLoader(dataset, 4, **options))) == 2
        next(iter(DataLoader(dataset, 2, **options)))  # and left early
    after = replaced_functions()
    assert {name for name in before if after[name] is not before[name]} == set()
    assert type(random._inst) is kind


def test_a_function_that_somebody_wraps_meanwhile_stays_wrapped(files: list[Path]) -> None:
    original, calls = random.random, []

    def wrapped() -> float:
        calls.append(1)
        return original()

    random.random = wrapped
    try:
        own = [v1.Resize((16, 16)), lambda image: (random.random(), image)[1], v1.ToTensor()]
        list(DataLoader(ImageFolder(files[0].parents[1], v1.Compose(own)), 4))
        assert len(calls) == 8
        assert random.random is wrapped
    finally:
        random.random = original


# ---- several views of one image


class Blur:
    """A step of one's own on a PIL image."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.point(lambda level: 255 - level)


class ManyViews(Own):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index]).convert("RGB")
        return [self.t(image) for _ in range(4)], index


@pytest.mark.parametrize("workers", [0, 1])
def test_views_with_a_step_of_ones_own_between_are_torchvisions(files: list[Path], workers: int) -> None:
    steps = [
        v1.Resize((20, 24)),
        v1.ColorJitter((1.2, 1.2)),
        Blur(),
        v1.Grayscale(3),
        v1.ToTensor(),
        v1.Normalize(0.5, 0.2),
    ]
    check_like_torch(lambda: ManyViews(files, steps), num_workers=workers)


def test_an_image_of_several_views_is_decoded_once(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdata.lazy import fill

    decoded: list[Any] = []
    plain = fill._decoded
    monkeypatch.setattr(fill, "_decoded", lambda source, view: decoded.append(view) or plain(source, view))
    epoch(DataLoader, ManyViews(files[:1], [v1.RandomResizedCrop(16), Blur(), v1.ToTensor()]))
    assert len(decoded) == 1  # as a whole: there are several transforms that could be given it


class Keeping(Own):
    """Keeps the images that it has opened."""

    def __getitem__(self, index: int) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        if index not in kept:
            kept[index] = Image.open(self.files[index]).convert("RGB")
        return self.t(kept[index]), index


def test_images_that_a_dataset_keeps_are_decoded_once(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdata.lazy import fill

    for number, path in enumerate(files):
        path.write_bytes(images.jpeg(200, 150, seed=number))  # smaller ones would be left to Pillow
    decoded: list[Any] = []
    plain = fill._decoded
    monkeypatch.setattr(fill, "_decoded", lambda source, view: decoded.append(view) or plain(source, view))
    loader = DataLoader(Keeping(files, SMALL), 4)
    assert same(list(loader), epoch(TORCHS, Own(files, SMALL)))
    assert len(decoded) == 8
    assert same(list(loader), epoch(TORCHS, Own(files, SMALL)))
    assert len(decoded) == 8


# ---- what a review found


def nothing_left(samples: list[Any]) -> Any:
    good = [sample for sample in samples if sample is not None]
    return torch_collate.default_collate(good) if good else None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_the_users_collate_function_makes_none_is_a_batch(files: list[Path], workers: int) -> None:
    files[3].write_bytes(png_with_a_flipped_bit())
    batches = [
        list(kind(Filtered(files, SMALL), 1, num_workers=workers, collate_fn=nothing_left))
        for kind in (DataLoader, TORCHS)
    ]
    assert [batch is None for batch in batches[0]] == [batch is None for batch in batches[1]]
    assert len(batches[0]) == 8


class Copying(Own):
    """Makes variants of its transform, and asks what it is."""

    def __getitem__(self, index: int) -> Any:
        variant = copy.copy(self.t)
        variant.transforms = [v1.Resize((4, 4)), v1.ToTensor()]
        resize = copy.copy(self.resize)
        resize.size = (5, 5)
        rebuilt = type(self.t)([v1.Resize((6, 6)), *self.t.transforms[1:]])
        image = Image.open(self.files[index]).convert("RGB")
        facts = (
            sorted(vars(self.t)),
            type(self.t).__name__,
            type(self.t).__module__,
            self.resize.size,
            variant == self.t,
        )
        return (
            variant(image),
            v1.functional.to_tensor(resize(image)),
            rebuilt(image),
            self.t(image),
            str((facts, variant == self.t)),
        )


@pytest.mark.parametrize("workers", [0, 1])
def test_transforms_are_copied_and_asked_like_the_users(files: list[Path], workers: int) -> None:
    check_like_torch(lambda: Copying(files, SMALL), num_workers=workers)


class Inverted(v1.Compose):
    def __call__(self, image: Any) -> Any:
        return 1 - super().__call__(image)


class OtherClass(Own):
    def __getitem__(self, index: int) -> Any:
        self.t.__class__ = Inverted if index % 2 else v1.Compose
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_class_counts_as_well(files: list[Path], workers: int) -> None:
    check_like_torch(lambda: OtherClass(files, SMALL), num_workers=workers)


class LooksForDamage(Own):
    way = "convert"

    def __getitem__(self, index: int) -> Any:
        try:
            image = Image.open(self.files[index])
            if self.way == "convert":
                image.convert("RGB")
            elif self.way == "load":
                image.load()
            else:
                return tuple(self.t(image.convert("RGB")).shape), index
        except OSError:
            return "damaged", index
        return "whole", index


class Loads(LooksForDamage):
    way = "load"


class AsksForShapes(LooksForDamage):
    way = "shape"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that nobody closes
@pytest.mark.parametrize("kind", [LooksForDamage, Loads, AsksForShapes])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_that_looks_for_damaged_images_finds_them(files: list[Path], kind: Any, workers: int) -> None:
    files[5].write_bytes(jpeg_with_a_stray_marker())
    (*_, second) = check_like_torch(lambda: kind(files, SMALL), num_workers=workers, collate_fn=list)
    assert second[1][0] == "damaged"


class Retrying(Own):
    """Takes another sample for one that is damaged, by chance."""

    def __getitem__(self, index: int) -> Any:
        drawn = random.random()
        try:
            return (*super().__getitem__(index), drawn)
        except OSError:
            return self[random.randrange(len(self))]


def test_draws_go_on_behind_a_batch_that_was_made_again(files: list[Path]) -> None:
    files[1].write_bytes(jpeg_with_a_stray_marker())
    check_like_torch(lambda: Retrying(files, SMALL))
    expected = random.random()
    epoch(TORCHS, Retrying(files, SMALL))
    assert random.random() == expected


@dataclass
class Held:
    images: Any


def held(samples: list[Any]) -> Any:
    return Held(torch.stack([image for image, _ in samples]))


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_in_the_users_objects_are_plain(files: list[Path], workers: int) -> None:
    ours, theirs = (
        list(kind(Own(files, SMALL), 4, num_workers=workers, collate_fn=held)) for kind in (DataLoader, TORCHS)
    )
    for mine_, expected in zip(ours, theirs, strict=True):
        assert type(mine_.images) is torch.Tensor
        assert torch.equal(mine_.images, expected.images)
