"""Worker processes that end, cannot send, or lose their parent: an error within seconds, nothing waits for ever."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from own_code import OwnCode

from fastdata import DataLoader

LIMIT_S = 60  # of everything here; a hang would be for ever
HELPERS = str(Path(__file__).parents[1] / "helpers")


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Ends a test that waits, with a traceback of where."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def read(loader: DataLoader[Any]) -> tuple[list[int], list[Exception]]:
    """Everything that comes from an epoch, by a caller who goes on after errors."""
    iterator, samples, errors = iter(loader), [], []
    while len(errors) < 4:
        try:
            samples += next(iterator)[1].tolist()
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - whatever comes
            errors.append(error)
    return samples, errors


# torch's handler of SIGCHLD raises wherever the main thread is: in a __del__, or in Thread.start(), where Python (until
# 3.13) then takes the new thread out of `threading._limbo` twice.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_caller_who_goes_on_after_a_worker_has_ended_never_waits_for_ever(folder: Path) -> None:
    for _ in range(8):
        samples, errors = read(DataLoader(OwnCode(folder, ends_at=13), 4, num_workers=2))
        assert errors, "the end of a worker is told"
        assert all(re.search(r"pid(\(s\))? \d+", str(error)) for error in errors)
        assert len(samples) == len(set(samples))


@pytest.mark.parametrize("after", range(6))
def test_a_killed_worker_is_named(folder: Path, after: int) -> None:
    loader = DataLoader(OwnCode(folder), 4, num_workers=2)
    iterator: Any = iter(loader)
    for _ in range(after):
        next(iterator)
    pid = iterator._workers[1].pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid(\(s\))? {pid}\)"):
        list(iterator)


def test_without_descriptors_the_limit_is_named(folder: Path) -> None:
    with pytest.raises(Exception, match=r"no file descriptors are left .*ulimit -n|Too many open files"):
        list(DataLoader(OwnCode(folder, few_files=True), 4, num_workers=1))


SMALL = """
import ctypes, os, sys
if sys.argv[3] == "torch's way":
    del os.memfd_create
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 16384 | (1 << 18), None):
    sys.exit(77)
if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k"):
    sys.exit(77)
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from own_code import OwnCode
from fastdata import DataLoader
import torch

class Large(OwnCode):
    def __getitem__(self, index):
        image, index = super().__getitem__(index)
        return torch.ones(3, 100, 100), index

try:
    print(len(list(DataLoader(Large(Path(sys.argv[1])), 4, num_workers=2, collate_fn=lambda samples: samples))))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("way", ["blocks", "torch's way"])
def test_with_too_little_shared_memory_blocks_serve_or_the_limit_is_named(folder: Path, way: str) -> None:
    command = [sys.executable, "-c", SMALL, str(folder), HELPERS, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S * 3, check=False)
    if done.returncode == 77:
        pytest.skip("mounting a small /dev/shm needs privileges")
    if way == "blocks":  # which /dev/shm does not limit
        assert done.stdout == "15\n", done.stderr
        return
    assert "no room in shared memory" in done.stdout, done.stderr
    assert "/dev/shm has 0.1 MB; give it more room (docker run --shm-size" in done.stdout


ORPHANS = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from own_code import OwnCode
from fastdata import DataLoader

def main():
    iterator = iter(DataLoader(OwnCode(Path(sys.argv[1])), 4, num_workers=2, multiprocessing_context=sys.argv[3]))
    if sys.argv[4] != "starting":
        next(iterator)
        next(iterator)
    if sys.argv[4] == "with a child that lives on" and os.fork() == 0:
        os.close(1)
        time.sleep(10)
        os._exit(0)
    print(*(worker.pid for worker in iterator._workers), flush=True)
    time.sleep(60)

if sys.argv[4] == "in another thread":
    threading.Thread(target=main).start()
else:
    main()
"""
WHEN = [("fork", "running"), ("fork", "in another thread"), ("spawn", "running"), ("spawn", "starting")]
WHEN += [("forkserver", "running"), ("forkserver", "starting"), ("forkserver", "with a child that lives on")]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux tells of the end of any process, others of some")
@pytest.mark.parametrize(("start", "when"), WHEN)
def test_workers_end_with_a_killed_main_process(folder: Path, start: str, when: str) -> None:
    command = [sys.executable, "-c", ORPHANS, str(folder), HELPERS, start, when]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as main:
        assert main.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in main.stdout.readline().split()]
        assert len(workers) == 2
        main.kill()
    until = time.monotonic() + (LIMIT_S if when == "starting" else 1)  # one that still imports notices behind that
    while any(_runs(worker) for worker in workers) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(_runs(worker) for worker in workers)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_queue_of_the_users_own_keeps_its_way() -> None:
    """What is no batch is not answered for."""
    from multiprocessing import get_context

    from fastdata.dataloader.worker_faults import _send_the_reason

    sent = get_context("spawn").Queue()
    _send_the_reason(sent, ValueError("not to be pickled"), "a message")
    assert sent.empty()
    assert torch.utils.data.get_worker_info() is None
