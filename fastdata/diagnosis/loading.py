"""Measures a loader alone, as it is and with changes, and clones it for that."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from fastdata.dataloader.arguments import OWN_ARGUMENTS
from fastdata.dataloader.loader import DataLoader, StatelessDataLoader
from fastdata.dataloader.verdict import asked_workers
from fastdata.diagnosis.loader_facts import is_plain
from fastdata.diagnosis.observation import Loading
from fastdata.diagnosis.step_timer import finish_device_work
from fastdata.measuring.cpu_use import CpuMeter
from fastdata.system.cpus import auto_threads

__all__ = [
    "PATIENCE_S",
    "changed_loader",
    "is_ours",
    "loaders_to_try",
    "may_start_workers",
    "measure_loading",
    "restarts_workers",
    "settings_of",
    "torchs_with",
]

_FEWEST_BATCHES = 3
PATIENCE_S = 20.0  # for worker processes that the program did not have: what they make may not come through to us
# Arguments that both classes keep as attributes; a batch sampler stands for four more.
_KEPT = (
    "num_workers",
    "collate_fn",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "pin_memory",
)


def is_ours(loader: Any) -> bool:
    """True for fastdata's own loaders."""
    return isinstance(loader, StatelessDataLoader)


def changed_loader(loader: Any, **changes: Any) -> Any:
    """A fastdata.DataLoader over the same dataset and batch sampler, with other arguments.

    Args:
        loader: torch's or ours, of a dataset with indices.
        changes: arguments that differ.
    """
    names = _KEPT + (OWN_ARGUMENTS if is_ours(loader) else ())
    arguments = {name: getattr(loader, name) for name in names}
    if is_ours(loader):
        arguments["num_workers"] = asked_workers(loader)
    if loader.batch_sampler is not None:
        arguments["batch_sampler"] = loader.batch_sampler
    else:
        arguments |= {"batch_size": loader.batch_size, "sampler": loader.sampler}
    arguments |= changes
    if arguments["num_workers"] == 0:
        arguments.update(prefetch_factor=None, multiprocessing_context=None)
    else:
        arguments["timeout"] = PATIENCE_S
    return DataLoader(loader.dataset, **arguments)


def torchs_with(loader: Any, **changes: Any) -> Any:
    """Torch's own loader over the same dataset and batch sampler, whatever has its name now, with other arguments."""
    torchs = next(
        each for each in type(loader).__mro__ if each.__name__ == "DataLoader" and each.__module__.startswith("torch.")
    )
    chosen = {"batch_sampler": loader.batch_sampler}
    if loader.batch_sampler is None:
        chosen = {"batch_size": None, "sampler": loader.sampler}
    kept = {
        name: getattr(loader, name)
        for name in ("collate_fn", "worker_init_fn", "multiprocessing_context", "generator", "pin_memory")
    }
    return torchs(loader.dataset, timeout=PATIENCE_S, **chosen, **kept, **changes)


def loaders_to_try(loader: Any) -> dict[str, Callable[[], Any]]:
    """Loaders to compare a program's own one with, by the key of the advice.

    Args:
        loader: torch's or ours; none for datasets without indices, which workers must divide among themselves, or for
            loaders with an `__iter__` of their own.
    """
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) or not is_plain(loader):
        return {}
    found: dict[str, Callable[[], Any]] = {}
    if not is_ours(loader):
        found["fastdata"] = partial(changed_loader, loader)
    elif loader.backend != "auto":
        found["backend"] = partial(changed_loader, loader, backend="auto")
    cpus = auto_threads()
    if loader.num_workers < cpus and may_start_workers(loader):
        found["workers"] = partial(changed_loader if is_ours(loader) else torchs_with, loader, num_workers=cpus)
    return found


def may_start_workers(loader: Any) -> bool:
    """False where worker processes would run the program anew, which was not written for that.

    Other start methods than fork import the main program in each process.  One that has no worker processes seldom asks
    whether `__name__ == "__main__"`, and would train there once more.
    """
    if loader.num_workers or (is_ours(loader) and not loader._route().by_torchs_code):
        return True
    given = getattr(loader, "multiprocessing_context", None) or multiprocessing.get_context()
    return bool(given.get_start_method() == "fork")


def restarts_workers(loader: Any) -> bool:
    """True for loaders whose worker processes end with each epoch; the threads of ours start in no time."""
    by_processes = loader.num_workers > 0 and not (is_ours(loader) and not loader._route().by_torchs_code)
    return by_processes and not loader.persistent_workers


def settings_of(loader: Any) -> str:
    """The arguments that decide the speed, as they would be written."""
    batch_size = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
    parts = [f"batch_size={batch_size}", f"num_workers={loader.num_workers}"]
    if is_ours(loader):
        parts += [f"backend={loader.backend!r}"]
    parts += [f"{name}=True" for name in ("pin_memory", "persistent_workers") if getattr(loader, name, False)]
    return ", ".join(parts)


def measure_loading(loader: Any, *, seconds: float, what: str = "") -> Loading:
    """Loads batches and throws them away.

    The first ones, which workers may have ready together, are not counted; where an epoch is too short for that, whole
    epochs are.

    Args:
        loader: the loader.
        seconds: time for the batches that count, and as much at most for those before.
        what: description of what was changed; "" for nothing.
    """
    warm_up = max(1, int(getattr(loader, "num_workers", 0) or 0))
    with suppress(TypeError):
        if len(loader) <= 2 * warm_up + _FEWEST_BATCHES:
            warm_up = 0
    stages_before, began, meter = _stages(loader), time.perf_counter(), CpuMeter()
    counted = images = skipped = 0
    most = int(getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size or 0)
    deadline = math.inf if warm_up else began + seconds
    latest, epoch_began, first_s = began, began, math.nan
    while time.perf_counter() < deadline or counted < _FEWEST_BATCHES:
        before = counted + skipped
        for batch in loader:
            latest = time.perf_counter()
            first_s = latest - epoch_began if math.isnan(first_s) else first_s
            if skipped < warm_up:
                skipped += 1
                if skipped == warm_up or latest - began > seconds:
                    warm_up, stages_before = skipped, _stages(loader)
                    began, meter, deadline = latest, CpuMeter(), latest + seconds
                continue
            counted += 1
            images += _size(batch, most)
            if latest > deadline and counted >= _FEWEST_BATCHES:
                break
        if counted + skipped == before:  # an epoch of nothing
            break
    if getattr(loader, "device", None) is not None:  # batches are made on it
        finish_device_work()
        latest = time.perf_counter()
    total_s, (own, others) = max(1e-9, latest - began), meter.use()
    stages = {name: value - stages_before.get(name, 0.0) for name, value in _stages(loader).items()}
    return Loading(
        what=what,
        batches=counted,
        batch_s=total_s / max(1, counted),
        images_per_s=images / total_s if images else math.nan,
        cores=own,
        others=others,
        verdict=loader.verdict() if is_ours(loader) else None,
        stage_s={name: value / max(1, counted) for name, value in stages.items() if value > 0},
        first_s=first_s,
    )


def _stages(loader: Any) -> dict[str, float]:
    return dict(loader.stats()["stage_s"]) if is_ours(loader) else {}


def _size(batch: Any, most: int) -> int:
    """Samples in a batch of at most so many (0: of any number); views of one sample may have been put together."""
    size = next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), most)
    return min(size, most) if most else size
