"""End, break, error, Ctrl-C, two iterators, fork, garbage collection, exit: nothing left running, nothing hangs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
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

from fastdata import DataLoader, DecodeError, PipelineError

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


def holders() -> list[str]:
    """What refers to the iterators whose threads still run."""
    found = [each for each in gc.get_objects() if type(each).__name__ in ("OrderedJobs", "MultiProcessIterator")]
    return [
        f"{type(each).__name__} by {type(by)}" for each in found for by in gc.get_referrers(each) if by is not found
    ]


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Any:
    sys.last_type = sys.last_value = sys.last_traceback = None  # pytest's, of a test that failed: it holds iterators
    gc.collect()  # a test that keeps an error also keeps the frames that it came through
    deadline = time.monotonic() + 20
    while decode_threads() and time.monotonic() < deadline:  # of another file's test, on their way to the end
        time.sleep(0.01)
    assert decode_threads() == [], f"they are held by {holders()}"
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


def _all_but_errors(iterator: Any) -> list[Any]:
    """Labels of each batch, in the place of one that failed its error."""
    found: list[Any] = []
    while True:
        try:
            found.append(next(iterator)[1].tolist())
        except StopIteration:
            return found
        except Exception as error:  # noqa: BLE001 - whatever it is
            found.append(type(error))


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("backend", ["native", "pil", "dali"])
def test_an_error_comes_at_its_place_and_the_next_batch_follows_as_from_torch(backend: str, workers: int) -> None:
    dataset = Slow(22, fails_at=10)
    ours = _all_but_errors(iter(DataLoader(dataset, 4, num_workers=workers, backend=backend)))
    assert ours == [[0, 1, 2, 3], [4, 5, 6, 7], KeyError, [12, 13, 14, 15], [16, 17, 18, 19], [20, 21]]


class Failing(torch.utils.data.Dataset[Any]):
    """No image dataset, so that it takes torch's path; fails in the batches from 8 and from 12 on."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index in (10, 12):
            raise KeyError("the user's own mistake")
        return index, index


@pytest.mark.filterwarnings("ignore:the order continues exactly")
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"device": "cpu"}, {"progress": True}])
def test_on_torchs_path_too_and_a_state_counts_the_batches_that_failed(options: dict[str, Any]) -> None:
    def loader() -> DataLoader:
        return DataLoader(Failing(), 4, **options)

    torchs = torch.utils.data.DataLoader(Failing(), 4, num_workers=options.get("num_workers", 0))
    expected = _all_but_errors(iter(torchs))
    assert _all_but_errors(iter(loader())) == expected
    stopped = loader()
    iterator = iter(stopped)
    with pytest.raises(KeyError):
        [next(iterator) for _ in range(3)]
    with pytest.raises(KeyError):
        next(iterator)
    assert stopped.state_dict()["delivered"] == 8  # the failed ones are tried again by whoever resumes here
    assert next(iterator)[1].tolist() == [16, 17, 18, 19]
    assert stopped.state_dict()["delivered"] == 20
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    assert [batch[1].tolist() for batch in resumed] == [[20, 21]]


def test_who_drops_an_iterator_after_an_error_leaves_nothing_running() -> None:
    iterator = iter(DataLoader(Slow(fails_at=10), 4, num_workers=3))
    errors = [each for each in (_error_of(iterator) for _ in range(3)) if each is not None]
    assert errors == ["the user's own mistake"]
    del iterator
    gc.collect()
    assert decode_threads() == []


def _error_of(iterator: Any) -> Any:
    try:
        next(iterator)
    except KeyError as error:
        return error.args[0]


@pytest.mark.parametrize("backend", ["native", "pil"])
def test_threads_end_with_an_error_without_waiting_for_the_garbage_collector(
    folder: Path, tmp_path: Path, backend: str
) -> None:
    shutil.copytree(folder, tmp_path / "own")
    dataset = ImageFolder(tmp_path / "own", SMALL)
    Path(dataset.samples[5][0]).unlink()
    gc.collect()
    gc.disable()
    try:
        try:
            list(DataLoader(dataset, 4, num_workers=2, backend=backend))
        except DecodeError:
            caught = True
        assert caught
        assert decode_threads() == []
    finally:
        gc.enable()


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


