"""Drive one variant in a process of its own, and watch the cost of its whole process tree."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from fastdata.measuring.cpu_time import descendants_cpu_s, until_idle

__all__ = ["Failed", "Process", "evict", "tree_memory"]

TIMEOUT_S = 600
SAMPLE_S = 0.1
ENDS_IN_S = 5
WATCHED_S = 1.0
_LIBC = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A peer failed; the text says how."""


class Process:
    """A worker."""

    def __init__(self, python: Path, log: Path) -> None:
        script = Path(__file__).with_name("worker.py")
        self._log = log.open("w")
        environment = {**os.environ, "PYTHONPATH": str(script.parent), "PYTHONWARNINGS": "ignore"}
        self._child = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, args=(self._child.stdout,), daemon=True).start()
        self._tree = psutil.Process(self._child.pid)

    def _listen(self, output: IO[str]) -> None:
        for line in output:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, do: str, *arguments: Any, **told: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer.

        Raises:
            Failed: it raised an error, ended, or took more than `TIMEOUT_S`.
        """
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"do": do, "with": arguments, **told}) + "\n")
            self._child.stdin.flush()
            line = self._answers.get(timeout=TIMEOUT_S)
        except queue.Empty:
            raise Failed(f"{do}: not done after {TIMEOUT_S} s") from None
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(f"{do}: the process ended with status {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "problem" in answer:
            raise Failed(f"{do}: {answer['problem']}")
        return answer

    def measured(self, do: str, *arguments: Any) -> dict[str, Any]:
        """A command's answer with the CPU seconds of its process tree, until it is idle again."""
        before = self._cpu_s()
        answer = self.ask(do, *arguments)
        until_idle(self._cpu_s)
        return {**answer, "cpu_s": self._cpu_s() - before}

    def _cpu_s(self) -> float:
        """CPU seconds of the tree."""
        return float(self.ask("cpu")["seconds"]) + descendants_cpu_s(self._tree)

    def watched(self, do: str, *arguments: Any) -> dict[str, Any]:
        """A command's answer with the peak memory of its process tree; looking at it disturbs other measurements."""
        began = time.monotonic()
        with _peak(self._tree) as peak:
            answer = self.ask(do, *arguments)
            while time.monotonic() - began < WATCHED_S:  # or fast loaders would be seen at the end only
                self.ask("epoch")
        until_idle(self._cpu_s)
        return {**answer, "peak_bytes": peak[0]}

    def memory(self) -> int:
        """Bytes in use by the tree."""
        return tree_memory(self._tree)

    def end(self) -> None:
        """Ends it with everything that it started."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(ENDS_IN_S)
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._log.close()


def _family(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def tree_memory(root: psutil.Process) -> int:
    """Bytes of a process tree, pages shared by processes divided among them (PSS)."""
    total = 0
    for process in _family(root):
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
    return total


@contextmanager
def _peak(root: psutil.Process) -> Iterator[list[int]]:
    """The most memory of a tree, sampled by a thread."""
    most, stopped = [0], threading.Event()

    def watch() -> None:
        while not stopped.wait(SAMPLE_S):
            most[0] = max(most[0], tree_memory(root))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        stopped.set()
        watcher.join()
        most[0] = max(most[0], tree_memory(root))


def evict(folder: Path) -> float:
    """Asks the system to drop a folder's files from its cache; returns the share that it kept."""
    os.sync()
    paths = [path for path in folder.rglob("*") if path.is_file()]
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    sizes = [path.stat().st_size for path in paths]
    return sum(map(_cached_bytes, paths, sizes)) / max(1, sum(sizes))


def _cached_bytes(path: Path, size: int) -> int:
    """How much of a file is in memory, which mincore(2) knows."""
    if size == 0:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        if _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), pages) != 0:
            raise OSError(ctypes.get_errno(), "mincore failed")
        del first  # or the file could not be unmapped
        return mmap.PAGESIZE * sum(page & 1 for page in pages)
