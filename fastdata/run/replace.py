"""Replaces torch.utils.data.DataLoader by fastdata's class.

What takes the name is `StatelessDataLoader`: a subclass of torch's class and a parent of fastdata.DataLoader, so that
loaders of either kind are instances of `torch.utils.data.DataLoader`.  It is given the name and place of torch's class,
so that pickled loaders are torch's wherever nothing is replaced.
"""

from __future__ import annotations

import torch.utils.data

from fastdata.dataloader import loader
from fastdata.run.report import Report

__all__ = ["replace"]

_report = Report()  # of this process


def replace(*, quiet: bool = False) -> None:
    """Replaces the DataLoader for every later import; harmless when repeated.

    Args:
        quiet: do not print which path each loader takes, nor the summary at exit.
    """
    ours, torchs = loader.StatelessDataLoader, torch.utils.data.dataloader
    if torchs.DataLoader is not ours:
        ours.__name__, ours.__qualname__, ours.__module__ = "DataLoader", "DataLoader", torchs.__name__
        torch.utils.data.DataLoader = torchs.DataLoader = ours  # type: ignore[misc]
    if not quiet and _report.observe not in loader.observers:
        loader.observers.append(_report.observe)
