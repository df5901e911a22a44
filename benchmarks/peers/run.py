"""The open benchmark: the same work through every loader, each in an environment of its own, outputs checked first.

For each workload every loader runs in a process of its own; in every round, and for each number of threads, each of
them opens a new loader (time to the first batch, peak memory of its process tree) and then makes measured passes (CPU
time of the process tree, images/s), one loader after another.  "cold" is such a pass with as much added as the first
pass of a new loader takes longer after the files were dropped from the page cache than right after that.  A loader that
cannot be installed, fails, or gives something else is named in the results with the reason.

Needs Linux, 3 GB of disk and an hour and a half.  Result: benchmarks/results/peers.json; tables and plots by
benchmarks/report.py.

    python benchmarks/peers/run.py IMAGENET_FOLDER CAMERA_FOLDER
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from adding import added
from checks import difference, problem
from conduct import Failed, Process, evict
from environments import Environment, environment
from peers import PEERS, REFERENCE, REFERENCE_OF_PIXELS, VARIANTS, Variant
from workloads import WORKLOADS, Workload, make_images

from fastdata.measuring.record import write_json
from fastdata.measuring.rounds import Measurement, ratios, spread

RESULT = Path(__file__).parents[1] / "results" / "peers.json"
COLD = ("train", "shards")
LEAST_S = 1.0  # of measured passes: short ones would measure how a pass begins and ends
COLD_ROUNDS = 3
WARM_SHARE = 0.02  # of the files, from which on a pass is not called cold


def chosen(only: Sequence[str]) -> list[Variant]:
    """The variants whose name contains one of some texts, and those that all are compared with."""
    references = (REFERENCE, REFERENCE_OF_PIXELS)
    return [v for v in VARIANTS.values() if v.name in references or any(text in v.name for text in only)]


def needed(only: Sequence[str]) -> set[str]:
    """The peers of the chosen variants, and those without any, of which is told whether they can be installed."""
    without = PEERS.keys() - {variant.peer for variant in VARIANTS.values()}
    return {variant.peer for variant in chosen(only)} | {name for name in without if any(text in name for text in only)}


@dataclass(kw_only=True)
class Running:
    """A variant at work, its output checked.

    Attributes:
        variant: which.
        process: where it runs.
        folder: the files it reads.
        levels: how far its pixels are from torchvision's.
        resting_bytes: memory before it has a loader.
        rounds: what was measured, by number of threads.
        longer_s: how much longer passes take from the disk, with the most threads.
        not_cold: why that is not known; "" where it is.
    """

    variant: Variant
    process: Process
    folder: Path
    levels: float
    resting_bytes: int
    rounds: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    longer_s: list[float] = field(default_factory=list)
    not_cold: str = ""

    def to_dict(self, work: Workload, threads: int) -> dict[str, Any]:
        """Its figures."""
        rounds = self.rounds[threads]
        rows = {key: [row[key] for row in rounds] for key in rounds[0]}
        told: dict[str, Any] = {
            **self.measurement(work, threads).to_dict(),
            "reads": self.variant.reads,
            "consumer_cpu_ms_per_image": spread([1e3 * row["consumer_cpu_s"] / row["images"] for row in rounds]),
            "cpus_used": spread([row["cpu_s"] / row["seconds"] for row in rounds]),
            "first_batch_s": spread(rows["first_s"]),
            "peak_mb": spread([value / 1e6 for value in rows["peak_bytes"]]),
            "resting_mb": self.resting_bytes / 1e6,
            "stored_bytes_per_image": sum(f.stat().st_size for f in self.folder.rglob("*") if f.is_file()) / work.count,
            "levels_from_torchvision": None if work.is_random else round(self.levels, 3),
        }
        if "gpu_s" in rows:
            told["gpu_ms_per_image"] = spread([1e3 * row["gpu_s"] / row["images"] for row in rounds])
        if threads == max(self.rounds) and self.not_cold:
            told["not_cold"] = self.not_cold
        elif threads == max(self.rounds) and self.longer_s:
            warm_s = work.count / told["images_per_s"]["median"]
            rates = [work.count / (warm_s + longer) for longer in self.longer_s]  # some of them by chance above warm
            told["cold_images_per_s"] = spread(rates)
        return told

    def measurement(self, work: Workload, threads: int) -> Measurement:
        """CPU time and images/s of its rounds."""
        rounds = self.rounds[threads]
        return Measurement(
            name=self.variant.name,
            images=work.count,
            cpu_ms_per_image=[1e3 * row["cpu_s"] / row["images"] for row in rounds],
            images_per_s=[row["images"] / row["seconds"] for row in rounds],
        )

    def round(self, work: Workload, threads: int) -> None:
        """One round: a new loader, and measured passes.

        Raises:
            Failed: it did.
        """
        opened = self.process.watched("first", threads)
        row = self.process.measured("epoch", LEAST_S)
        if row["images"] != work.count * row["passes"]:
            raise Failed(f"{row['passes']} passes have {row['images']} images instead of {work.count} each")
        row |= {"first_s": opened["seconds"], "peak_bytes": opened["peak_bytes"]}
        self.rounds.setdefault(threads, []).append(row)

    def from_disk(self, process: Process, threads: int) -> None:
        """How much longer a new loader's first pass takes after its files were dropped from the page cache.

        Args:
            process: that has not opened them yet: the system keeps what any process has mapped.
            threads: of the loader.
        """
        for number in range(COLD_ROUNDS + 1):
            if (kept := evict(self.folder)) > WARM_SHARE:
                self.not_cold = f"{kept:.0%} of the files stayed in the page cache"
                return
            cold_s, warm_s = (process.ask("anew", threads)["seconds"] for _ in range(2))
            if number > 0:  # the first warms up what is not on the disk, too
                self.longer_s.append(cold_s - warm_s)


@dataclass(kw_only=True)
class Comparison:
    """One workload through everybody.

    Attributes:
        work: the workload.
        folders: "images", "stored" and "logs".
        made: the environments by peer.
        absent: who does not take part, and why.
    """

    work: Workload
    folders: dict[str, Path]
    made: dict[str, Environment]
    absent: dict[str, str] = field(default_factory=dict)

    def start_all(self, only: Sequence[str]) -> list[Running]:
        """Everybody whose output is right."""
        running: list[Running] = []
        reference: tuple[dict[str, Any], Path] | None = None
        for variant in chosen(only):
            refusal = variant.refusal(self.work, has_gpu=torch.cuda.is_available())
            if refusal == "":
                continue
            if refusal := refusal or self.made[variant.peer].problem:
                self._leave_out(variant, refusal)
                continue
            try:
                one, reference = self._start(variant, reference)
                running.append(one)
            except Failed as failure:
                self._leave_out(variant, str(failure))
            if reference is None:  # torch's, which comes first
                raise SystemExit(f"{self.work.name}: nothing can be compared: {self.absent}")
        return running

    def _start(
        self, variant: Variant, reference: tuple[dict[str, Any], Path] | None
    ) -> tuple[Running, tuple[dict[str, Any], Path]]:
        name = self._file_name(variant)
        stored, pixels = self.folders["stored"] / name, self.folders["stored"] / f"{name}.npy"
        process = self._process(variant, name)
        try:
            resting = process.memory()
            found = process.ask("check", str(pixels))
            reference = reference or (found, pixels)
            levels = difference(pixels, reference[1])
            if wrong := problem(self.work, found, reference[0], levels):
                raise Failed(wrong)
        except BaseException:
            process.end()
            raise
        folder = stored if stored.exists() else self.folders["images"]
        one = Running(variant=variant, process=process, folder=folder, levels=levels, resting_bytes=resting)
        return one, reference

    def _file_name(self, variant: Variant) -> str:
        return f"{self.work.name}-{self.work.count}-{variant.name}".replace(", ", "-").replace(" ", "-")

    def _process(self, variant: Variant, name: str) -> Process:
        """One that knows what to do, and has written its format."""
        process = Process(self.made[variant.peer].python, self.folders["logs"] / f"{name}.log")
        told = {"program": variant.program, "option": variant.option, "work": self.work.name, "count": self.work.count}
        stored = self.folders["stored"] / self._file_name(variant)
        try:
            process.ask("start", **told, images=str(self.folders["images"]), stored=str(stored))
            process.ask("prepare")
        except BaseException:
            process.end()
            raise
        return process

    def _without_folders(self, text: str) -> str:
        """Where they lie is nobody's business."""
        return text.replace(f"{self.folders['stored'].parent}/", "")

    def _leave_out(self, variant: Variant, reason: str) -> None:
        self.absent[variant.name] = told = self._without_folders(reason)
        print(f"  {variant.name}: {told}", flush=True)

    def measure(self, running: list[Running], threads: Sequence[int], rounds: int) -> list[Running]:
        """Rounds of all, each begun by another; whoever fails on the way is left out from then on."""
        for number in range(rounds):
            begins = number % len(running)
            for one in running[begins:] + running[:begins]:
                try:
                    for count in threads:
                        if one.variant.name not in self.absent:
                            one.round(self.work, count)
                except Failed as failure:
                    self._leave_out(one.variant, str(failure))
                    one.process.end()
            print(f"  round {number + 1} of {rounds}", flush=True)
        if running[0].variant.name in self.absent:  # torch's
            raise SystemExit(f"{self.work.name}: nothing can be compared: {self.absent}")
        return [one for one in running if one.variant.name not in self.absent]

    def _from_disk(self, one: Running, threads: int) -> None:
        """All other processes have ended."""
        process = self._process(one.variant, f"{self._file_name(one.variant)}-cold")
        try:
            one.from_disk(process, threads)
        except Failed as failure:
            one.not_cold = self._without_folders(str(failure))
        finally:
            process.end()

    def run(self, threads: Sequence[int], rounds: int, only: Sequence[str]) -> dict[str, Any]:
        """The results by number of threads."""
        running = self.start_all(only)
        try:
            measured = self.measure(running, threads, rounds)
        finally:
            for one in running:
                one.process.end()
        for one in measured if self.work.name in COLD else []:
            self._from_disk(one, max(threads))
        results = {}
        for count in threads:
            rows = [one.to_dict(self.work, count) for one in measured]
            times = ratios([one.measurement(self.work, count) for one in measured], measured[0].variant.name)
            results[str(count)] = {"loaders": rows, "times_better": times}
            print(f"  {count} threads", flush=True)
            for row in rows:
                told = [f"{row['cpu_ms_per_image']['median']:8.3f} CPU ms", f"{row['images_per_s']['median']:8.0f}/s"]
                told += [f"{row['peak_mb']['median']:6.0f} MB", f"{row['first_batch_s']['median']:6.2f} s"]
                told += [f"{row['cpus_used']['median']:.1f} CPUs"]
                print(f"    {row['name']:28} {'  '.join(told)}", flush=True)
        return {"told": self.work.told, "images": self.work.count, "batch": self.work.batch, "threads": results,
                "absent": self.absent}  # fmt: skip


