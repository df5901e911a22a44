"""Progress on stderr: a bar on a terminal and in notebooks, elsewhere a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from fastdata.terminal.words import three_digits

__all__ = ["EVERY_S", "Progress", "clock_time", "progress", "shows_bars"]

EVERY_S = 10.0

_T = TypeVar("_T")


def shows_bars() -> bool:
    """True where progress bars work: on a terminal or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Progress:
    """Shows the progress of some work on stderr.

    Args:
        total: number of steps, or None if it is unknown.
        unit: the name of a step, in the singular.
        what: the name of the work, with which plain lines begin.
        every_s: seconds between two plain lines; a last line is always written.
        clock: returns the time in seconds; replaced in tests.
        hidden: show nothing.
    """

    def __init__(
        self,
        total: int | None,
        *,
        unit: str,
        what: str = "done",
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        hidden: bool = False,
    ) -> None:
        self._total, self._unit, self._what, self._every_s, self._clock = total, unit, what, every_s, clock
        self._done, self._note = 0, ""
        self._told: int | None = None
        self._began = self._told_at = clock()
        self._bar = _bar(total, unit) if shows_bars() and not hidden else None
        self._hidden = hidden

    def expect(self, steps: int) -> None:
        """Adds steps to the total."""
        self._total = (self._total or 0) + steps
        if self._bar is not None:
            self._bar.total = self._total

    def update(self, note: str = "", *, steps: int = 1) -> None:
        """Counts finished steps.

        Args:
            note: further information, shown at the end of the line.
            steps: how many steps were finished.
        """
        self._done, self._note = self._done + steps, note
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(steps)
        elif not self._hidden and self._clock() - self._told_at >= self._every_s:
            self._tell()

    def close(self) -> None:
        """Ends the progress; may be called more than once."""
        if self._bar is not None:
            self._bar.close()
        elif not self._hidden and self._done != (self._told or 0):
            self._tell()

    def _tell(self) -> None:
        self._told, self._told_at = self._done, self._clock()
        rate = self._done / max(1e-9, self._told_at - self._began)
        units = f"{self._unit}es" if self._unit.endswith("ch") else f"{self._unit}s"
        parts = [f"{self._done} of {self._total} {units}" if self._total else f"{self._done} {units}"]
        parts.append(f"{three_digits(rate)} {units}/s")
        if self._total and self._total > self._done:
            parts.append(f"{clock_time((self._total - self._done) / max(1e-9, rate))} left")
        print(f"{self._what}: {', '.join([*parts, *filter(None, [self._note])])}", file=sys.stderr, flush=True)


def progress(steps: Iterable[_T], total: int | None, *, unit: str, what: str = "done") -> Iterator[_T]:
    """Yields the steps and shows the progress."""
    shown = Progress(total, unit=unit, what=what)
    try:
        for step in steps:
            yield step
            shown.update()
    finally:
        shown.close()


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:02:03."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _bar(total: int | None, unit: str) -> Any:
    """Without tqdm there are plain lines."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit=unit, dynamic_ncols=True)
