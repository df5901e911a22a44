"""What a run shows: where the time goes, losses, logs, plots; and what makes it slower when it is asked for."""

from __future__ import annotations

import cProfile
import csv
import io
import json
import pstats
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastdata.errors import OptionError
from fastdata.files import write_whole
from fastdata.train.state import Training

__all__ = ["SyncFinder", "Watch", "watching"]

_COLUMNS = ("update", "epoch", "loss", "lr", "images_per_s", "wait_share")
_TRACED = (5, 15)  # updates: after the first ones, which warm up


class Watch:
    """Books time and writes logs.  Without profiling it asks the clock twice per batch and waits for no device."""

    def __init__(self, training: Training) -> None:
        self.training, options = training, training.options
        self.is_main = training.ranks.is_main
        self.folder = Path(options.output_dir) if options.output_dir is not None and self.is_main else None
        self.seconds = dict.fromkeys(("wait", "forward", "backward", "update", "rest"), 0.0)
        self.finder: SyncFinder | None = None
        self._profiled = options.profile == "steps"
        self._at = self._epoch_began = self._looked_at = time.perf_counter()
        self._waited_before = 0.0
        self._images = self._images_before = 0
        self._rows: list[dict[str, Any]] = []
        self._log_is_ours = False
        self._board = _tensorboard(self.folder) if options.tensorboard and self.folder is not None else None
        self.trace: torch.profiler.profile | None = None

    # ---- in the step

    def waits_for(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's batches; the time until each comes is "wait"."""
        self._at = time.perf_counter()
        for batch in loader:
            self.book("wait", always=True)
            self._images += len(batch[1])
            yield batch
            self.book("rest", always=True)

    def book(self, phase: str, *, always: bool = False) -> None:
        """Books the time since the last call; phases of the step only when profiling, which waits for the device."""
        if not (always or self._profiled):
            return
        if self._profiled and self.training.device.type == "cuda":
            torch.cuda.synchronize(self.training.device)
        now = time.perf_counter()
        self.seconds[phase] += now - self._at
        self._at = now

    @contextmanager
    def may_sync(self) -> Iterator[None]:
        """A place where waiting for the device is meant."""
        with self.finder.pause() if self.finder is not None else nullcontext():
            yield

    def show_updates(self, losses: list[float]) -> None:
        """Logs the updates since the last look."""
        training, now = self.training, time.perf_counter()
        if self.trace is not None:
            self.trace.step()
        rate = (self._images - self._images_before) * training.ranks.world_size / max(1e-9, now - self._looked_at)
        share = (self.seconds["wait"] - self._waited_before) / max(1e-9, now - self._looked_at)
        self._looked_at, self._images_before, self._waited_before = now, self._images, self.seconds["wait"]
        lr = training.optimizer.param_groups[0]["lr"]
        first = training.updates - len(losses) + 1
        for number, loss in enumerate(losses, start=first):
            row = (number, training.epoch, repr(loss), lr, round(rate, 1), round(share, 4))  # repr: every bit
            self._rows.append(dict(zip(_COLUMNS, row, strict=True)))
        self._write_rows()
        if self._board is not None:
            self._board.add_scalar("loss", losses[-1], training.updates)
            self._board.add_scalar("images per second", rate, training.updates)
            self._board.add_scalar("learning rate", lr, training.updates)
        if self.is_main and sys.stderr.isatty():
            told = f"epoch {training.epoch} {training.batch}/{training.batches_per_epoch}"
            print(
                f"\r{told}  loss {losses[-1]:.4f}  {rate:.0f} images/s  waiting {share:.0%} ", end="", file=sys.stderr
            )

    # ---- around it

    def say(self, text: str) -> None:
        """Prints a line on rank 0."""
        if self.is_main:
            print(f"\r{text}", flush=True)

    def end_epoch(self, result: Any, epoch: int) -> dict[str, float]:
        """The epoch's figures, which are also put at the end of the result."""
        seconds = time.perf_counter() - self._epoch_began
        samples, loss = result.epoch_totals
        result.epoch_totals = [0.0, 0.0]
        entry = {
            "epoch": epoch,
            "loss": loss / samples if samples else float("nan"),
            "images_per_s": self._images * self.training.ranks.world_size / seconds,
            "wait_share": self.seconds["wait"] / seconds,
        }
        result.epochs.append(entry)
        return entry

    def show_epoch(self, entry: dict[str, float]) -> None:
        """Prints an epoch, with its validation, and begins the next."""
        if self.is_main:
            told = "  ".join(f"{name} {value:.4g}" for name, value in entry.items())
            print(f"\r{told}", flush=True)
            if self.training.scaler.is_enabled():
                print(f"updates skipped by fp16 so far: {int(self.training.skipped)}")
        if self._board is not None:
            for name, value in entry.items():
                self._board.add_scalar(f"epoch/{name}", value, int(entry["epoch"]))
        if self._profiled and self.is_main:
            print(self.table())
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self._images = self._images_before = 0
        self._waited_before = 0.0
        self._epoch_began = self._looked_at = time.perf_counter()

    def end_run(self, result: Any) -> None:
        """Writes the summary and the plots."""
        if self.folder is not None:
            write_whole(self.folder / "result.json", json.dumps(vars(result), indent=1).encode())
            _plot(result, self.folder / "curves.png")
        if self._board is not None:
            self._board.close()
        if self.finder is not None and self.is_main:
            print(self.finder.report())

    def table(self) -> str:
        """Where the time of the steps went; measured by waiting for the device after each phase."""
        total = sum(self.seconds.values()) or 1.0
        lines = [f"  {phase:<9} {seconds:8.3f} s  {seconds / total:6.1%}" for phase, seconds in self.seconds.items()]
        return "\n".join(["where the time went (slower than usual, since each phase is waited for):", *lines])

    def _write_rows(self) -> None:
        if self.folder is None or not self._rows:
            return
        path = self.folder / "log.csv"
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
            kept = [row for row in csv.DictReader(file) if int(row["update"]) < update]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    writer.writerows(kept)
    write_whole(path, text.getvalue().encode())


@contextmanager
def watching(training: Training) -> Iterator[Watch]:
    """A watch, with the profilers that the options ask for."""
    options, watch = training.options, Watch(training)
    slow = [name for name in ("detect_syncs", "detect_anomaly") if getattr(options, name)]
    slow += [f"profile={options.profile}"] if options.profile != "none" else []
    for name, wanted in (("tensorboard", options.tensorboard), ("profile='trace'", options.profile == "trace")):
        if wanted and options.output_dir is None:
            raise OptionError(f"{name} writes into output_dir, which is not set")
    if slow and watch.is_main:
        print(f"note: {', '.join(slow)} makes training slower; leave it out for real runs")
    with ExitStack() as stack:
        if options.detect_syncs:
            watch.finder = stack.enter_context(SyncFinder(training.device))
            _set_cuda_mode(training.device, "warn")
            stack.callback(_set_cuda_mode, training.device, "default")
        if options.profile == "trace" and watch.folder is not None:
            watch.trace = stack.enter_context(_tracer(training, watch.folder))
        if options.profile == "cprofile":
            stack.enter_context(_cprofile(watch))
        yield watch


class SyncFinder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each line outside of torch that waits for the device: `.item()`, `.tolist()`, `.cpu()`, `nonzero`, ….

    Works by looking at the operations as they are dispatched, so it finds them on a CPU, too, where they cost nothing.
    What happens below that (indexing by a mask, copies from pageable memory, compiled code) CUDA's own sync debug mode
    warns of, which a run with `detect_syncs` switches on, too.
    """

    _WAITING = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique")

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._paused = False
        self.places: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._paused and self._waits(func, args, kwargs or {}):
            place = _place_outside_torch()
            if place is not None:
                self.places[place] = self.places.get(place, 0) + 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """For places that are meant to wait."""
        self._paused = True
        _set_cuda_mode(self._device, "default")
        try:
            yield
        finally:
            self._paused = False
            _set_cuda_mode(self._device, "warn")

    def report(self) -> str:
        """One line per place, most frequent first."""
        if not self.places:
            return "no line waits for the device"
        ordered = sorted(self.places.items(), key=lambda item: -item[1])
        return "\n".join(["lines that wait for the device:", *(f"  {place}  ({n} times)" for place, n in ordered)])

    def _waits(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        name = func.__name__.split(".")[0]
        on_device = any(isinstance(a, torch.Tensor) and a.device.type == self._device.type for a in args)
        if name == "_to_copy":  # to the host, and not in the background
            to = kwargs.get("device")
            return on_device and to is not None and torch.device(to).type == "cpu" != self._device.type
        return on_device and name in self._WAITING


def _set_cuda_mode(device: torch.device, mode: str) -> None:
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


def _place_outside_torch() -> str | None:
    """FILE:LINE of the innermost caller that is not torch's; None when torch's optimiser is at work by itself."""
    for frame in reversed(traceback.extract_stack()):
        parts = Path(frame.filename).parts
        if "torch" in parts and "optim" in parts:
            return None
        if "torch" not in parts and frame.filename != __file__:
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return None


def _tracer(training: Training, folder: Path) -> torch.profiler.profile:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if training.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    looks = [max(1, number // training.options.print_freq) for number in _TRACED]
    schedule = torch.profiler.schedule(wait=0, warmup=looks[0], active=looks[1], repeat=1)
    return torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        on_trace_ready=lambda trace: trace.export_chrome_trace(str(folder / "trace.json")),
    )


@contextmanager
def _cprofile(watch: Watch) -> Iterator[None]:
    profile = cProfile.Profile()
    with profile:
        yield
    if watch.folder is not None:
        profile.dump_stats(watch.folder / "profile.pstats")
    if watch.is_main:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(25)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("tensorboard=True needs TensorBoard; install it with: pip install tensorboard") from error
    return SummaryWriter(str(folder / "tensorboard"))


def _plot(result: Any, path: Path) -> None:
    """Loss, accuracy, images per second and waiting, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        warnings.warn("no curves.png: matplotlib is not installed (pip install matplotlib)", stacklevel=2)
        return
    figure = Figure(figsize=(12, 4), layout="constrained")
    left, right, speed = figure.subplots(1, 3)
    left.plot(range(1, len(result.losses) + 1), result.losses, linewidth=0.8)
    left.set(xlabel="update", ylabel="training loss")
    for name in ("val_accuracy", "wait_share"):
        values = [entry[name] for entry in result.epochs if name in entry]
        right.plot(range(len(values)), values, marker="o", label=name.replace("_", " "))
    right.set(xlabel="epoch", ylim=(0, 1.02))
    right.legend()
    speed.plot([entry["images_per_s"] for entry in result.epochs], marker="o")
    speed.set(xlabel="epoch", ylabel="images per second", ylim=(0, None))
    figure.savefig(path, dpi=110)
