"""Finds out, while a loader runs, how many threads and how many batches ahead it needs.

One change at a time, kept only if batches come clearly faster with it: more threads where the loop waits, more batches
ahead where memory allows, fewer threads where they take the CPUs from the training loop.  A loop that does not wait is
left alone.  What samples look like never depends on either number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastdata.pipeline.stats import PipelineStats

__all__ = ["Autotuner", "Limits", "Setting"]

_FEWEST_BATCHES, _SHORTEST_S = 8, 0.5  # that a figure is taken from
_ENOUGH = 0.02  # of the time spent waiting: less is not worth a change
_GAIN = 1.05  # times the batches per second: what a change must reach to be kept, as machines are noisy
_MORE_WAITING = 0.1  # of the time, since nothing helped: worth trying everything again
_MOST_AHEAD = 32


class Setting(NamedTuple):
    """Values that the autotuner sets.

    Attributes:
        threads: number of decode threads.
        ahead: number of batches in flight.
    """

    threads: int
    ahead: int


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits of the autotuner's settings.

    Attributes:
        threads: largest number of threads; storage that is slow to answer may need more threads than there are CPUs.
        memory: largest size in bytes of all batches in flight.
    """

    threads: int
    memory: int


class Autotuner:
    """Watches a loader's statistics and says which setting to use from now on.

    Args:
        setting: the first setting.
        limits: limits that no setting exceeds, but for the first.
        stats: statistics of the loader; see `PipelineStats`.
    """

    def __init__(self, setting: Setting, limits: Limits, stats: PipelineStats) -> None:
        self.setting, self.began_with, self.limits = setting, setting, limits
        self.tried = 0
        self._stats = stats
        self._to_skip = 0
        self._largest = 0  # bytes of a batch
        self._unjudged: list[Callable[[], Setting]] = []  # as an epoch ended before that
        self._base = 0.0  # batches per second before the change that is being tried
        self._trying: tuple[Callable[[], Setting], Setting] | None = None  # it, and the setting before
        self._refused: list[Callable[[], Setting]] = []
        self._settled_at = 1.0  # share of waiting when nothing helped
        self._begin_window()

    def begin_epoch(self) -> bool:
        """Leaves out the first batches of an epoch, which could not be made ahead.

        Returns:
            True when `setting` has changed: a change that was on trial when the last epoch ended is undone, since it
            cannot be judged; the second time for good.
        """
        before = self.setting
        if self._trying is not None:
            (change, self.setting), self._trying = self._trying, None
            (self._refused if change in self._unjudged else self._unjudged).append(change)
        self._skip()
        return self.setting != before

    def stay_at(self, setting: Setting) -> None:
        """Keeps `setting`, since the threads that were asked for cannot be had; no later setting has more threads."""
        self.setting, self._trying = setting, None
        self.limits = replace(self.limits, threads=setting.threads)

    def note_batch(self, nbytes: int) -> bool:
        """Notes a batch; call it after each one.

        Args:
            nbytes: size of its tensors in bytes; 0 if that is not known.

        Returns:
            True when `setting` has changed.
        """
        self._largest = max(self._largest, nbytes)
        most = max(self.began_with.ahead, self._affordable())
        if self.setting.ahead > most:  # batches have become larger
            self.setting, self._trying = Setting(self.setting.threads, most), None
            self._skip()
            return True
        if self._to_skip:
            self._to_skip -= 1
            if not self._to_skip:
                self._begin_window()
            return False
        batches, waited, worked = (now - then for now, then in zip(self._totals(), self._began, strict=True))
        if batches < _FEWEST_BATCHES or waited + worked < _SHORTEST_S:
            return False
        before = self.setting
        self._judge(batches / (waited + worked), waited / (waited + worked))
        if self.setting != before:
            self._skip()
        else:
            self._begin_window()
        return self.setting != before

    def told(self) -> str:
        """Describes the tuning in words."""
        began, limits = self.began_with, self.limits
        most = f"{limits.threads} threads, {limits.memory / 2**20:.0f} MiB of batches"
        start = f"{began.threads} threads and {began.ahead} batches ahead"
        return f"from {start}, after {self.tried} changes tried; at most {most}"

    def _judge(self, rate: float, waiting: float) -> None:
        if self._trying is not None:
            (change, before), self._trying = self._trying, None
            if rate < _GAIN * self._base:
                self.setting = before
                self._refused.append(change)
                return
            self._refused.clear()
        if waiting < _ENOUGH:
            return
        if waiting > self._settled_at + _MORE_WAITING:  # from the next window on, which is all of the new kind
            self._refused.clear()
            self._settled_at = 1.0
            return
        for change in (self._more_threads, self._more_ahead, self._fewer_threads):
            wanted = change()
            if change not in self._refused and wanted != self.setting:
                self._trying, self._base = (change, self.setting), rate
                self.setting, self.tried, self._settled_at = wanted, self.tried + 1, 1.0
                return
        self._settled_at = min(self._settled_at, waiting)

    def _skip(self) -> None:
        """Batches that were begun before now say nothing about what holds from now on."""
        self._to_skip = self.setting.ahead + 1

    def _begin_window(self) -> None:
        self._began = self._totals()

    def _totals(self) -> tuple[float, float, float]:
        return self._stats.batches, self._stats.wait_s, self._stats.busy_s

    # ---- what can be changed

    def _more_threads(self) -> Setting:
        threads, ahead = self.setting
        return Setting(max(threads, min(threads + max(1, threads // 2), self.limits.threads)), ahead)

    def _more_ahead(self) -> Setting:
        threads, ahead = self.setting
        return Setting(threads, max(ahead, min(2 * ahead, _MOST_AHEAD, self._affordable())))

    def _fewer_threads(self) -> Setting:
        threads, ahead = self.setting
        return Setting(max(1, threads - max(1, threads // 4)), ahead)

    def _affordable(self) -> int:
        """Batches in flight that the memory is enough for; where their size is not known, no more than there are."""
        return self.limits.memory // self._largest if self._largest else self.setting.ahead
