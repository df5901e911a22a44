"""A training loop short enough to read: `fit` and the training step in loop.py, every option in options.py.

    from fastdata.train import TrainOptions, fit

    result = fit(model, train_loader, val_loader, TrainOptions(epochs=10, lr=0.1, amp="bf16"))

`python -m fastdata.train` trains on an image folder or on shards; `torchrun` runs it on several devices and machines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdata.train.loop import Result, fit, train_epoch
    from fastdata.train.options import TrainOptions
    from fastdata.train.task import Task
    from fastdata.train.training import Training
    from fastdata.train.validation import evaluate

_HOMES = {
    "Result": "loop",
    "Task": "task",
    "TrainOptions": "options",
    "Training": "training",
    "evaluate": "validation",
    "fit": "loop",
    "train_epoch": "loop",
}

__all__ = ["Result", "Task", "TrainOptions", "Training", "evaluate", "fit", "train_epoch"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that the command can take care of Ctrl-C before torch comes."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastdata.train' has no attribute {name!r}")
    return getattr(import_module(f"fastdata.train.{_HOMES[name]}"), name)
