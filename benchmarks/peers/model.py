"""What the measured loaders would do on machines with more cores: a small model, fitted on peers.json.

A loader's images/s on n cores is the least of four limits, each a bound from above:

    cores      n / c   c: CPU seconds per image of all its threads and processes (measured, with the most threads)
    consumer   p / s   s: CPU seconds per image of the thread that takes the batches (measured), which no number of
                       workers shares; p: loaders at work at once, one in each training process
    memory     M / m   m: bytes moved per image; M: the machine's memory bandwidth.  m is reckoned, not measured: what
                       is stored is moved twice (into the page cache and out of it), the tensor three times (written,
                       collated or copied to be pinned, read), five times where it passes through another process
    storage    D / f   f: stored bytes per image (measured); D: bandwidth of the disk, where memory does not hold them

It leaves out, so that machines will stay below: cores that share caches, memory across sockets, Python's interpreter
lock where worker threads run Python code (SPDL with torchvision's transforms), clocks that fall under load.  It is
checked in the record itself: what it predicts for two threads from one is compared with what two threads did.
On another machine run the benchmark there and compare:

    python benchmarks/peers/run.py IMAGENET --workloads train shards --threads 16 1 --out other.json
    python benchmarks/peers/model.py --check other.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["MACHINES", "PER_GPU", "Limits", "Machine", "held_against", "limits", "predicted", "rows_of"]

RESULT = Path(__file__).parents[1] / "results" / "peers.json"
BY_PROCESSES = (
    "torch",
    "timm",
    "OpenCV",
    "WebDataset",
    "Hugging Face",
    "LitData",
    "MosaicML",
)  # batches come from worker processes
OUTPUT_BYTES = {"train": 3 * 224 * 224 * 4, "shards": 3 * 224 * 224 * 4}
PER_GPU = 3000  # images/s that a training takes on one GPU: an assumption, about that of a ResNet-50 with AMP


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One to predict for.

    Attributes:
        name: of it.
        cores: for loading.
        memory: bytes/s.
        storage: bytes/s.
        processes: training processes, each with a loader and its share of the cores.
    """

    name: str
    cores: int
    memory: float
    storage: float
    processes: int = 1


MACHINES = (
    Machine(name="16 cores", cores=16, memory=80e9, storage=3e9),
    Machine(name="64 cores", cores=64, memory=200e9, storage=7e9),
    Machine(name="192 cores", cores=192, memory=600e9, storage=14e9),
    Machine(name="192 cores, 8 GPUs", cores=192, memory=600e9, storage=14e9, processes=8),
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Images per second that each part allows."""

    cores: float
    consumer: float
    memory: float
    storage: float

    @property
    def least(self) -> tuple[str, float]:
        """Which is the limit, and what it allows."""
        return min(vars(self).items(), key=lambda item: item[1])


def limits(row: dict[str, Any], machine: Machine, output_bytes: int) -> Limits:
    """The limits of a loader, of which a row of peers.json tells, on a machine."""
    stored = row["stored_bytes_per_image"]
    moved = 2 * stored + (5 if row["name"].startswith(BY_PROCESSES) else 3) * output_bytes
    return Limits(
        cores=1e3 * machine.cores / row["cpu_ms_per_image"]["median"],
        consumer=1e3 * machine.processes / max(1e-6, row["consumer_cpu_ms_per_image"]["median"]),
        memory=machine.memory / moved,
        storage=machine.storage / stored,
    )


def predicted(record: dict[str, Any], workload: str, machine: Machine) -> dict[str, tuple[str, float]]:
    """For each loader of a workload what limits it on a machine, and images/s there."""
    rows = rows_of(record["results"]["workloads"][workload])
    return {name: limits(row, machine, OUTPUT_BYTES[workload]).least for name, row in rows.items()}


def held_against(record: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """(predicted, measured) images/s of each loader: from the fewest threads of one record, for the most of another."""
    pairs = {}
    for workload in set(OUTPUT_BYTES) & record["results"]["workloads"].keys() & other["results"]["workloads"].keys():
        result = record["results"]["workloads"][workload]
        fitted = rows_of(result, min(map(int, result["threads"])))
        count = max(map(int, other["results"]["workloads"][workload]["threads"]))
        cores = min(count, other["machine"]["usable_cpus"])
        machine = Machine(name="", cores=cores, memory=float("inf"), storage=float("inf"))
        for name, row in rows_of(other["results"]["workloads"][workload], count).items():
            if name in fitted:
                expected = limits(fitted[name], machine, OUTPUT_BYTES[workload]).least[1]
                pairs[f"{workload}: {name}"] = (expected, row["images_per_s"]["median"])
    return pairs


def rows_of(result: dict[str, Any], threads: int | None = None) -> dict[str, dict[str, Any]]:
    """The rows of a workload by loader, with the most threads or with so many."""
    chosen = str(threads) if threads is not None else max(result["threads"], key=int)
    return {row["name"]: row for row in result["threads"][chosen]["loaders"]}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, nargs="?", default=RESULT, help="fitted on (default: peers.json)")
    parser.add_argument("--check", type=Path, help="of another machine (default: the same record)")
    given = parser.parse_args()
    record = json.loads(given.record.read_text())
    for workload in OUTPUT_BYTES:
        if workload in record["results"]["workloads"]:
            print(record["results"]["workloads"][workload]["told"])
            for machine in MACHINES:
                print(f"  {machine.name}")
                for name, (limit, rate) in sorted(predicted(record, workload, machine).items(), key=lambda x: -x[1][1]):
                    print(f"    {name:28} {rate:9.0f} images/s, limit: {limit}")
    other = json.loads(given.check.read_text()) if given.check else record
    print("measured of what was predicted")
    for name, (expected, measured) in sorted(held_against(record, other).items()):
        print(f"    {name:38} {measured / expected:5.2f}  ({measured:.0f} of {expected:.0f} images/s)")


if __name__ == "__main__":
    main()
