"""Report on an unchanged program: the path that each loader takes, and at the end the measurements."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from contextlib import suppress
from typing import Any

from fastdata.dataloader.verdict import Verdict
from fastdata.errors import in_words
from fastdata.measuring.cpu_time import tree_cpu_s
from fastdata.pipeline.stats import PipelineStats
from fastdata.system.stack_level import users_place

__all__ = ["RunReport", "is_first_rank"]

_MOST_NAMED = 4  # datasets that wrap one another


class RunReport:
    """Collects the loaders of one process; prints to stderr, and on rank 0 only.

    Only the loaders' totals are kept, and loaders only while somebody else has them.
    """

    def __init__(self) -> None:
        self._totals: list[PipelineStats] = []
        self._loaders: list[tuple[weakref.ref[Any], str]] = []  # with the program's line that iterated it first
        self._printed: set[str] = set()
        self._process = -1  # a forked process counts for itself
        self._cpu_s_before = 0.0
        self._uses_pillow = False  # the program; on torch's path samples may be anything

    def observe(self, loader: Any, totals: PipelineStats) -> None:
        """Called for every epoch.  Prints the path of the loader; a line that was printed is not repeated."""
        if not is_first_rank():
            return
        if self._process != os.getpid():
            if self._process == -1:
                atexit.register(self._print_summary)
            self._process, self._totals, self._cpu_s_before = os.getpid(), [], tree_cpu_s()
            self._loaders = []
            self._uses_pillow = "PIL.Image" in sys.modules
        place = next((place for known, place in self._loaders if known() is loader), None)
        is_new = not any(known is totals for known in self._totals)
        if is_new:
            place = users_place()
            self._totals.append(totals)
            self._loaders.append((weakref.ref(loader), place))
        self._print_path(loader, place or "", is_new=is_new)

    def _print_path(self, loader: Any, place: str, *, is_new: bool) -> None:
        """Prints the path; after the first time only if the dataset's images turned out to be accelerated."""
        gains = True
        try:
            verdict = loader.verdict()
            line, gains = _described(loader, verdict, place), verdict.kind != "not accelerated"
        except Exception as error:  # noqa: BLE001 - of the user's dataset; a report must not end a program
            line = f"fastdata: DataLoader({type(loader.dataset).__name__}): {in_words(error)}"
        if line not in self._printed and (is_new or gains):
            self._printed.add(line)
            _print(line)

    def summary(self) -> str | None:
        """Summary of what all loaders of this process delivered, and its cost; None if they delivered nothing."""
        images, batches = (sum(getattr(one, name) for one in self._totals) for name in ("samples", "batches"))
        wait_s, busy_s = (sum(getattr(one, name) for one in self._totals) for name in ("wait_s", "busy_s"))
        if images == 0 or self._process != os.getpid():
            return None
        are_images = self._uses_pillow or any(one.encoded_bytes for one in self._totals)
        noun, total_s = "images" if are_images else "samples", wait_s + busy_s
        cpu_ms = 1000 * (tree_cpu_s() - self._cpu_s_before) / images
        return (
            f"fastdata: {images} {noun} in {batches} batches, {images / total_s:.1f} {noun}/s, {wait_s / total_s:.1%} "
            f"of the time spent waiting for data, {cpu_ms:.2f} ms of CPU time per {noun[:-1]} (with the program's own)"
        )

    def _print_summary(self) -> None:
        if self._process == os.getpid():
            for known, place in self._loaders:
                if (loader := known()) is not None:
                    self._print_path(loader, place, is_new=False)
        if (line := self.summary()) is not None:
            _print(line)


def _described(loader: Any, verdict: Verdict, place: str) -> str:
    """One line: dataset, batch size, the program's line, and the loader's verdict."""
    size, at = getattr(loader.batch_sampler, "batch_size", loader.batch_size), f" at {place}" if place else ""
    dataset, told = _named(loader.dataset), " ".join(str(verdict).split())
    return f"fastdata: DataLoader({dataset}, batch_size={size}){at}: {told}"


def _named(dataset: Any) -> str:
    """Class of a dataset, and of what it wraps: "Subset of ImageFolder"."""
    names, known = [type(dataset).__name__], [dataset]
    while len(names) < _MOST_NAMED and (dataset := getattr(dataset, "__dict__", {}).get("dataset")) is not None:
        if any(each is dataset for each in known):
            break
        names.append(type(dataset).__name__)
        known.append(dataset)
    return " of ".join(names)


def is_first_rank() -> bool:
    """True for rank 0, and for a program of one process."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def _print(line: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr may be closed, or None
        print(line, file=sys.stderr, flush=True)
