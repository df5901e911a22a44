"""Replaces torch's fetchers, multiprocessing's answer to a failed send, and the excepthook, in a worker process.

Nothing is taken back: the process ends with the epoch, or with its persistent workers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import queues
from typing import Any

import torch
from torch.utils.data._utils import collate, fetch

__all__ = ["FETCHERS", "replace_fetcher", "replace_stacking", "send_errors_of_queues", "wrap_excepthook"]

FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")


def replace_fetcher(name: str, replacement_for: Callable[[Any], Any]) -> None:
    """Replaces one of torch's fetcher classes, which make the batches of a worker process."""
    setattr(fetch, name, replacement_for(getattr(fetch, name)))


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
