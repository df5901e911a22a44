"""Replaces torch's fetchers, multiprocessing's answer to a failed send, and the excepthook, in a worker process.

Nothing is taken back: the process ends with the epoch, or with its persistent workers.

Where torch has not begun to use a GPU, seeding a worker process notes from where it was called, with the lines of the
source.  `read_sources` reads them once in the training process, and not in every worker that is forked from it.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import queues
from types import FrameType
from typing import Any

import torch
from torch.utils.data import dataloader
from torch.utils.data._utils import collate, fetch, worker

__all__ = [
    "FETCHERS",
    "read_sources",
    "replace_fetcher",
    "replace_stacking",
    "send_errors_of_queues",
    "wrap_excepthook",
]

FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")

_SEEDING = (
    "multiprocessing.context",
    "multiprocessing.popen_fork",
    "multiprocessing.process",
    "torch._compile",
    "torch._dynamo.eval_frame",
    "torch.cuda",
    "torch.cuda.random",
    "torch.mtia",
    "torch.random",
    "torch.utils.data._utils.worker",
    "torch.utils.data.dataloader",
    "torch.xpu",
    "torch.xpu.random",
)  # modules whose functions are under way while torch's worker loop seeds its generators, above the caller of this


def read_sources() -> None:
    """Has Python keep the lines of code that seeding a worker process looks up."""
    for module in filter(None, map(sys.modules.get, _SEEDING)):
        linecache.getlines(module.__file__ or "")
    traceback.format_stack()


def replace_fetcher(name: str, replacement_for: Callable[[Any], Any]) -> None:
    """Replaces one of torch's fetcher classes, for the batches that a worker process sends."""
    original = getattr(fetch, name)
    ours = replacement_for(original)

    def make(*arguments: Any) -> Any:
        return (ours if _for_the_worker() else original)(*arguments)

    setattr(fetch, name, make)


def _for_the_worker() -> bool:
    """True if torch's worker loop makes a fetcher, and not a loader that the dataset or its functions use."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is worker._worker_loop.__code__:
            return True
        if frame.f_code is dataloader._SingleProcessDataLoaderIter.__init__.__code__:
            return False
        frame = frame.f_back
    return False


def replace_stacking(replacement_for: Callable[[Any], Any]) -> None:
    """Replaces what torch's default_collate does with tensors, unless a program has put a function of its own there."""
    present = collate.default_collate_fn_map.get(torch.Tensor)
    if getattr(present, "__wrapped__", present) is collate.collate_tensor_fn:
        collate.default_collate_fn_map[torch.Tensor] = replacement_for(present)


def send_errors_of_queues(send: Callable[[Any, Exception, Any], None]) -> None:
    """Has `send` called with (queue, error, message) for a message that a queue's thread could not send."""
    queues.Queue._on_queue_feeder_error = send  # type: ignore[attr-defined]


def wrap_excepthook(hook: Callable[[Callable[..., Any], Any, Any, Any], Any]) -> None:
    """Has `hook` called with the present excepthook and its arguments."""
    sys.excepthook = partial(hook, sys.excepthook)
