"""From a watched program, or a loader, to an observation: measures what remains once the program has stopped."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import torch

from fastdata.dataloader.explain import index_of
from fastdata.diagnosis.budget import Alarm, Budget, OverBudget
from fastdata.diagnosis.loader_facts import epoch_length, is_plain
from fastdata.diagnosis.loading import is_ours, loaders_to_try, measure_loading, restarts_workers, settings_of
from fastdata.diagnosis.loop_monitor import LoopMonitor
from fastdata.diagnosis.monitored_loader import UsedLoader
from fastdata.diagnosis.observation import Observation
from fastdata.diagnosis.samples import decoding_ms, encoded_jpegs, measure_samples
from fastdata.diagnosis.speedup_model import BUSY, cores_in_use
from fastdata.errors import in_words
from fastdata.measuring.cpu_use import load_now
from fastdata.order.random_states import GlobalStates
from fastdata.shards.open_images import slow_to_read
from fastdata.system.cpus import auto_threads

__all__ = ["examine_loader", "examine_watched"]

_ALONE, _CHANGED, _SAMPLES, _DECODING = 0.2, 0.15, 0.1, 0.05  # shares of the time
_OF_BUDGET = 0.5  # of the time that is left: with batches that do not count it is twice that


def examine_watched(watch: LoopMonitor, program: str, *, failure: str = "") -> Observation:
    """Observation of a program that has ended, with measurements of its loader alone.

    Args:
        watch: the monitor that has watched the program.
        program: name of the program.
        failure: reason in words if the program ended early; then its loader is not used any more.
    """
    seen = Observation(program=program, cpus=auto_threads(), limitations=watch.limitations, facts=watch.facts)
    if failure:
        seen.limitations.append(failure)
    seen.loaders = _loaders(watch.seen)
    examined = watch.examined
    if examined is None:
        seen.children = max(watch.started, len(psutil.Process().children(recursive=True)))
        return seen
    main = watch.main or examined
    seen.trains, seen.real, seen.first_batch_s = bool(main.trained), watch.real, main.first_batch_s
    if not seen.trains:
        seen.limitations.append("no backward pass was seen between the batches of a loader")
    if not failure and not watch.is_done:
        seen.limitations.append(
            f"the program ended after {main.batches} batches, too early for all measurements; take more epochs"
        )
    if failure:
        seen.dataset, seen.loader = main.dataset, main.settings
        seen.limitations.append("its loader alone, since the program did not come to its end")
        return seen
    if examined is not main:
        seen.limitations.append(
            f"{main.dataset} ({main.settings}) alone: of two loaders that feed each step, the other is waited for "
            "longer"
        )
    seen.restarts_in_each_step = examined.restarts_in_each_step
    _examine(seen, examined.loader, watch.seconds, watch.budget)
    return seen


def examine_loader(
    loader: Any, *, seconds: float = 20.0, program: str = "", budget: Budget | None = None
) -> Observation:
    """Measures a loader alone and returns the observation.

    Args:
        loader: a loader of fastdata or torch.
        seconds: approximate time for all measurements together.
        program: name of the program in the report.
        budget: time limit for the whole examination; None for no limit.
    """
    seen = Observation(program=program, cpus=auto_threads())
    seen.facts.torch_threads = torch.get_num_threads()
    budget = budget or Budget()
    budget.begin()
    _examine(seen, loader, seconds, budget)
    return seen


def _loaders(seen: list[UsedLoader]) -> list[dict[str, Any]]:
    """Iterated loaders as dicts; loaders that the program has let go of are counted as one if they are alike."""
    found: list[dict[str, Any]] = []
    gone: dict[tuple[str, str], dict[str, Any]] = {}
    for each in seen:
        told = {"dataset": each.dataset, "settings": each.settings, "batches": each.batches, "trained": each.trained}
        if each.loader is None and (like := gone.get((each.dataset, each.settings))) is not None:
            like["batches"] += each.batches
            like["trained"] += each.trained
            continue
        if each.loader is None:
            gone[each.dataset, each.settings] = told
        found.append(told)
    return found


def _examine(seen: Observation, loader: Any, seconds: float, budget: Budget) -> None:
    """Measures the loader alone, with changes, and its samples; notes what goes wrong or takes too long."""
    seconds = min(seconds, _OF_BUDGET * budget.left_s)
    seen.dataset, seen.loader = type(loader.dataset).__name__, settings_of(loader)
    seen.is_ours, seen.num_workers = is_ours(loader), int(loader.num_workers)
    seen.restarts_workers = restarts_workers(loader)
    with contextlib.suppress(TypeError, NotImplementedError):  # not all have a length
        seen.epoch_batches = len(loader)
    states = GlobalStates.now()
    try:
        if seen.real is not None and _may_wait_for_program(loader):
            seen.limitations.append("the loader alone: a stream in the program's own thread may wait for the program")
        else:
            work = partial(measure_loading, loader, seconds=_ALONE * seconds)
            seen.alone = _tried(seen, "the loader alone", work, budget)
        if seen.is_ours and (choice := loader._findings.choice) is not None:  # known once there was a batch
            seen.has_index = index_of(loader._route(), choice) is not None
        if seen.alone is not None:
            for key, (what, make) in _changes(seen, loader).items():
                work = partial(_measured_anew, make, seconds=_CHANGED * seconds, what=what)
                if (found := _tried(seen, what, work, budget)) is not None:
                    seen.changed[key] = found
        _tried(seen, "single samples", partial(_measure_samples, seen, loader, seconds), budget)
    finally:
        states.put_back()
        seen.load = load_now()
    root = getattr(loader.dataset, "root", None)
    if isinstance(root, str | os.PathLike):
        seen.slow_storage = slow_to_read(os.fspath(root)) or ""


def _may_wait_for_program(loader: Any) -> bool:
    """True for a stream without a known end in the caller's thread: the program's steps may be what feeds it."""
    is_stream = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    return is_stream and not loader.num_workers and math.isinf(epoch_length(loader.dataset))


def _measured_anew(make: Callable[[], Any], **options: Any) -> Any:
    return measure_loading(make(), **options)


def _measure_samples(seen: Observation, loader: Any, seconds: float) -> None:
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        seen.limitations.append("single samples of an iterable dataset")
        return
    seen.sample, paths = measure_samples(
        loader.dataset, loader.collate_fn, seconds=_SAMPLES * seconds, by_worker=loader.num_workers > 0
    )
    seen.decode_ms = decoding_ms(encoded_jpegs(paths), seconds=_DECODING * seconds)


def _tried(seen: Observation, what: str, work: Callable[[], Any], budget: Budget) -> Any:
    """Result of `work`; None if it fails, takes too long, or the user has interrupted it or earlier work."""
    if seen.is_interrupted:
        return None
    budget.phase = what
    alarm: Alarm | None = None
    try:
        if budget.is_past():
            raise OverBudget
        alarm = Alarm(budget.left_s, OverBudget)
        return work()
    except OverBudget:
        seen.limitations.append(budget.missed(what))
    except KeyboardInterrupt:
        seen.is_interrupted = True
        seen.limitations.append(f"{what}, and what would have followed: interrupted")
    except Exception as error:  # noqa: BLE001 - of the user's dataset
        seen.limitations.append(f"{what}: {in_words(error)}")
    finally:
        if alarm is not None:
            alarm.stop()
    return None


def _changes(seen: Observation, loader: Any) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Loaders to be compared with it, by the key of the advice, each with its name."""
    assert seen.alone is not None
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return {}  # which workers must divide among themselves
    if not is_plain(loader):
        seen.limitations.append(f"changes of the loader: {type(loader).__name__} has an __iter__ of its own")
        return {}
    found, cpus = loaders_to_try(loader), auto_threads()
    names = {"fastdata": "fastdata's loader", "backend": "backend='auto'", "workers": f"num_workers={cpus}"}
    if not seen.alone.verdict or seen.alone.verdict.kind == "not accelerated":
        found.pop("backend", None)
    if (cores_in_use(seen.alone) or 0.0) >= BUSY * cpus:
        found.pop("workers", None)
    elif seen.num_workers < cpus and "workers" not in found:
        seen.may_not_start_workers = True
        seen.limitations.append(
            f"{names['workers']}: worker processes would run the program anew, since they are not forked here"
        )
    return {key: (names[key], make) for key, make in found.items()}
