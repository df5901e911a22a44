"""The tables of the open benchmark: what peers.json says, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from peers.model import MACHINES, PER_GPU, held_against, predicted, rows_of

from fastdata.terminal.words import three_digits

__all__ = [
    "absent",
    "best",
    "conditions",
    "cost",
    "details",
    "kinds",
    "losses",
    "medians",
    "model",
    "training_rows",
    "training_times",
    "variants",
]

TRAINING = ("train", "shards")  # the same views of the same images, from files and from shards
OURS = "fastdata"
_METRICS = (
    ("cpu_ms_per_image", "CPU ms per image", True),
    ("images_per_s", "images/s", False),
    ("peak_mb", "MB at most", True),
    ("first_batch_s", "s to the first batch", True),
)
_EVEN = 1.05  # times the best: as good as first, on machines where rounds differ by as much


def cost(record: dict[str, Any]) -> str:
    """CPU milliseconds per image: a line per loader, a column per workload."""
    works = record["results"]["workloads"]
    lines = [f"| CPU ms per image | {' | '.join(work['told'] for work in works.values())} |"]
    lines.append("|---|" + "---:|" * len(works))
    for name in _names(record):
        cells = []
        for work in works.values():
            row = rows_of(work).get(name)
            times = work["threads"][max(work["threads"], key=int)]["times_better"]
            is_first = name == min(medians(work), key=medians(work).__getitem__)
            told = "–"
            if row:
                ms = three_digits(row["cpu_ms_per_image"]["median"])
                told = f"{ms} ({times[name]['cpu']['median']:.2f}×)"
            cells.append(f"**{told}**" if is_first else told)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", conditions(record)])


def details(record: dict[str, Any]) -> str:
    """A table per workload: images/s, first batch, memory, stored bytes, pixels."""
    parts = []
    for work in record["results"]["workloads"].values():
        counts = sorted(work["threads"], key=int)
        heads = [f"images/s, {count} thread{'s' if count != '1' else ''}" for count in counts]
        has_cold = any("cold_images_per_s" in row for row in rows_of(work).values())
        has_gpu = any("gpu_ms_per_image" in row for row in rows_of(work).values())
        heads += ["from disk"] * has_cold + ["GPU ms/image", "consumer's CPU ms/image"] * has_gpu
        heads += ["first batch, s", "peak MB", "stored KB/image"]
        lines = [f"### {work['told']}", "", f"| loader | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
        rows = sorted(rows_of(work).values(), key=lambda row: -row["images_per_s"]["median"])
        for row in rows:
            cells = [_with_range(rows_of(work, int(count))[row["name"]]["images_per_s"]) for count in counts]
            cells += [_with_range(row["cold_images_per_s"]) if "not_cold" not in row else "–"] if has_cold else []
            if has_gpu:
                on_gpu = row.get("gpu_ms_per_image")
                cells.append(three_digits(on_gpu["median"]) if on_gpu else "–")
                cells.append(three_digits(row["consumer_cpu_ms_per_image"]["median"]))
            cells += [f"{row['first_batch_s']['median']:.2f}", f"{row['peak_mb']['median']:.0f}"]
            cells.append(three_digits(row["stored_bytes_per_image"] / 1e3))
            lines.append(f"| {row['name']} | {' | '.join(cells)} |")
        levels = [
            f"{row['name']} {row['levels_from_torchvision']:.2g}" for row in rows if row["levels_from_torchvision"]
        ]
        if levels:
            lines += ["", f"Mean difference of the pixels from torchvision's, of 255 levels: {', '.join(levels)}."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def kinds(record: dict[str, Any]) -> str:
    """One table of all workloads: a line per loader with CPU time, images/s and memory, with the most threads."""
    lines = ["| | CPU ms per image | images/s | first batch, s | peak MB |", "|---|---:|---:|---:|---:|"]
    for work in record["results"]["workloads"].values():
        times = work["threads"][max(work["threads"], key=int)]["times_better"]
        lines.append(f"| **{work['told']}** | | | | |")
        for row in sorted(rows_of(work).values(), key=lambda row: row["cpu_ms_per_image"]["median"]):
            cpu = f"{three_digits(row['cpu_ms_per_image']['median'])} ({times[row['name']]['cpu']['median']:.2f}×)"
            cells = [row["name"], cpu, _with_range(row["images_per_s"])]
            cells += [f"{row['first_batch_s']['median']:.2f}", f"{row['peak_mb']['median']:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", conditions(record).replace(" The least in bold.", "")])


def _with_range(values: dict[str, Any]) -> str:
    return f"{values['median']:.0f} ({values['min']:.0f} to {values['max']:.0f})"


def absent(record: dict[str, Any]) -> str:
    """Who does not take part, and why; which versions took part."""
    results = record["results"]
    lines = [f"- {name} could not be installed: {problem}" for name, problem in results["not_installed"].items()]
    absences: dict[tuple[str, str], list[str]] = {}  # where, by who and why
    for work in results["workloads"].values():
        for absence in work["absent"].items():
            absences.setdefault(absence, []).append(work["told"])
    lines += [f"- {name}: {reason} ({'; '.join(works)})." for (name, reason), works in absences.items()]
    versions = sorted({
        f"{name} {version}" for own in results["versions"].values() for name, version in own.items()
    })  # fmt: skip
    return "\n".join([*lines, "", f"Versions: {', '.join(versions)}."])


def model(record: dict[str, Any]) -> str:
    """What the model predicts, and how good it is in the record itself."""
    heads = [f"{machine.name}: images/s" for machine in MACHINES] + [f"cores for {PER_GPU:,} images/s"]
    lines = [f"| loader | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    rows = training_rows(record)
    for name in sorted(rows, key=lambda name: rows[name]["cpu_ms_per_image"]["median"]):
        cells = []
        for machine in MACHINES:
            limit, rate = predicted(record, _work_of(record, name), machine)[name]
            cells.append(f"{rate:,.0f} ({limit})")
        cells.append(f"{PER_GPU * rows[name]['cpu_ms_per_image']['median'] / 1e3:.1f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    told = sorted(measured / expected for expected, measured in held_against(record, record).values())
    check = (
        f"With two threads, loaders did {told[0]:.2f} to {told[-1]:.2f} times (median {told[len(told) // 2]:.2f}) what "
        "the model predicts from one thread."
    )
    machines = "; ".join(f"{m.name}: {m.memory / 1e9:.0f} and {m.storage / 1e9:.0f} GB/s" for m in MACHINES)
    return "\n".join([*lines, "", f"Assumed memory and disk bandwidth: {machines}. {check}"])


def losses(record: dict[str, Any]) -> str:
    """Where the best of ours is behind another loader."""
    lines = [f"- {line}" for work in record["results"]["workloads"].values() for line in _losses_in(work)]
    return "\n".join(lines) if lines else "None in this run."


def _losses_in(work: dict[str, Any]) -> Iterator[str]:
    for threads in sorted(work["threads"], key=int):
        rows = rows_of(work, int(threads))
        told = f"{work['told']}, {threads} thread{'s' if threads != '1' else ''}"
        for key, unit, least in _METRICS:
            ours, others = best(rows, key, least=least, ours=True), best(rows, key, least=least, ours=False)
            if ours is None or others is None:
                continue
            behind = ours[1] / others[1] if least else others[1] / ours[1]
            if behind > _EVEN:
                yield f"{told}: {others[0]} {three_digits(others[1])} {unit}, {ours[0]} {three_digits(ours[1])}"


def best(rows: dict[str, dict[str, Any]], key: str, *, least: bool, ours: bool) -> tuple[str, float] | None:
    """The best of ours, or of the others: (name, median)."""
    found = [(name, row[key]["median"]) for name, row in rows.items() if name.startswith(OURS) is ours]
    return (min if least else max)(found, key=lambda item: item[1]) if found else None


def training_rows(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of training on ImageNet, from files and from shards."""
    return {name: row for work in reversed(TRAINING) for name, row in _rows_in(record, work).items()}


