"""Progress for people: a bar on a terminal and in notebooks, elsewhere a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

__all__ = ["EVERY_S", "Progress", "clock_time", "progress", "shows_bars"]

EVERY_S = 10.0

_T = TypeVar("_T")


def shows_bars() -> bool:
    """True where a line that rewrites itself is read as it is meant: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Progress:
    """How far some work has come, on stderr.

    Args:
        total: steps of the work, or None.
        unit: what a step is, in the singular.
        what: the work, for plain lines.
        every_s: seconds between two plain lines; the last one is always written.
        clock: for tests.
    """

    def __init__(
        self,
        total: int | None,
        *,
        unit: str,
        what: str = "done",
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._unit, self._what, self._every_s, self._clock = total, unit, what, every_s, clock
        self._done, self._note = 0, ""
        self._told: int | None = None
        self._began = self._told_at = clock()
        self._bar = _bar(total, unit) if shows_bars() else None

    def expect(self, steps: int) -> None:
        """So many steps more will come."""
        self._total = (self._total or 0) + steps
        if self._bar is not None:
            self._bar.total = self._total

    def update(self, note: str = "", *, steps: int = 1) -> None:
        """Some steps are done.

        Args:
            note: what else is worth knowing, put at the end.
            steps: how many.
        """
        self._done, self._note = self._done + steps, note
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(steps)
        elif self._clock() - self._told_at >= self._every_s:
            self._tell()

    def close(self) -> None:
        """The work has ended, or was given up.  Harmless when repeated."""
        if self._bar is not None:
            self._bar.close()
        elif self._done != (self._told or 0):
            self._tell()

    def _tell(self) -> None:
        self._told, self._told_at = self._done, self._clock()
        rate = self._done / max(1e-9, self._told_at - self._began)
        units = f"{self._unit}es" if self._unit.endswith("ch") else f"{self._unit}s"
        parts = [f"{self._done} of {self._total} {units}" if self._total else f"{self._done} {units}"]
        parts.append(f"{rate:.3g} {units}/s")
        if self._total and self._total > self._done:
            parts.append(f"{clock_time((self._total - self._done) / max(1e-9, rate))} left")
        print(f"{self._what}: {', '.join([*parts, *filter(None, [self._note])])}", file=sys.stderr, flush=True)


def progress(steps: Iterable[_T], total: int | None, *, unit: str, what: str = "done") -> Iterator[_T]:
    """The steps, while it is shown how many are done."""
    shown = Progress(total, unit=unit, what=what)
    try:
        for step in steps:
            yield step
            shown.update()
    finally:
        shown.close()


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _bar(total: int | None, unit: str) -> Any:
    """Without tqdm there are plain lines."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit=unit, dynamic_ncols=True)