class Hanging(Slow):
    """A source whose reads, and transforms, come back when they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self.released = threading.Event(), threading.Event()

    def read_encoded(self, index: int) -> bytes:
        self.hangs.set()
        self.released.wait()
        return super().read_encoded(index)


def _wait_for_the_end_of_threads() -> None:
    while decode_threads():  # pytest's timeout is the limit
        time.sleep(0.02)


def test_timeout_is_raised_and_nothing_hangs() -> None:
    dataset = Hanging()
    iterator = iter(DataLoader(dataset, 2, num_workers=1, timeout=0.2, backend="pil"))
    with pytest.raises(PipelineError, match=r"timed out after 0\.2 seconds"):
        next(iterator)  # it does not wait for the read that hangs
    assert decode_threads() != []
    assert next(iterator, None) is None
    dataset.released.set()
    _wait_for_the_end_of_threads()


def test_dropping_an_iterator_does_not_wait_for_a_read_that_hangs() -> None:
    dataset = Hanging()
    iterator = iter(DataLoader(dataset, 2, num_workers=1, backend="pil"))
    dataset.hangs.wait()
    del iterator
    assert decode_threads() != []
    dataset.released.set()
    _wait_for_the_end_of_threads()


_HANGS = """
#include <unistd.h>
#include <sys/syscall.h>
static ssize_t reading(int file, void *to, size_t bytes, off_t offset) {
    while (bytes == 12345)
        pause();
    return syscall(SYS_pread64, file, to, bytes, offset);
}
ssize_t pread(int file, void *to, size_t bytes, off_t offset) { return reading(file, to, bytes, offset); }
ssize_t pread64(int file, void *to, size_t bytes, off_t offset) { return reading(file, to, bytes, offset); }
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="puts a function before the system's as Linux does")
def test_the_interpreter_ends_after_a_timeout_though_the_cores_read_still_hangs(tmp_path: Path) -> None:
    (tmp_path / "hangs.c").write_text(_HANGS)
    library = tmp_path / "hangs.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "hangs.c"], check=True)
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "set" / "one").mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / "one" / name).write_bytes(images.jpeg(40, 30).ljust(12345, b"\0"))
    body = """
        loader = DataLoader(loader.dataset, 2, num_workers=2, backend="native", timeout=0.5)
        try:
            next(iter(loader))
        except RuntimeError as error:
            sys.exit(40 + ("timed out" in str(error)))
    """
    code, errors = run_script(body, tmp_path / "set", preloaded=library)
    assert (code, errors) == (41, "")


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
    while len(dataset.reads) < 4 * (1 + 3):  # pytest's timeout is the limit
        time.sleep(0.02)
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
    assert answer.get(timeout=100) == len(loader)
    child.join(timeout=100)
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


def run_script(
    body: str, folder: Path, *, interrupt_after_s: float | None = None, preloaded: Path | None = None
) -> tuple[int, str]:
    """Runs a script in a process of its own; returns its exit code and stderr."""
    script = textwrap.dedent(f"""
        import signal, sys, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        import torch, torchvision.transforms as v1
        from torchvision.datasets import ImageFolder
        from fastdata import DataLoader
        transform = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
        loader = DataLoader(ImageFolder({str(folder)!r}, transform), 2, num_workers=3)
    """) + textwrap.dedent(body)
    environment = {**os.environ, "LD_PRELOAD": str(preloaded)} if preloaded is not None else None
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if interrupt_after_s is not None:
        assert process.stdout is not None
        process.stdout.readline()  # it says when it has begun
        time.sleep(interrupt_after_s)
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=110)
    return process.returncode, errors


@pytest.mark.slow
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


@pytest.mark.slow
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
            while any(t.name.startswith("fastdata") for t in threading.enumerate()):
                time.sleep(0.05)
            sys.exit(40)
    """
    assert run_script(body, folder, interrupt_after_s=0.8) == (40, "")


def test_threads_that_share_an_iterator_take_turns(folder: Path) -> None:
    iterator = iter(DataLoader(Slow(200), 2, num_workers=3))
    labels: list[int] = []

    def take() -> None:
        for _, found in iterator:
            labels.extend(found.tolist())

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(labels) == list(range(200))
    assert len(iterator._record.batches.sizes) == iterator._record.delivered_batches == 100


@pytest.mark.slow
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
