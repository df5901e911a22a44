"""The native path from files to the batch: what it leaves over, what it refuses, whose threads it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import images
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from core_alone import decode, fill, load, of_files, view_of
from folders import changed_copy
from places import HELPERS
from torch.utils.data import ConcatDataset, Subset

from fastdata import DataLoader, DecodeError, ImageFolder, native
from fastdata.loaders import resample
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.sources.recognise import has_file_ranges
from fastdata.views.plan import RandomCrop
from fastdata.views.view import View, windows_of

SMALL = v1.Compose([v1.Resize((20, 24)), v1.RandomHorizontalFlip(), v1.ToTensor()])


@pytest.fixture
def mixed(folder: Path, tmp_path: Path) -> Path:
    """JPEGs among files that the core leaves to Pillow."""
    odd = {f"bear/{name}": data for name, data in images.odd_files().items()}
    return changed_copy(folder, tmp_path / "copy", odd)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batches_equal_those_of_pillow(mixed: Path, workers: int, layout: torch.memory_format) -> None:
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 4, "memory_format": layout}
    ours = DataLoader(ImageFolder(mixed, SMALL), num_workers=workers, backend="native", **options)
    reference = DataLoader(ImageFolder(mixed, SMALL), backend="pil", **options)
    for (image, label), (expected, expected_label) in zip(ours, reference, strict=True):
        assert torch.equal(image, expected)
        assert torch.equal(label, expected_label)
    assert ours.stats()["samples"] == len(ours.dataset)  # type: ignore[arg-type]


def test_views_do_not_depend_on_who_reads_the_files(folder: Path) -> None:
    """A source without file ranges goes through the interpreter, image by image."""

    class InMemory(ImageFolder):
        def read_encoded(self, index: int) -> bytes:
            return super().read_encoded(index)

    transform = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
    by_file, by_bytes = ImageFolder(folder, transform), InMemory(folder, transform)
    assert has_file_ranges(by_file)
    assert not has_file_ranges(by_bytes)
    pairs = zip(*(DataLoader(source, 5, seed=2, backend="native") for source in (by_file, by_bytes)), strict=True)
    assert all(torch.equal(a[0], b[0]) for a, b in pairs)


def test_subsets_and_concatenations_name_their_files(folder: Path) -> None:
    whole = ImageFolder(folder, SMALL)
    nested = ConcatDataset([Subset(whole, [30, 2]), whole])
    ours = DataLoader(nested, 6, seed=1, backend="native")
    reference = DataLoader(nested, 6, seed=1, backend="pil")
    assert all(torch.equal(a[0], b[0]) for a, b in zip(ours, reference, strict=True))


def test_a_missing_file_is_named(mixed: Path) -> None:
    dataset = ImageFolder(mixed, SMALL)
    os.remove(dataset.samples[2][0])
    with pytest.raises(DecodeError, match=r"apple/02\.jpg.*No such file"):
        list(DataLoader(dataset, 8, num_workers=2, backend="native"))


def test_a_file_with_endless_scans_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    data = images.saved(64, 64, progressive=True)
    last_scan = data[data.rfind(b"\xff\xda") : -2]
    (tmp_path / "a" / "bomb.jpg").write_bytes(data[:-2] + last_scan * 200 + data[-2:])
    with pytest.raises(DecodeError, match=r"bomb\.jpg.*more than 100 scans"):
        list(DataLoader(ImageFolder(tmp_path, SMALL), backend="native"))


def test_appended_bytes_do_not_hide_scans(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    data = images.saved(64, 64, progressive=True)
    last_scan = data[data.rfind(b"\xff\xda") : -2]
    bomb = data[:-2] + last_scan * 200 + data[-2:]
    (tmp_path / "a" / "bomb.jpg").write_bytes(bomb + images.saved(8, 8))
    with pytest.raises(DecodeError, match=r"bomb\.jpg.*more than 100 scans"):
        list(DataLoader(ImageFolder(tmp_path, SMALL), backend="native"))


REFUSED_THREADS = """
from core_alone import load
from fastdata import native
from fastdata.loaders import resample
pool = native.Pool(resample.exact_core()[0], 2)
assert load([{path!r}] * 4).statuses.tolist() == [native.Status.OK] * 4
assert load([{path!r}] * 4, pool=pool).statuses.tolist() == [native.Status.BAD_REQUEST] * 4
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the size of a stack is no limit to threads")
def test_threads_that_the_system_refuses_are_an_answer_not_a_crash(folder: Path) -> None:
    """No thread can have a stack of a thousand terabytes."""
    import resource

    program = REFUSED_THREADS.format(path=ImageFolder(folder).samples[0][0])
    size = 1 << 50
    if resource.getrlimit(resource.RLIMIT_STACK)[1] not in (resource.RLIM_INFINITY, size):
        pytest.skip("the size of stacks may not be raised here")
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(HELPERS)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (size, resource.RLIM_INFINITY)),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_range_outside_the_file_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123456789")
    loaded = load([str(path)] * 3 + [str(tmp_path)], offsets=[2, 8, 11, 0], lengths=[3, 3, -1, -1])
    unsupported, unreadable = native.Status.UNSUPPORTED, native.Status.UNREADABLE
    assert loaded.statuses.tolist() == [unsupported, unreadable, unreadable, unreadable]
    assert loaded.read_bytes[0] == 3
    assert "outside the file of 10 bytes" in loaded.reason(1)
    assert "directory" in loaded.reason(3)