def arguments() -> argparse.Namespace:
    """Of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagenet", type=Path, help="one folder of images per class")
    parser.add_argument("camera", type=Path, nargs="?", help="the same, with large camera files")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="worker threads or processes (2 1)")
    parser.add_argument("--rounds", type=int, default=3, help="measured passes of each (%(default)s)")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--images", type=int, help="in a pass, a multiple of the batch (default: by workload)")
    parser.add_argument("--only", nargs="+", default=[""], help="loaders whose name contains one of these, and torch's")
    parser.add_argument("--data", default="", help="what the images are, for the record")
    parser.add_argument("--scratch", type=Path, help="keep what is written, and use it again (default: a new folder)")
    parser.add_argument("--add", action="store_true", help="keep the other workloads of the result that is there")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    odd = [name for name in given.workloads if given.images and given.images % WORKLOADS[name].batch]
    if given.images is not None and (given.images < 1 or odd):
        parser.error(f"--images {given.images} is no multiple of the batches of {', '.join(odd or given.workloads)}")
    if sys.platform != "linux":
        parser.error("needs Linux: it reads the peers' CPU time and memory from /proc")
    return given


def main() -> None:
    """The command."""
    given = arguments()
    made = {name: environment(peer) for name, peer in PEERS.items() if name in needed(given.only)}
    for name, one in made.items():
        print(f"{name}: {one.problem or one.versions}", flush=True)
    results: dict[str, Any] = {
        "versions": {name: one.versions for name, one in made.items() if not one.problem},
        "not_installed": {name: one.problem for name, one in made.items() if one.problem},
        "variants": {variant.name: variant.told for variant in chosen(given.only)},
        "workloads": {},
    }
    if given.add and given.out.exists():
        results = added(json.loads(given.out.read_text()), results)
    setup = f"{given.rounds} interleaved rounds; page cache warm, but for the cold passes"
    with tempfile.TemporaryDirectory(prefix="peers-") as new:
        scratch = given.scratch or Path(new)
        for work in (WORKLOADS[name] for name in given.workloads):
            work = replace(work, count=given.images or work.count)
            source = given.camera if work.images == "camera" else given.imagenet
            if source is None:
                print(f"{work.name}: left out, no folder of camera files was given")
                continue
            print(work.told, flush=True)
            folders = {name: scratch / name for name in ("stored", "logs")}
            for folder in folders.values():
                folder.mkdir(parents=True, exist_ok=True)
            folders["images"] = scratch / f"{work.images}-{work.count}"
            make_images(work, source, folders["images"])
            comparison = Comparison(work=work, folders=folders, made=made)
            results["workloads"][work.name] = comparison.run(given.threads, given.rounds, given.only)
            results["workloads"] = {
                name: results["workloads"][name] for name in WORKLOADS if name in results["workloads"]
            }
            write_json(given.out, setup=setup, data=given.data or given.imagenet.name, results=results)
    if given.out == RESULT:
        subprocess.run([sys.executable, str(RESULT.parents[1] / "report.py")], check=True)


if __name__ == "__main__":
    main()
