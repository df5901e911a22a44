"""Replaces torch.utils.data.DataLoader by fastdata's class.

fastdata's class is a subclass of torch's, so loaders remain instances of what every module imported, and frameworks
that make a loader again from `type(loader)` or from `torch.utils.data.DataLoader` make one of fastdata's.
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
    torch.utils.data.DataLoader = loader.DataLoader  # type: ignore[misc]
    torch.utils.data.dataloader.DataLoader = loader.DataLoader  # type: ignore[misc]
    if not quiet and _report.observe not in loader.observers:
        loader.observers.append(_report.observe)
