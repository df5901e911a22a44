"""From a watched program, or a loader, to an observation: measures what remains once the program has stopped."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from fastdata.dataloader.explain import index_of
from fastdata.diagnosis.budget import Alarm, Budget, OverBudget
from fastdata.diagnosis.loader_facts import epoch_length, is_plain
from fastdata.diagnosis.loading import (
    augments_batches,
    changed_loader,
    is_ours,
    loaders_to_try,
    measure_loading,
    restarts_workers,
    settings_of,
    torchs_with,
    wait_at_pace,
)
from fastdata.diagnosis.loop_monitor import LoopMonitor
from fastdata.diagnosis.monitored_loader import UsedLoader
from fastdata.diagnosis.observation import Loading, Observation
from fastdata.diagnosis.samples import decoding_ms, encoded_jpegs, measure_samples
from fastdata.diagnosis.speedup_model import BUSY, cores_in_use, step_seconds, wait_share
from fastdata.errors import in_words
from fastdata.measuring.cpu_use import load_now
from fastdata.order.random_states import GlobalStates
from fastdata.shards.open_images import slow_to_read
from fastdata.system.cpus import auto_threads, local_processes

__all__ = ["examine_loader", "examine_watched"]

_ALONE, _CHANGED, _SAMPLES, _DECODING = 0.2, 0.15, 0.1, 0.05  # shares of the time
_OF_BUDGET = 0.5  # of the time that is left: with batches that do not count and the program's own pace it is twice that
_PACED = 0.15  # the same, for each depth
_DEEPER = 4  # times as many batches ahead
_WAITS, _KEEPS_UP = 0.05, 0.9  # shares of a step: waiting that is worth a look, and loading that should hide behind it
_RANKS_WAIT_S = 10.0


def examine_watched(watch: LoopMonitor, program: str, *, failure: str = "") -> Observation:
    """Observation of a program that has ended, with measurements of its loader alone.

    Args:
        watch: the monitor that has watched the program.
        program: name of the program.
        failure: reason in words if the program ended early; then its loader is not used any more.
    """
    seen = Observation(program=program, cpus=auto_threads(), limitations=watch.limitations)
    if failure:
        seen.limitations.append(failure)
    seen.loaders = _loaders(watch.seen)
    seen.facts, seen.trials = watch.script.facts, watch.script.experiments.times
    main = watch.main or watch.examined
    if main is None:
        seen.children = max(watch.started, len(psutil.Process().children(recursive=True)))
        return seen
    seen.trains = bool(main.trained)
    if not seen.trains:
        seen.limitations.append("no backward pass was seen between the batches of a loader")
    if watch.script.real is None and not failure and not watch.is_done:
        seen.limitations.append(
            f"the program ended after {main.batches} batches, too early for all measurements; take more epochs"
        )
    watch.take_what_there_is(main)
    seen.real, seen.compute = watch.script.real, watch.script.compute
    seen.first_batch_s = main.first_batch_s
    seen.ranks = _exchange(watch)
    _tried(seen, "layers on their own", watch.script.look.measure_layers, watch.budget)
    watch.script.look.forget()
    if failure:
        seen.dataset, seen.loader = main.dataset, main.settings
        seen.limitations.append("its loader alone, since the program did not come to its end")
    else:
        examined = watch.examined or main
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
            for key, (what, change) in _changes(seen, loader).items():
                work = partial(_loading, change, what, _CHANGED * seconds)
                found = _tried(seen, what, work, budget)
                if found is not None:
                    seen.changed[key] = found
            _tried(seen, "waiting at the program's pace", lambda: _pace(seen, loader, _PACED * seconds), budget)
        _tried(seen, "single samples", lambda: _measure_samples(seen, loader, seconds), budget)
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


def _loading(make: Callable[[], Any], what: str, seconds: float) -> Loading:
    return measure_loading(make(), seconds=seconds, what=what)


def _measure_samples(seen: Observation, loader: Any, seconds: float) -> None:
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        seen.limitations.append("single samples of an iterable dataset")
        return
    seen.sample, pieces = measure_samples(
        loader.dataset, loader.collate_fn, seconds=_SAMPLES * seconds, by_worker=loader.num_workers > 0
    )
    seen.decode_ms = decoding_ms(encoded_jpegs(pieces), seconds=_DECODING * seconds)


def _tried(seen: Observation, what: str, work: Callable[[], Any], budget: Budget) -> Any:
    """Result of `work`; None if it fails, takes too long, or the user has interrupted it or earlier work."""
    if seen.is_interrupted:
        return None
    budget.phase = what
    try:
        return _in_time(work, budget)
    except OverBudget:
        seen.limitations.append(budget.missed(what))
    except KeyboardInterrupt:
        seen.is_interrupted = True
        seen.limitations.append(f"{what}, and what would have followed: interrupted")
    except Exception as error:  # noqa: BLE001 - of the user's dataset
        seen.limitations.append(f"{what}: {in_words(error)}")
    return None


def _in_time(work: Callable[[], Any], budget: Budget) -> Any:
    """Result of `work`.

    Raises:
        OverBudget: the budget was used up before or during the work.
    """
    if budget.is_past():
        raise OverBudget
    alarm = Alarm(budget.left_s, OverBudget)
    try:
        return work()
    finally:
        alarm.stop()


def _changes(seen: Observation, loader: Any) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Loaders to be compared with it, by the key of the advice, each with its name."""
    assert seen.alone is not None
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return {}  # which workers must divide among themselves
    if not is_plain(loader):
        seen.limitations.append(f"changes of the loader: {type(loader).__name__} has an __iter__ of its own")
        return {}
    found, cpus = loaders_to_try(loader), auto_threads()
    names = {
        "fastdata": "fastdata's loader",
        "backend": "backend='auto'",
        "workers": f"num_workers={cpus}",
        "augment_on_device": "augment_on='device'",
    }
    if not seen.alone.verdict or seen.alone.verdict.kind == "not accelerated":
        found.pop("backend", None)
    if (cores_in_use(seen.alone) or 0.0) >= BUSY * cpus:
        found.pop("workers", None)
    elif seen.num_workers < cpus and "workers" not in found:
        seen.may_not_start_workers = True
        seen.limitations.append(
            f"{names['workers']}: worker processes would run the program anew, since they are not forked here"
        )
    if seen.facts.device == "cuda" and getattr(loader, "augment_on", "host") == "host":
        on_device = {"augment_on": "device", "draws": "sample"}  # "torch" draws for samples
        if augments_batches(changed_loader(loader, **on_device)):
            found["augment_on_device"] = partial(changed_loader, loader, device="cuda", **on_device)
    return {key: (names[key], make) for key, make in found.items()}


