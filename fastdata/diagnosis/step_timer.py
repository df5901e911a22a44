"""Notes when a step's parts begin and end: the backward pass and the optimiser's update."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from fastdata.diagnosis.observation import Step
from fastdata.diagnosis.replacing import replace
from fastdata.system import cuda

__all__ = ["Marks", "finish_device_work"]


class Marks:
    """Times of the parts of the step that runs.

    Host times: on a device that computes in the background they say when work was given to it.  There events tell how
    long the device took: one that waits for data reaches the first when the batch is delivered, a busy one when it has
    done what came before; the second when it has done all that the step gave it.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.delivered_at: float | None = None  # when the batch was given to the program
        self._backward_began: float | None = None
        self._backward_s = self._update_s = 0.0
        self._depth = 0
        self._backward_ended = 0.0
        self._delivered: Any = None  # the event
        self.backward_in: int | None = None  # the thread of the latest backward pass
        self.saw_anomaly_mode = False  # around a backward pass
        self.trained: list[torch.optim.Optimizer] = []  # that made an update

    @property
    def trains(self) -> bool:
        """True if there was a backward pass or an update since the batch was delivered."""
        return self._backward_began is not None or self._update_s > 0

    def begin(self, delivered_at: float) -> None:
        """Begins a step: the program has its batch."""
        self._delivered = _recorded()
        self.delivered_at, self._backward_began, self._backward_s, self._update_s = delivered_at, None, 0.0, 0.0

    def end(self, asked_at: float, wait_s: float) -> Step:
        """Ends a step, when the program asks for the next batch, and returns its times."""
        assert self.delivered_at is not None
        busy_s = asked_at - self.delivered_at
        forward_s = (self._backward_began if self._backward_began is not None else asked_at) - self.delivered_at
        if self._backward_began is None:
            forward_s -= self._update_s
        rest_s = max(0.0, busy_s - forward_s - self._backward_s - self._update_s)
        self.delivered_at = None
        events = (self._delivered, _recorded()) if self._delivered is not None else ()
        return Step(wait_s, max(0.0, forward_s), self._backward_s, self._update_s, rest_s, events)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Notes all backward passes and updates of the process until the end of the block."""
        starts: list[float] = []
        before = torch_optimizer.register_optimizer_step_pre_hook(
            lambda optimizer, *_: self._begin_update(optimizer, starts)
        )
        after = torch_optimizer.register_optimizer_step_post_hook(lambda *_: self._end_update(starts))
        with ExitStack() as stack:
            stack.callback(after.remove)
            stack.callback(before.remove)
            replace(stack, torch.autograd, "backward", self._noting_backward)
            yield

    def _noting_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def noted(*tensors: Any, **options: Any) -> Any:
            began = self._clock()
            self.saw_anomaly_mode |= torch.is_anomaly_enabled()
            self.backward_in = threading.get_ident()
            if self._backward_began is None:
                self._backward_began = began
            self._depth += 1  # one may be called in another
            try:
                return backward(*tensors, **options)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._backward_ended = self._clock()
                    self._backward_s += self._backward_ended - began

        return noted

    def _begin_update(self, optimizer: torch.optim.Optimizer, starts: list[float]) -> None:
        if not any(optimizer is known for known in self.trained):
            self.trained.append(optimizer)
        starts.append(self._clock())

    def _end_update(self, starts: list[float]) -> None:
        if starts:
            # A closure that step() was given has done the forward and the backward pass by then, as Lightning's does.
            self._update_s += self._clock() - max(starts.pop(), self._backward_ended)


def _recorded() -> Any:
    """A CUDA event, which is reached when the device has done what it was given; None without one."""
    if not (cuda.is_available() and cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return None
    return cuda.recorded_event(cuda.current_stream(), timed=True)


def finish_device_work() -> None:
    """Waits for what the device still has to do."""
    if cuda.is_available():
        if cuda.is_initialized():  # type: ignore[no-untyped-call]
            cuda.synchronize()
    elif torch.accelerator.is_available():
        torch.accelerator.synchronize()
