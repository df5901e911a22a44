"""Advice about loading: the loader, its workers, the files, and where they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fastdata.diagnosis.observation import Observation
from fastdata.diagnosis.speedup_model import (
    BUSY,
    Advice,
    advice,
    cores_in_use,
    gain_of,
    step_seconds,
    wait_share,
)

__all__ = ["about_data"]

_OVERSIZED = 25  # times the pixels that are shown
_READS_MS = 1.0  # of a sample, from which on idle time may be that of storage and not of the system
_PROGRESSIVE = 0.2  # share of the images
_WORTH = 1.05  # of decoding in another way
_WORTH_A_REWRITE = 0.05  # share of a step that waits for data, from which on a dataset's code is worth changing
_BY_NOBODY = (
    "with num_workers=0 batches are made while nobody computes, and some cores are idle; workers would make them "
    "meanwhile"
)
_MOST_BY_STORAGE = 10.0  # times: something takes the place of what is waited for
_RESTARTS = 0.05  # of an epoch's time


def about_data(seen: Observation) -> Iterator[Advice]:
    """Yields changes that would make loading faster."""
    if seen.alone is None:
        return
    yield from _about_switching(seen)
    yield from _about_iterators(seen)
    yield from _about_workers(seen)
    yield from _about_restarts(seen)
    yield from _about_files(seen)
    yield from _about_storage(seen)


def _about_switching(seen: Observation) -> Iterator[Advice]:
    assert seen.alone is not None
    ours, verdict = seen.changed.get("fastdata"), seen.alone.verdict
    times = seen.alone.batch_s / ours.batch_s if ours is not None else math.nan
    if not seen.is_ours and ours is not None:
        why = (
            f"over your dataset fastdata's loader gave {ours.images_per_s:.0f} images/s instead of "
            f"{seen.alone.images_per_s:.0f} ({ours.verdict})"
        )
        change = "from fastdata import DataLoader (instead of from torch.utils.data), or: fastdata run SCRIPT"
        yield advice(seen, "fastdata", "data", times, why, change)
    gains_little = verdict is not None and verdict.kind in ("little gain", "not accelerated")
    if verdict is not None and gains_little and not wait_share(seen) < _WORTH_A_REWRITE:
        why = f"the loader's verdict is {verdict.kind}: {verdict.reason}"
        change = verdict.change or "see loader.explain()"
        yield advice(seen, "not_accelerated", "data", _if_native(seen), why, change, is_fault=True)
    backend = seen.changed.get("backend")
    if backend is not None:
        times = seen.alone.batch_s / backend.batch_s
        why = f"backend='auto' gave {backend.images_per_s:.0f} images/s instead of {seen.alone.images_per_s:.0f}"
        yield advice(seen, "backend", "data", times, why, "leave backend out, or write backend='auto'")


def _if_native(seen: Observation) -> float:
    """Speedup of a sample if the native core decodes and crops its image; NaN if that was not measured."""
    if seen.sample is None or "file" not in seen.decode_ms:
        return math.nan
    return max(1.0, seen.sample.total_ms / seen.decode_ms["file"])


def _about_workers(seen: Observation) -> Iterator[Advice]:
    assert seen.alone is not None
    more = seen.changed.get("workers")
    if more is None:
        if seen.may_not_start_workers and seen.num_workers == 0 and seen.cpus > 1:
            yield Advice(
                key="workers",
                side="data",
                why=_BY_NOBODY,
                change=f'num_workers={seen.cpus}, and the program under if __name__ == "__main__":, since worker '
                "processes import it",
                gain=gain_of(seen, with_workers=True),
            )
        return
    times = seen.alone.batch_s / more.batch_s
    has_idle_cores = seen.real is None or (cores_in_use(seen.real) or seen.cpus) < BUSY * seen.cpus
    if times < _WORTH and not (seen.num_workers == 0 and has_idle_cores):  # else loading could go on beside computing
        return
    idle = max(0.0, seen.cpus - (cores_in_use(seen.alone) or 0.0))
    why = (
        f"loading alone uses {seen.alone.cores:.1f} of {seen.cpus} cores ({idle:.1f} idle); with "
        f"{more.what} it gave {more.images_per_s:.0f} images/s instead of {seen.alone.images_per_s:.0f}"
    )
    if times < _WORTH:
        why = _BY_NOBODY
    yield Advice(
        key="workers",
        side="data",
        why=why,
        change=f"num_workers={seen.cpus}" if not seen.is_ours else "num_workers='auto'",
        gain=gain_of(seen, data_speedup=times, with_workers=True),
        reach=times,
    )


def _about_iterators(seen: Observation) -> Iterator[Advice]:
    """Yields advice if the program makes an iterator for each batch, so nothing is loaded ahead and workers restart."""
    if not seen.restarts_in_each_step or seen.real is None:
        return
    real, compute, data = step_seconds(seen)
    gain = real / max(compute, data) if seen.num_workers else math.nan
    yield Advice(
        key="iterators",
        side="data",
        why="the program makes a new iterator for each batch, as by next(iter(loader)): nothing is loaded ahead, and "
        "all of an epoch's batches but the first are never used",
        change="batches = iter(loader) once per epoch, then next(batches); or for batch in loader:",
        gain=gain,
        reach=gain,
        is_fault=True,
    )


def _about_restarts(seen: Observation) -> Iterator[Advice]:
    """Yields advice if worker processes start in each epoch: the first batch comes later than a worker needs for it."""
    assert seen.alone is not None
    if seen.restarts_in_each_step:  # which `_about_iterators` tells, and whose change ends these starts, too
        return
    start_s = seen.alone.first_s - seen.num_workers * seen.alone.batch_s
    step_s = seen.real.step_s if seen.real is not None else seen.alone.batch_s
    epoch_s = seen.epoch_batches * step_s
    if seen.restarts_workers and epoch_s > 0 and start_s > _RESTARTS * (epoch_s + start_s):
        why = f"worker processes start in each epoch, which takes {start_s:.1f} s of {epoch_s + start_s:.1f}"
        gain, change = (epoch_s + start_s) / epoch_s, "persistent_workers=True"
        yield Advice(key="persistent_workers", side="data", why=why, change=change, gain=gain)


def _about_files(seen: Observation) -> Iterator[Advice]:
    sample = seen.sample
    if sample is None:
        return
    shown = sample.width * sample.height / sample.shown_px if sample.shown_px else 0.0
    data = _decoding_share(seen)
    if shown > _OVERSIZED and data > 0:
        # Decoding costs about as many times less as there are fewer pixels; twice the shown side keeps crops sharp.
        smaller = max(1.0, shown / 4)
        times = 1 / (1 - data + data / smaller)
        side = 2 * round(math.sqrt(sample.shown_px))
        why = (
            f"images have {sample.width} x {sample.height} pixels, {shown:.0f} times those that are shown, and "
            f"decoding them is {data:.0%} of loading"
        )
        change = f"fastdata convert FOLDER SHARDS --max-side {side} (crops of less than half the image get coarser)"
        yield advice(seen, "oversized", "data", times, why, change, converts=True)
    now = seen.decode_ms.get("index" if seen.has_index else "file", math.nan)
    native = seen.is_ours or "fastdata" in seen.changed
    for key, kind, change in (
        ("index", "index", "fastdata index FOLDER"),
        ("unpacked", "unpacked", "fastdata convert FOLDER SHARDS --unpacked"),
    ):
        if native and data > 0 and kind in seen.decode_ms and not (seen.has_index and kind == "index"):
            less = now / seen.decode_ms[kind]
            times = 1 / (1 - data + data / less)
            if times < _WORTH:
                continue
            if not seen.is_ours and seen.alone is not None:
                times *= seen.alone.batch_s / seen.changed["fastdata"].batch_s
            yield Advice(
                key=key,
                converts=True,
                side="data",
                why=f"a random crop of your JPEGs takes {seen.decode_ms[kind]:.2f} ms "
                f"{'by an index' if kind == 'index' else 'from unpacked records'} instead of {now:.2f}",
                change=change if seen.is_ours else f"with fastdata's loader: {change}",
                gain=gain_of(seen, data_speedup=times),
                reach=times,
            )
    if sample.progressive > _PROGRESSIVE and data > 0:
        less = now / seen.decode_ms.get("unpacked", math.nan)
        times = 1 / (1 - data + data / less) if native else math.nan
        why = f"{sample.progressive:.0%} of the images are progressive JPEGs, of which all scans must be read"
        change = "fastdata convert FOLDER SHARDS --unpacked, or save them as baseline JPEGs"
        yield advice(seen, "progressive", "data", times, why, change, is_fault=True, converts=True)


def _decoding_share(seen: Observation) -> float:
    """Share of loading that is decoding, of the time in which somebody works."""
    if seen.alone is not None and seen.alone.stage_s.get("decode"):
        return seen.alone.stage_s["decode"] / sum(seen.alone.stage_s.values())
    if seen.sample is None or seen.sample.total_ms <= 0:
        return 0.0
    return seen.sample.decode_ms / (seen.sample.total_ms + seen.sample.collate_ms)


def _storage_share(seen: Observation) -> float:
    """Share of loading in which threads wait for bytes instead of working."""
    if seen.alone is not None and seen.alone.stage_s.get("read") and seen.alone.cores < 0.5 * seen.cpus:
        return seen.alone.stage_s["read"] / sum(seen.alone.stage_s.values())
    if seen.sample is None or seen.sample.total_ms < _READS_MS:
        return 0.0
    return seen.sample.idle_ms / (seen.sample.total_ms + seen.sample.collate_ms)


def _about_storage(seen: Observation) -> Iterator[Advice]:
    share = _storage_share(seen)
    if share > 0.4:
        times = min(1 / (1 - share), _MOST_BY_STORAGE)
        why = f"{share:.0%} of the time of a sample nobody computes: it waits for storage or network"
        change = "fastdata convert FOLDER SHARDS on a local disk, or more workers, which wait side by side"
        yield advice(seen, "storage", "data", times, why, change, converts=True)
    elif seen.slow_storage:
        yield Advice(key="storage", side="data", why=seen.slow_storage, change="fastdata convert FOLDER SHARDS")
