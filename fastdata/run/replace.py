"""Replaces torch.utils.data.DataLoader by fastdata's class.

What takes the name is `StatelessDataLoader`: a subclass of torch's class and a parent of fastdata.DataLoader, so that
loaders of either kind are instances of `torch.utils.data.DataLoader`.  It is given the name and place of torch's class,
so that pickled loaders are torch's wherever nothing is replaced.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import Any

import torch.utils.data

from fastdata.dataloader import loader
from fastdata.run.report import RunReport
from fastdata.system.stack_level import users_level
from fastdata.system.switches import is_off

__all__ = ["replace_dataloader"]

_report = RunReport()  # of this process


def replace_dataloader(*, quiet: bool = False) -> None:
    """Replaces `torch.utils.data.DataLoader` in this process, as `fastdata run` does before a program starts.

    For notebooks, and for frameworks that make their loaders themselves (transformers' Trainer, timm's create_loader).
    Modules that have imported torch's class before are given ours instead.  Call it before loaders are made, and before
    frameworks are imported that derive classes from torch's: such loaders are no instances of what has its name
    afterwards, so that frameworks may not know them (one warning names the classes).  Harmless when repeated; with
    FASTDATA=0 in the environment it does nothing.

    Args:
        quiet: do not print which path each loader takes, nor the summary at exit.
    """
    if is_off():
        return
    ours, torchs = loader.StatelessDataLoader, torch.utils.data.dataloader
    replaced = next(each for each in ours.__mro__[1:] if each.__name__ == "DataLoader")
    if torchs.DataLoader is not ours:
        ours.__name__, ours.__qualname__, ours.__module__ = "DataLoader", "DataLoader", torchs.__name__
        torch.utils.data.DataLoader = torchs.DataLoader = ours  # type: ignore[misc]
        _warn_of_derived(replaced, ours)
    _rebind(replaced, ours)
    if not quiet and _report.observe not in loader.observers:
        loader.observers.append(_report.observe)


def _rebind(torchs: type[Any], ours: type[Any]) -> None:
    """Gives our class to the modules that have imported torch's."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("torch", "fastdata"):
            names = getattr(module, "__dict__", {})  # a program may have put anything among its modules
            for attribute in [key for key, value in list(names.items()) if value is torchs]:
                with suppress(Exception):  # a module may forbid it
                    setattr(module, attribute, ours)


def _warn_of_derived(torchs: type[Any], ours: type[Any]) -> None:
    derived = [f"{each.__module__}.{each.__qualname__}" for each in torchs.__subclasses__() if each is not ours]
    if derived:
        warnings.warn(
            f"{', '.join(sorted(derived))} were derived from torch's DataLoader before it was replaced: loaders of "
            "these classes stay torch's, and frameworks may not take them for DataLoaders any more; call "
            "fastdata.replace_dataloader() before they are imported",
            stacklevel=users_level(),
        )