def test_images_are_found_inside_a_larger_file(tmp_path: Path) -> None:
    first, second = images.jpeg(30, 20), images.jpeg(40, 50, seed=1)
    path = tmp_path / "many.bin"
    path.write_bytes(b"junk" + first + second)
    loaded = load([str(path)] * 2, offsets=[4, 4 + len(first)], lengths=[len(first), len(second)])
    assert not loaded.statuses.any()
    assert loaded.read_bytes.tolist() == [len(first), len(second)]
    assert loaded.read_s > 0
    assert loaded.decode_s > 0


def test_a_path_that_no_file_can_have_is_refused() -> None:
    assert load(["a\0b", "c"]).statuses.tolist() == [native.Status.BAD_REQUEST] * 2


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="a column of shape"):
        load(["a", "b"], offsets=[1])


@pytest.mark.parametrize(
    "change",
    [
        {"kept": np.ones(1, np.bool_)},
        {"given": np.zeros((2, 1, 4), np.int64)},
        {"given": np.zeros((2, 2, 5), np.int64)},
        {"indices": np.zeros((2, 2), np.int64)},
        {"windows": windows_of([View.whole(8, 8)])},
        {"windows": windows_of([View.whole(8, 8)] * 2)._replace(window_px=np.zeros((2, 1), np.int32))},
    ],
)
def test_columns_of_other_shapes_are_refused(change: dict[str, Any]) -> None:
    recipes = of_files(["a", "b"], np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="of shape"):
        fill(replace(recipes, **change))


def test_a_crop_larger_than_the_image_has_no_view(folder: Path) -> None:
    out = np.zeros((500, 500, 3), np.uint8)
    path = ImageFolder(folder).samples[0][0]
    assert fill(of_files([path], out), RandomCrop(size=(500, 500))).statuses == [native.Status.NO_VIEW]


THREADS_OF_AN_EPOCH = """
import contextlib, sys, time
from pathlib import Path
import torchvision.transforms as transforms
from fastdata import DataLoader, ImageFolder

def core_threads():
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return names.count("fastdata-core")

def become(number):  # a thread names itself once it runs, and the kernel lists a joined one for a moment longer
    for _ in range(1000):
        if core_threads() == number:
            return
        time.sleep(0.01)
    raise AssertionError(f"{core_threads()} threads, not {number}")

small = transforms.Compose([transforms.Resize((20, 24)), transforms.ToTensor()])
loader = DataLoader(ImageFolder(sys.argv[1], small), 4, num_workers=3, backend="native")
iterator = iter(loader)
next(iterator)
become(3)
del iterator
become(0)
for _ in loader:
    pass
become(0)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux to list threads")
def test_the_cores_threads_end_with_the_epoch(folder: Path) -> None:
    """In a process of its own: an error that an earlier test caught may still hold a loader and its threads."""
    command = [sys.executable, "-c", THREADS_OF_AN_EPOCH, str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_decodes_with_threads_of_its_own(folder: Path) -> None:
    core = resample.exact_core()[0]
    pool = native.Pool(core, 2)
    path = ImageFolder(folder).samples[0][0]
    assert not load([path] * 8, pool=pool).statuses.any()
    child = os.fork()
    if child == 0:
        os._exit(1 if load([path] * 8, pool=pool).statuses.any() else 0)
    assert os.waitpid(child, 0)[1] == 0


FORKED_AT_FIRST = """
import os, sys, threading, time
from core_alone import load
from fastdata.loaders import resample

resample.exact_core()
paths, columns = [sys.argv[1]], {"crcs": [int(sys.argv[2])]}
begin = threading.Barrier(2)
first = threading.Thread(target=lambda: (begin.wait(), load(paths, **columns)))
first.start()
begin.wait()
children = []
for _ in range(30):  # while the other thread makes what the first call makes
    child = os.fork()
    if child == 0:
        os._exit(0 if load(paths, **columns).statuses[0] == 0 else 1)
    children.append(child)
first.join()
until = time.monotonic() + 20
while children and time.monotonic() < until:
    children = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
    time.sleep(0.01)
for child in children:
    os.kill(child, 9)
sys.exit(f"{len(children)} children hang" if children else 0)
"""


def test_a_child_forked_during_the_first_checksum_has_its_own(folder: Path) -> None:
    path = ImageFolder(folder).samples[0][0]
    command = [sys.executable, "-c", FORKED_AT_FIRST, path, str(google_crc32c.value(Path(path).read_bytes()))]
    paths = os.pathsep.join([str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("threads", [0, 3])
def test_tasks_may_leave_tasks(threads: int) -> None:
    class Growing:
        def __init__(self) -> None:
            self.done: list[int] = []

        @property
        def tasks(self) -> list[Any]:
            return [lambda: [lambda: self.done.append(1), lambda: [lambda: self.done.append(2)]]]

        def finish(self) -> None:
            self.done.append(3)

        def result(self) -> list[int]:
            return self.done

    for done in OrderedJobs([Growing() for _ in range(5)], threads=threads, depth=2):
        assert sorted(done) == [1, 2, 3]
        assert done[-1] == 3


def test_a_view_outside_the_image_is_refused() -> None:
    with pytest.raises(AssertionError, match="bad request"):
        decode(images.jpeg(30, 20), view_of((0, 0, 31, 20)))
