"""Batches of a watched program: its loader's next one, one that was preloaded, or one of another loader.

Preloading gives the time of computing alone: the loader's next batches are read ahead, the loader comes to rest, and
then the program gets them, in their order.  Nothing is trained that would not be trained without the doctor, and no
epoch gets longer or shorter.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import psutil
import torch
from torch.utils._pytree import tree_leaves

from fastdata.diagnosis.monitored_loader import MonitoredIterator
from fastdata.diagnosis.step_timer import finish_device_work
from fastdata.errors import in_words
from fastdata.measuring.cpu_time import tree_cpu_s
from fastdata.order.random_states import GlobalStates
from fastdata.system import cuda
from fastdata.system.cpus import local_processes

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["Delivery"]

_FEWEST_AHEAD = 3  # batches, however large they are and however long they take; but not for what processes run out of
_MOST_OF_MEMORY = 0.25  # of what is available to a process, for preloaded batches
_MOST_BYTES = 2 << 30
_MOST_OF_FILES = 0.5  # of the files that a process may have open: worker processes send one with each tensor
_SHARED = "/dev/shm"
_REST_S, _RESTS = 0.1, 0.15  # how long the process tree is looked at, and the cores that it uses at most when at rest


class Delivery:
    """Source of the batches that a program gets.

    Attributes:
        change: applied to each batch while a change is tried; None for nothing.
        failure: exception that `change` raised; the program got its batch as it was.
        is_ready: True if the latest batch was preloaded.
        latest: the loader's latest batch that was delivered, as it was; None before there is one.
        reads_ahead: False for a loader whose next batches may depend on the program: one that loads in the program's
            own thread, or takes numbers from the program's random generators.
        late_s: seconds that the device took to finish its work before batches were preloaded, all together.

    Args:
        inside: `inside.inside` is True while a loader is iterated that is not the program's.
        limitations: list to which the reasons are added if a batch could not be delivered.
        seconds: time for one preloading at most, and as much again until the loader is at rest.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        inside: threading.local,
        limitations: list[str],
        *,
        seconds: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._inside, self._limitations, self._seconds, self._clock = inside, limitations, seconds, clock
        self.change: Callable[[Any], Any] | None = None
        self.failure: Exception | None = None
        self.is_ready = False
        self.late_s = 0.0
        self.reads_ahead = True
        self._wanted = 0  # batches that are still to be preloaded and delivered
        self.latest: Any = None
        self._other: Generator[Any, None, None] | None = None

    def preload(self, batches: int) -> None:
        """Preloads so many of the loader's next batches before they are delivered; 0: no more."""
        self._wanted = batches if self.reads_ahead else 0

    @property
    def is_preloading(self) -> bool:
        """True while batches are preloaded before they are delivered."""
        return self._wanted > 0

    def feed_from(self, batches: Generator[Any, None, None] | None) -> None:
        """Delivers these batches from now on; None: the program's own."""
        if self._other is not None:
            self._other.close()
        self._other = batches

    @property
    def is_fed(self) -> bool:
        """True while batches of another loader come."""
        return self._other is not None

    def next(self, iterator: MonitoredIterator) -> Any:
        """The next batch for the program.

        Raises:
            Exception: the loader's own, StopIteration included.
        """
        self.is_ready = False
        if self._other is not None:
            self._inside.inside = True
            try:
                batch = next(self._other)
                iterator.turn.is_fed = True
                return batch
            except Exception as error:  # noqa: BLE001 - the program knows nothing of this loader
                self._other = None
                self._limitations.append(f"another loader could not be tried: {in_words(error)}")
            finally:
                self._inside.inside = False
        if self._wanted > 0 and not iterator.ahead and iterator.failure is None:
            self._preload(iterator)
        self.is_ready = bool(iterator.ahead)
        self.latest = iterator.following()
        self._wanted = max(0, self._wanted - 1)
        return self._changed(self.latest)

    def _preload(self, iterator: MonitoredIterator) -> None:
        began = self._clock()
        finish_device_work()  # which belongs to the step before
        self.late_s += self._clock() - began
        room = min(_MOST_BYTES, _MOST_OF_MEMORY * psutil.virtual_memory().available / max(1, local_processes()))
        began, before, taken = self._clock(), _resident_bytes(), 0
        drawn = GlobalStates.now()
        while len(iterator.ahead) < self._wanted and iterator.read_ahead():
            batch = iterator.ahead[-1]
            if len(iterator.ahead) == 1 and not drawn.are_equal(GlobalStates.now()):  # the batch that was asked for
                self._limitations.append(
                    "no batches were preloaded: the loader draws from the program's random generators; computing was "
                    "timed beside the loader"
                )
                self._wanted, self.reads_ahead = 0, False
                return
            if len(iterator.ahead) == 1 and _memory_of(batch) & _memory_of(self.latest):
                self._limitations.append(
                    "no batches were preloaded: the loader makes each one in the memory of the last"
                )
                self._wanted = 0
                return
            taken += sum(tensor.nbytes for tensor in _tensors(batch))
            is_much = max(taken, _resident_bytes() - before) > room or self._clock() - began > self._seconds
            if _is_scarce(batch) or (is_much and len(iterator.ahead) >= _FEWEST_AHEAD):
                break
        _wait_for_rest(self._seconds)

    def _changed(self, batch: Any) -> Any:
        if self.change is None or self.failure is not None:
            return batch
        try:
            return self.change(batch)
        except Exception as error:  # noqa: BLE001 - a batch may be anything
            self.failure = error
            return batch


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def _memory_of(batch: Any) -> set[int]:
    """Addresses of the memory of a batch's tensors."""
    return {tensor.untyped_storage().data_ptr() for tensor in _tensors(batch) if tensor.numel()}


def _resident_bytes() -> int:
    """Memory that this process has, on the device, too."""
    return int(psutil.Process().memory_info().rss) + (cuda.memory_allocated() if cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]


def _is_scarce(batch: Any) -> bool:
    """True if another batch like this one might take the last open files, or the last shared memory, of a program."""
    with suppress(OSError, AttributeError):  # other systems do not tell
        most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(os.listdir("/proc/self/fd")) > _MOST_OF_FILES * most_files:
            return True
    shared = sum(tensor.nbytes for tensor in _tensors(batch) if tensor.untyped_storage().is_shared())
    in_making = 2 + 3 * len(multiprocessing.active_children())  # as many may be on their way
    with suppress(OSError):
        return shared > 0 and shutil.disk_usage(_SHARED).free < in_making * shared
    return False


def _wait_for_rest(at_most_s: float) -> None:
    """Waits until threads and worker processes have filled their queues and compute no more."""
    deadline = time.perf_counter() + at_most_s
    while True:
        used, began = tree_cpu_s(), time.perf_counter()
        time.sleep(_REST_S)
        is_at_rest = tree_cpu_s() - used < _RESTS * (time.perf_counter() - began)
        if is_at_rest or time.perf_counter() > deadline:
            return
