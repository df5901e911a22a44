"""Proves on a machine with an NVIDIA GPU what a machine without one cannot show.

python tools/gpu_check.py --budget 540 --out FOLDER        all rows, on the GPU
python tools/gpu_check.py --dry --out FOLDER               the same code in small, on the CPU
python tools/gpu_check.py --only memory copies --out FOLDER

Each row is a process with a limit of its own.  It writes FOLDER/ROW.json when it has ended, so that nothing is lost if
a later one dies; the table, FOLDER/table.txt, is printed at the end and on SIGTERM.  Exit status: 0 if every required
row has passed, 1 if one failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
LEAST_S = 5.0  # a row is not begun with less time


@dataclass(frozen=True)
class Row:
    """A row of the table: a function of gpu_rows.py of this name.

    Attributes:
        limit_s: seconds after which its process is killed.
        required: the command fails if this row fails.
    """

    name: str
    limit_s: float
    required: bool = True


# What proves most comes first: all limits together are more than the default budget.
ROWS = (
    Row("environment", 60),
    Row("coefficients", 240),
    Row("indexed", 120),
    Row("tests", 200),
    Row("memory", 60),
    Row("epochs", 60),
    Row("contexts", 60),
    Row("copies", 60),
    Row("nccl", 60),
    Row("precision", 120),
    Row("ranks", 150),
    Row("resnet50", 150),
    Row("doctor", 60),
    Row("batch_size", 60),
    Row("decoding", 120, required=False),
    Row("augmentations", 90, required=False),
    Row("few_cores", 150, required=False),
    Row("small_model", 150, required=False),
    Row("own_code", 180, required=False),
)


def main() -> int:
    """The command."""
    options = _options()
    rows = [row for row in ROWS if not options.only or row.name in options.only]
    if not options.dry and not _has_gpu():
        print("torch sees no CUDA device; --dry runs the same code in small on the CPU", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    told = Table(options.out)

    def stop(number: int, frame: Any) -> None:
        told.stop()
        sys.exit(told.show(rows))

    signal.signal(signal.SIGTERM, stop)
    deadline = time.monotonic() + options.budget
    for row in rows:
        left_s = deadline - time.monotonic()
        if left_s < LEAST_S:
            told.note(row, {"outcome": "not run", "why": f"the budget of {options.budget:.0f} s was spent"})
            continue
        told.note(row, told.run(row, min(row.limit_s, left_s), options))
    return told.show(rows)


class Table:
    """The rows that have ended; each is kept in a file at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, dict[str, Any]] = {}
        self._running: subprocess.Popen[str] | None = None

    def run(self, row: Row, limit_s: float, options: argparse.Namespace) -> dict[str, Any]:
        """Runs a row in a process group of its own, which is killed after `limit_s`."""
        result, log = self._folder / f"{row.name}.result", self._folder / f"{row.name}.log"
        result.unlink(missing_ok=True)
        command = [sys.executable, str(HERE / "gpu_rows.py"), row.name, "--out", str(result.resolve())]
        command += ["--images", str(options.images)] if options.images else []
        command += ["--dry"] if options.dry else []
        began = time.monotonic()
        with log.open("w") as file:
            self._running = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
            try:
                status: int | None = self._running.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = None
            self.stop()
        found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        if status is None:
            found |= {"outcome": "failed", "why": f"it ran longer than {limit_s:.0f} s"}
        elif status != 0 or "outcome" not in found:
            last = next((line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")
            found |= {"outcome": "failed", "why": f"exit status {status}: {last}"[:300]}
        return {**found, "seconds": round(time.monotonic() - began, 1)}

    def stop(self) -> None:
        """Kills the row that runs, with its processes, of which torchrun's have groups of their own."""
        if self._running is None:
            return
        below: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self._running.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._running.pid, signal.SIGKILL)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._running.wait()
        self._running = None

    def note(self, row: Row, found: dict[str, Any]) -> None:
        """Keeps what came of a row."""
        self._found[row.name] = found
        (self._folder / f"{row.name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"{row.name}: {found['outcome']}", file=sys.stderr, flush=True)

    def show(self, rows: list[Row]) -> int:
        """Prints and keeps the table; returns the exit status."""
        lines = [f"{'row':<14} {'outcome':<10} {'seconds':>7}  what was found"]
        failed = False
        for row in rows:
            found = self._found.get(row.name, {"outcome": "not run", "why": "the command was stopped"})
            failed |= row.required and found["outcome"] not in ("passed", "skipped")  # one that was not run, too
            figures = {key: each for key, each in found.items() if key not in ("outcome", "seconds", "why")}
            parts = [found["why"]] if "why" in found else []
            parts += [f"{key}: {_short(each)}" for key, each in figures.items()]
            lines.append(f"{row.name:<14} {found['outcome']:<10} {found.get('seconds', 0.0):7.1f}  {'; '.join(parts)}")
        (self._folder / "table.txt").write_text("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)
        return int(failed)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(each)}" for key, each in value.items())
    return str(value)


def _has_gpu() -> bool:
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    try:
        return subprocess.run([sys.executable, "-c", probe], check=False, timeout=120).returncode == 0
    except subprocess.TimeoutExpired:
        print("torch did not say within 120 s whether there is a CUDA device", file=sys.stderr)
        return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for all rows (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder for results, made if it is missing")
    parser.add_argument("--images", type=Path, help="folder of images by class; drawn if it is left out")
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], help="rows; all, if left out")
    parser.add_argument("--dry", action="store_true", help="run every row in small on the CPU")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