def shown_first(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Those rows of each loader's best way; of torch also what people have, of fastdata what the files are by then."""
    rows = training_rows(record)
    best: dict[str, str] = {}
    for name, row in rows.items():
        maker = re.split(r",| \+", name)[0]
        known = best.setdefault(maker, name)
        if row["cpu_ms_per_image"]["median"] < rows[known]["cpu_ms_per_image"]["median"]:
            best[maker] = name
    kept = {*best.values(), "torch + torchvision", "fastdata", "fastdata, indexed"}
    return {name: row for name, row in rows.items() if name in kept}


def training_times(record: dict[str, Any], name: str) -> float:
    """How many times less CPU a loader takes there than torch."""
    result = record["results"]["workloads"][_work_of(record, name)]
    times = result["threads"][max(result["threads"], key=int)]["times_better"]
    return float(times[name]["cpu"]["median"])


def medians(work: dict[str, Any]) -> dict[str, float]:
    """CPU milliseconds per image by loader."""
    return {name: row["cpu_ms_per_image"]["median"] for name, row in rows_of(work).items()}


def variants(record: dict[str, Any]) -> str:
    """How each loader is set up."""
    lines = ["| loader | set up as |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {told} |" for name, told in record["results"]["variants"].items()])


def _work_of(record: dict[str, Any], name: str) -> str:
    return next(work for work in TRAINING if name in _rows_in(record, work))


def _rows_in(record: dict[str, Any], work: str) -> dict[str, dict[str, Any]]:
    works = record["results"]["workloads"]
    return rows_of(works[work]) if work in works else {}


def _names(record: dict[str, Any]) -> list[str]:
    """Of all loaders that took part anywhere, in the order of the list of variants."""
    there = {name for work in record["results"]["workloads"].values() for name in rows_of(work)}
    return [name for name in record["results"]["variants"] if name in there]


def conditions(record: dict[str, Any]) -> str:
    """The machine, and how it was measured."""
    machine, works = record["machine"], record["results"]["workloads"]
    threads = max(next(iter(works.values()))["threads"], key=int)
    versions = f"torch {machine['torch']}, Python {machine['python']}"
    parts = [
        record["data"],
        "float32 after Normalize",
        f"{threads} threads or worker processes",
        record["setup"],
        f"{machine['cpu']}, {machine['usable_cpus']} CPUs",
        versions,
        f"medians, {record['date']}",
    ]
    return f"{'; '.join(parts)}. In brackets: how many times less than torch, within a round. The least in bold."
