"""A diagnosis as text for a terminal of 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from fastdata.diagnosis.observation import Observation
from fastdata.diagnosis.speedup_model import Advice, others_used, step_seconds, wait_share

__all__ = ["as_text", "in_ms", "tables", "times"]

_WIDTH = 80
_MOST_SYNCS = 3
_NOTABLE = 0.1  # cores


def as_text(verdict: str, advice: list[Advice], seen: Observation) -> str:
    """The verdict, the measurements, and the advice; no line longer than 80 columns, but for what cannot be broken."""
    lines = [*_wrapped(f"Verdict: {verdict}."), ""]
    for title, rows in tables(seen):
        lines += [title, *(f"  {name:<34}{value}" for name, value in rows), ""]
    told = list(_advice_lines(advice, seen))
    lines += [*told, ""] if told and seen.limitations else told
    if seen.limitations:
        lines += ["Not measured:", *(line for each in seen.limitations for line in _wrapped(each, "  - ", "    "))]
    return "\n".join(lines)


def _advice_lines(advice: list[Advice], seen: Observation) -> Iterator[str]:
    if not advice:
        if seen.real is not None or seen.alone is not None:
            yield "Advice: none; nothing was found that would gain much."
        return
    what = "the whole step" if seen.real is not None else "loading"
    yield f"Advice, most effective first (times faster {what}, expected):"
    for number, each in enumerate(advice, 1):
        yield from _wrapped(each.why, f"{number:>3}. [{times(each.gain)}] ", "     ")
        yield from _wrapped(each.change, "     -> ", "        ")
    if any(each.converts for each in advice):
        yield "     (Converting or indexing reads all images once, so it is listed below other"
        yield "     changes that gain nearly as much.)"


def _wrapped(text: str, first: str = "", later: str = "") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def times(gain: float) -> str:
    """A gain for people; of a small one the third decimal, too."""
    if math.isnan(gain):
        return "?"
    return f"{gain:.3f}x" if 1 < gain < 1.01 else f"{gain:.2f}x"


def in_ms(part: float, whole: float) -> str:
    """Milliseconds of milliseconds, with as many digits as they are known by: "27 of 31 ms", "0.27 of 0.31 ms"."""
    digits = 0 if whole >= 10 else 1 if whole >= 1 else 2
    return f"{part:.{digits}f} of {whole:.{digits}f} ms"


def _ms(seconds: float) -> str:
    return "?" if math.isnan(seconds) else f"{1e3 * seconds:.1f} ms"


def tables(seen: Observation) -> list[tuple[str, list[tuple[str, str]]]]:
    """Titles, and rows of names and values."""
    found = []
    if seen.dataset:
        found.append((f"Loader: {seen.dataset}, {seen.loader}", _loader_rows(seen)))
    if seen.real is not None:
        found.append((f"A step ({seen.real.steps} timed)", _step_rows(seen)))
    if seen.sample is not None:
        found.append((f"A sample, by the dataset's own code ({seen.sample.samples} timed)", _sample_rows(seen)))
    return found


def _step_rows(seen: Observation) -> list[tuple[str, str]]:
    assert seen.real is not None
    real, compute, data = step_seconds(seen)
    share = wait_share(seen)
    rows = [
        ("as the program runs", f"{_ms(real)}, of which {_ms(seen.real.wait_s)} in next(loader)"),
        ("without waiting (compute only)", _ms(compute)),
        ("the loader alone (data only)", _ms(data)),
        ("lost to waiting for data", f"{share:.0%}"),
    ]
    if seen.real.quartiles_s is not None:
        low, high = seen.real.quartiles_s
        rows.insert(1, ("  half of the steps took", f"{1e3 * low:.1f} to {1e3 * high:.1f} ms"))
    parts = (("forward", seen.real.forward_s), ("backward", seen.real.backward_s), ("update", seen.real.update_s))
    rows += [(f"  {name}", _ms(value)) for name, value in parts if value > 0]
    if seen.real.cores is not None:
        rows.append(("cores used", f"{seen.real.cores:.1f} of {seen.cpus}"))
    if others_used(seen) >= _NOTABLE:
        rows.append(("cores used by other programs", f"{others_used(seen):.1f} of {seen.cpus}"))
    for place in seen.facts.syncs[:_MOST_SYNCS]:
        rows.append((f"{place.calls} per step", f"{place.per_step:.0f} at {place.place}"))
    if seen.facts.device != "cpu":
        rows.append(("these parts", "as they were given to the device"))
    if seen.facts.device == "cpu":
        rows.append(("device", "cpu; nothing here was measured on a GPU"))
    return rows


def _loader_rows(seen: Observation) -> list[tuple[str, str]]:
    rows = []
    if not math.isnan(seen.first_batch_s):
        rows.append(("first batch after", f"{seen.first_batch_s:.2f} s"))
    if seen.alone is None:
        return rows
    rows.append(("alone", f"{seen.alone.images_per_s:.0f} images/s on {seen.alone.cores:.1f} cores"))
    rows += [
        (each.what, f"{each.images_per_s:.0f} images/s on {each.cores:.1f} cores") for each in seen.changed.values()
    ]
    total = sum(seen.alone.stage_s.values())
    rows += [(f"  {name}", f"{value / total:.0%} of its threads' time") for name, value in seen.alone.stage_s.items()]
    return rows


def _sample_rows(seen: Observation) -> list[tuple[str, str]]:
    sample = seen.sample
    assert sample is not None
    rows = [
        ("all", f"{sample.total_ms:.2f} ms"),
        ("  waiting (storage, network)", f"{sample.idle_ms:.2f} ms"),
        ("  decoding, with reading", f"{sample.decode_ms:.2f} ms"),
        ("  resizing", f"{sample.resize_ms:.2f} ms"),
        ("  the rest", f"{max(0.0, sample.rest_ms - sample.idle_ms):.2f} ms"),
        *([(f"  your step {sample.own_step}", f"{sample.own_step_ms:.2f} ms")] if sample.own_step else []),
        ("collating", f"{sample.collate_ms:.2f} ms"),
    ]
    if sample.width:
        rows.append(("image", f"{sample.width} x {sample.height} px, {sample.file_bytes / 1000:.0f} kB"))
    names = {"file": "from the file", "index": "by an index", "unpacked": "unpacked"}
    rows += [(f"native crop, {names[kind]}", f"{ms:.2f} ms") for kind, ms in seen.decode_ms.items()]
    return rows
