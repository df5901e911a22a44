"""End, break, error, Ctrl-C, two iterators, fork, garbage collection, exit: nothing left running, nothing hangs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import images
import psutil
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, PipelineError

SMALL = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])


class Slow(torch.utils.data.Dataset[Any]):
    """A source that takes its time, and fails where told to."""

    transform = v1.Compose([v1.Resize((8, 8)), v1.PILToTensor()])

    def __init__(self, size: int = 64, *, seconds: float = 0.0, fails_at: int | None = None) -> None:
        self.size, self.seconds, self.fails_at = size, seconds, fails_at
        self.data = images.jpeg(40, 30)
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.size

    def read_encoded(self, index: int) -> bytes:
        self.reads.append(index)
        if index == self.fails_at:
            raise KeyError("the user's own mistake")
        time.sleep(self.seconds)
        return self.data

    def read_target(self, index: int) -> int:
        return index


def decode_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fastdata")]


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Any:
    assert decode_threads() == []
    yield
    gc.collect()
    assert decode_threads() == []


@pytest.fixture
def loader(folder: Path) -> DataLoader:
    return DataLoader(ImageFolder(folder, SMALL), 4, num_workers=3)


def test_nothing_starts_before_the_first_iteration(loader: DataLoader) -> None:
    assert decode_threads() == []
    iterator = iter(loader)
    assert len(decode_threads()) == 3
    del iterator


def test_threads_end_with_the_epoch(loader: DataLoader) -> None:
    iterator = iter(loader)
    assert len(list(iterator)) == len(loader)
    assert decode_threads() == []
    assert next(iterator, None) is None


def test_break_stops_the_threads_at_once(loader: DataLoader) -> None:
    for _ in loader:
        break
    assert decode_threads() == []


def test_an_exception_in_the_loop_stops_them_too(loader: DataLoader) -> None:
    def train() -> None:
        for _ in loader:
            raise RuntimeError("loss is NaN")

    with pytest.raises(RuntimeError, match="NaN"):
        train()
    gc.collect()
    assert decode_threads() == []


def test_a_half_used_iterator_in_a_cycle_is_collected(loader: DataLoader) -> None:
    holder: dict[str, Any] = {"iterator": iter(loader)}
    holder["self"] = holder
    next(holder["iterator"])
    del holder
    gc.collect()
    assert decode_threads() == []


def test_an_error_comes_at_its_place_and_ends_the_iteration() -> None:
    iterator = iter(DataLoader(Slow(fails_at=10), 4, num_workers=3))
    assert [next(iterator)[1].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(KeyError, match="own mistake"):
        next(iterator)
    assert decode_threads() == []
    assert next(iterator, None) is None


def test_an_error_of_the_sampler_comes_at_its_place() -> None:
    def sampler() -> Any:
        yield from range(9)
        raise ZeroDivisionError("in the sampler")

    class Broken:
        def __len__(self) -> int:
            return 20

        def __iter__(self) -> Any:
            return sampler()

    iterator = iter(DataLoader(Slow(), 4, sampler=Broken(), num_workers=2))
    assert len([next(iterator), next(iterator)]) == 2
    with pytest.raises(ZeroDivisionError):
        next(iterator)


def test_two_iterators_are_independent(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, SMALL), 4, num_workers=2, seed=1)
    pairs = list(zip(loader, DataLoader(loader.dataset, 4, num_workers=2, seed=1), strict=True))
    assert all(torch.equal(a[0], b[0]) for a, b in pairs)
    first, second = iter(loader), iter(loader)
    next(first)
    del first
    assert len(list(second)) == len(loader)


def test_timeout_is_raised_and_nothing_hangs() -> None:
    iterator = iter(DataLoader(Slow(seconds=1.5), 2, num_workers=1, timeout=0.2, backend="pil"))
    began = time.perf_counter()
    with pytest.raises(PipelineError, match=r"timed out after 0\.2 seconds"):
        next(iterator)
    assert time.perf_counter() - began < 1  # it does not wait for the read that hangs
    assert next(iterator, None) is None
    while decode_threads():  # which ends by itself here
        time.sleep(0.05)


def test_closing_from_another_thread_wakes_the_consumer() -> None:
    iterator = iter(DataLoader(Slow(seconds=0.5), 2, num_workers=1, backend="pil"))
    closing = threading.Timer(0.1, iterator.close)
    closing.start()
    with pytest.raises(PipelineError, match="closed by another thread"):
        next(iterator)
    closing.join()


def test_reading_ahead_is_bounded() -> None:
    dataset = Slow(200)
    iterator = iter(DataLoader(dataset, 4, num_workers=2, prefetch_factor=3, backend="pil"))
    next(iterator)
    time.sleep(0.3)
    assert len(dataset.reads) == 4 * (1 + 3)
    del iterator


def test_a_batch_the_caller_holds_is_never_overwritten(folder: Path) -> None:
    held, copies = [], []
    for batch_images, _ in DataLoader(ImageFolder(folder, SMALL), 4, num_workers=3):
        held.append(batch_images)
        copies.append(batch_images.clone())
    assert all(torch.equal(a, b) for a, b in zip(held, copies, strict=True))


def test_a_delivered_batch_is_not_kept_alive(loader: DataLoader) -> None:
    iterator = iter(loader)
    batch_images = next(iterator)[0]
    gone = weakref.ref(batch_images.untyped_storage())
    del batch_images
    next(iterator)
    gc.collect()
    assert gone() is None
    del iterator


def _count_batches(loader: DataLoader, answer: Any) -> None:
    answer.put(len(list(loader)))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_threads_of_its_own(loader: DataLoader) -> None:
    iterator = iter(loader)
    next(iterator)
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=_count_batches, args=(loader, answer))
    child.start()
    assert answer.get(timeout=30) == len(loader)
    child.join(timeout=30)
    assert child.exitcode == 0
    assert len(list(iterator)) == len(loader) - 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_inherited_iterator_is_refused_in_the_child(loader: DataLoader) -> None:
    iterator = iter(loader)
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except PipelineError as error:
            os._exit(0 if "another process" in str(error) else 2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del iterator


def run_script(body: str, folder: Path, *, interrupt_after_s: float | None = None) -> tuple[int, str]:
    """Runs a script in a process of its own; returns its exit code and stderr."""
    script = textwrap.dedent(f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import torch, torchvision.transforms as v1
        from torchvision.datasets import ImageFolder
        from fastdata import DataLoader
        transform = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
        loader = DataLoader(ImageFolder({str(folder)!r}, transform), 2, num_workers=3)
    """) + textwrap.dedent(body)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if interrupt_after_s is not None:
        assert process.stdout is not None
        process.stdout.readline()  # it says when it has begun
        time.sleep(interrupt_after_s)
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize(
    "body",
    [
        "it = iter(loader); next(it)",
        "it = iter(loader); next(it); it.me = it",
        "import threading; it = iter(loader); next(it); sys.exit(0)",
        "for batch in loader: break",
    ],
)
def test_the_interpreter_exits_cleanly(folder: Path, body: str) -> None:
    assert run_script(body, folder) == (0, "")


def test_ctrl_c_while_waiting_is_raised_soon(folder: Path) -> None:
    body = """
        class Slow(ImageFolder): pass
        import fastdata
        class Source(fastdata.ImageFolder):
            def read_encoded(self, index):
                time.sleep(0.3)
                return super().read_encoded(index)
        loader = DataLoader(Source(loader.dataset.root, transform), 30, num_workers=2)
        print("begun", flush=True)
        try:
            for batch in loader: pass
        except KeyboardInterrupt:
            import threading
            sys.exit(40 + sum(t.name.startswith("fastdata") for t in threading.enumerate()))
    """
    began = time.perf_counter()
    code, errors = run_script(body, folder, interrupt_after_s=0.8)
    assert (code, errors) == (40, "")
    assert time.perf_counter() - began < 40


def test_many_breaks_and_epochs_leave_nothing_behind(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, SMALL), 4, num_workers=4)
    process = psutil.Process()

    def use(times: int) -> None:
        for _ in range(times):
            for _ in loader:
                break
            list(loader)

    use(10)
    gc.collect()
    descriptors, resident = process.num_fds(), process.memory_info().rss
    use(40)
    gc.collect()
    assert process.num_fds() == descriptors
    assert process.memory_info().rss - resident < 24 << 20
