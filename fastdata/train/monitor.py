"""Progress, timings, losses, logs and plots of a run; and profilers, which make it slower."""

from __future__ import annotations

import cProfile
import csv
import io
import json
import pstats
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fastdata.dataloader.loader import DataLoader
from fastdata.device.syncs import SyncFinder
from fastdata.errors import OptionError
from fastdata.system import cuda
from fastdata.system.files import write_whole
from fastdata.system.optional import need
from fastdata.terminal.progress import clock_time, shows_bars
from fastdata.train.checkpoint_files import writing
from fastdata.train.plots import plot_run
from fastdata.train.training import Training
from fastdata.train.wait_clock import WaitClock

__all__ = ["Monitor", "monitored"]

_COLUMNS = ("update", "epoch", "loss", "lr", "images_per_s", "wait_share")
_NAMED = 5  # images that could not be read
_LINE_EVERY_S = 30.0  # in a log
_TRACED = (3, 15)  # updates, after the first ones, which warm up


class Monitor:
    """Measures times and writes logs.  Without profiling it reads the clock twice per batch and does not wait."""

    def __init__(self, training: Training) -> None:
        self.training, options = training, training.options
        self.is_main = training.ranks.is_main
        self.folder = Path(options.output_dir) if options.output_dir is not None and self.is_main else None
        self.finder: SyncFinder | None = None
        self._profiled = options.profile == "steps"
        self.begin_epoch()
        self._began, self._told_at = (self._at, training.scheduler.place), self._at
        self._loss: float | None = None
        self._has_bars = shows_bars()
        self._rows: list[dict[str, Any]] = []
        self._log_is_ours = False
        self._failures_before: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by loader
        self._board: Any = None
        if options.tensorboard and self.folder is not None:
            board = need("torch.utils.tensorboard", "tensorboard=True", package="tensorboard")
            self._board = board.SummaryWriter(str(self.folder / "tensorboard"))
        self.trace: torch.profiler.profile | None = None

    # ---- in the step

    def begin_epoch(self) -> None:
        """Sets the clocks to zero; the time to create the loader's iterator counts as waiting for data."""
        self.seconds = dict.fromkeys(("wait", "forward", "backward", "update", "rest"), 0.0)
        self._at = self._epoch_began = self._looked_at = time.perf_counter()
        self._waits, self._waited_before = WaitClock(self.training.device), 0.0
        self._waits.ask()
        self._images = self._images_before = 0

    def waits_for(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yields the loader's batches; the time until each arrives is booked as "wait"."""
        for batch in loader:
            self._waits.came()
            self.book("wait", always=True)
            self._images += self.training.count(batch)
            yield batch
            self.book("rest", always=True)
            self._waits.ask()

    def book(self, phase: str, *, always: bool = False) -> None:
        """Books the time since the last call; phases of the step only with profile="steps", which waits for them."""
        if not (always or self._profiled):
            return
        if self._profiled and self.training.device.type == "cuda":
            cuda.synchronize(self.training.device)
        now = time.perf_counter()
        self.seconds[phase] += now - self._at
        self._at = now

    def count_update(self) -> None:
        """Called after each update."""
        self.book("update")
        if self.trace is not None:
            self.trace.step()

    @contextmanager
    def may_sync(self) -> Iterator[None]:
        """A block in which waiting for the device is intended, so that detect_syncs does not report it."""
        with self.finder.pause() if self.finder is not None else nullcontext():
            yield

    def show_updates(self, losses: list[float]) -> None:
        """Logs the updates since the losses were last read."""
        training, now = self.training, time.perf_counter()
        rate = (self._images - self._images_before) * training.ranks.world_size / max(1e-9, now - self._looked_at)
        waited = self._waits.seconds()
        share = (waited - self._waited_before) / max(1e-9, now - self._looked_at)
        self._looked_at, self._images_before, self._waited_before = now, self._images, waited
        rates, training.rates = training.rates[-len(losses) :], []
        first = training.updates - len(losses) + 1
        for number, (loss, lr) in enumerate(zip(losses, rates, strict=True), start=first):
            row = (number, training.epoch, repr(loss), lr, round(rate, 1), round(share, 4))  # repr: every bit
            self._rows.append(dict(zip(_COLUMNS, row, strict=True)))
        self._write_rows()
        self._show_on_board(
            {"loss": losses[-1], "images per second": rate, "learning rate": rates[-1]}, training.updates
        )
        self._loss = losses[-1]
        if self.is_main and self._has_bars:
            print(f"\r{self._line(rates[-1])} ", end="", file=sys.stderr)

    def tell(self) -> None:
        """Prints a line to a log now and then, with the loss last read, so that nothing waits for the device."""
        if not self.is_main or self._has_bars or time.perf_counter() - self._told_at < _LINE_EVERY_S:
            return
        self._told_at = time.perf_counter()
        print(self._line(self.training.optimizer.param_groups[0]["lr"]), file=sys.stderr, flush=True)

    def _line(self, lr: float) -> str:
        """The epoch so far, and the time left, estimated from the average speed of this process."""
        training, schedule, now = self.training, self.training.scheduler, time.perf_counter()
        began, place = self._began
        left_s = (schedule.total - schedule.place) * (now - began) / max(1e-9, schedule.place - place)
        rate = self._images * training.ranks.world_size / max(1e-9, now - self._epoch_began)
        parts = [
            f"epoch {training.epoch}",
            f"update {-(-training.batch // training.options.accumulate)}/{schedule.updates_per_epoch}",
            f"loss {self._loss:.4f}" if self._loss is not None else "",
            f"{rate:.0f} images/s",
            f"waiting {self.wait_share():.1%}",
            f"lr {lr:.4g}",
            f"ETA {clock_time(left_s)}",
        ]
        return "  ".join(filter(None, parts))

    def wait_share(self) -> float:
        """Share of the epoch so far in which the device waited for data."""
        return self._waits.seconds() / max(1e-9, sum(self.seconds.values()))

    # ---- around it

    def say(self, text: str) -> None:
        """Prints a line, on rank 0 only."""
        if self.is_main:
            print(f"\r{text}", flush=True)

    def end_epoch(self, result: Any, epoch: int) -> dict[str, float]:
        """Computes the epoch's figures and appends them to the result."""
        seconds = time.perf_counter() - self._epoch_began
        samples, loss = result.epoch_totals
        result.epoch_totals = [0.0, 0.0]
        entry = {
            "epoch": epoch,
            "loss": loss / samples if samples else float("nan"),
            "images_per_s": self._images * self.training.ranks.world_size / seconds,
            "wait_share": self.wait_share(),
        }
        if self.training.device.type == "cuda":
            entry["device_peak_mb"] = cuda.peak_memory(self.training.device) / 1e6
        result.epochs.append(entry)
        return entry

    def count_failures(self, entry: dict[str, float], *loaders: Any) -> None:
        """Prints the images that on_error skipped or replaced, and adds their number on all processes to the entry."""
        count, named = 0, list[str]()
        for loader in (each for each in loaders if isinstance(each, DataLoader)):
            stats, before = loader.stats(), self._failures_before.get(loader, 0)
            self._failures_before[loader] = stats["failures"]
            count += stats["failures"] - before
            named += [where for _, where, _ in stats["quarantine"][before:]]
        if count:
            more = ", …" if count > _NAMED else ""
            print(f"\r{count} damaged images skipped or replaced: {', '.join(named[:_NAMED])}{more}", flush=True)
        joint = int(self.training.ranks.sum(torch.tensor(count, device=self.training.device)))  # waits
        if joint:
            entry["failures"] = entry.get("failures", 0) + joint

    def show_epoch(self, entry: dict[str, float]) -> None:
        """Prints the figures of an epoch, including its validation."""
        if self.is_main:
            told = "  ".join(f"{name} {value:.4g}" for name, value in entry.items())
            print(f"\r{told}", flush=True)
            if self.training.scaler.is_enabled():
                print(f"updates skipped because of inf or NaN gradients (fp16) so far: {int(self.training.skipped)}")
        self._show_on_board({f"epoch/{name}": value for name, value in entry.items()}, int(entry["epoch"]))
        if self._profiled and self.is_main:
            print(self.table())

    def end_run(self, result: Any) -> None:
        """Writes the summary, and the plots if no signal stopped the run."""
        if self.folder is not None:
            with writing(path := self.folder / "result.json"):
                write_whole(path, json.dumps(vars(result), indent=1).encode())
            if not result.stopped:  # whoever sent the signal may not wait for it: importing matplotlib takes seconds
                plot_run(result.losses, result.epochs, self.folder / "curves.png")
        if self._board is not None:
            self._board.close()
        if self.finder is not None and self.is_main:
            print(self.finder.report())

    def table(self) -> str:
        """The time per phase of the training step, measured by waiting for the device after each phase."""
        total = sum(self.seconds.values()) or 1.0
        lines = [f"  {phase:<9} {seconds:8.3f} s  {seconds / total:6.1%}" for phase, seconds in self.seconds.items()]
        return "\n".join(
            ["time per phase (slower than without profile, since it waits for the device after each phase):", *lines]
        )

    def _show_on_board(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items() if self._board is not None else ():
            self._board.add_scalar(name, value, step)
        if self.is_main and self.training.task.log is not None:
            self.training.task.log(values, self.training.updates)

    def _write_rows(self) -> None:
        if self.folder is None or not self._rows:
            return
        path = self.folder / "log.csv"
        with writing(path):
            if not self._log_is_ours:  # a run that was killed may have logged updates that are made again
                _keep_rows_before(path, self._rows[0]["update"])
                self._log_is_ours = True
            with path.open("a", newline="") as file:
                csv.DictWriter(file, _COLUMNS).writerows(self._rows)
        self._rows.clear()


def _keep_rows_before(path: Path, update: int) -> None:
    kept: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="") as file:
            lines = [line for line in file if line.endswith("\n")]  # a full disk, or a kill, may have cut the last
        kept = [row for row in csv.DictReader(lines) if int(row["update"]) < update]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    writer.writerows(kept)
    write_whole(path, text.getvalue().encode())


@contextmanager
def monitored(training: Training) -> Iterator[Monitor]:
    """Yields a Monitor, with the profilers that the options ask for."""
    options, monitor = training.options, Monitor(training)
    slow = [name for name in ("detect_syncs", "detect_anomaly") if getattr(options, name)]
    slow += [f"profile={options.profile}"] if options.profile != "none" else []
    for name, wanted in (("tensorboard", options.tensorboard), ("profile='trace'", options.profile == "trace")):
        if wanted and options.output_dir is None:
            raise OptionError(f"{name} needs output_dir, where it writes its files")
    if slow and monitor.is_main:
        print(f"note: training is slower with {', '.join(slow)}; leave it out for real runs")
    with ExitStack() as stack:
        if options.detect_syncs:
            monitor.finder = stack.enter_context(SyncFinder(training.device))
        if options.profile == "trace" and monitor.folder is not None:
            monitor.trace = stack.enter_context(_tracer(training, monitor.folder))
        if options.profile == "cprofile":
            stack.enter_context(_cprofile(monitor))
        yield monitor


def _tracer(training: Training, folder: Path) -> torch.profiler.profile:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if training.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(wait=0, warmup=_TRACED[0], active=_TRACED[1], repeat=1)
    return torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        on_trace_ready=lambda trace: trace.export_chrome_trace(str(folder / "trace.json")),
        acc_events=True,  # torch 2.11 warns without it, though the schedule has one cycle
    )


@contextmanager
def _cprofile(monitor: Monitor) -> Iterator[None]:
    profile = cProfile.Profile()
    with profile:
        yield
    if monitor.folder is not None:
        profile.dump_stats(monitor.folder / "profile.pstats")
    if monitor.is_main:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(25)