def _pace(seen: Observation, loader: Any, seconds: float) -> None:
    """Measures the wait of a program of the same pace, if the program waits although loading is quick enough."""
    compute_s = step_seconds(seen)[1]
    assert seen.alone is not None
    waits = wait_share(seen) > _WAITS and seen.alone.batch_s < _KEEPS_UP * compute_s  # False for NaN
    if not (waits and seen.num_workers and is_plain(loader)):
        return
    make = changed_loader if seen.is_ours else partial(torchs_with, num_workers=seen.num_workers)
    now = int(loader.prefetch_factor or 2)
    for depth in (now, _DEEPER * now):
        seen.waits_at_pace[depth] = wait_at_pace(make(loader, prefetch_factor=depth), compute_s, seconds=seconds)


def _exchange(watch: LoopMonitor) -> list[tuple[float, float]]:
    """Per-rank mean seconds (compute, wait) of a step on this machine, exchanged in a folder; [] for one process."""
    count = local_processes()
    rank = os.environ.get("LOCAL_RANK", "")
    if count < 2 or not rank.isdigit() or watch.script.real is None:
        return []
    run = "-".join(os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT"))
    folder = Path(tempfile.gettempdir()) / f"fastdata-doctor-{run}-{os.getppid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    own = folder / f"{rank}.json"
    own.with_suffix(".new").write_text(json.dumps([watch.script.real.busy_s, watch.script.real.wait_s]))
    own.with_suffix(".new").replace(own)
    if rank != "0":
        return []
    deadline = time.monotonic() + _RANKS_WAIT_S
    files = [folder / f"{number}.json" for number in range(count)]
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [tuple(json.loads(file.read_text())) for file in files if file.exists()]
    if len(found) < count:
        watch.limitations.append(f"{count - len(found)} of {count} ranks did not tell their times")
    for file in files:
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return [(float(compute), float(wait)) for compute, wait in found]
