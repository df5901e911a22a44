"""Plants faults: takes guards out of the package one at a time, and shows that a test fails without each of them.

python tests/faults/planted.py               all of them, some minutes
python tests/faults/planted.py NAME ...      some
python tests/faults/planted.py --check       whether each guard is still there to be taken out, at once

Each is taken out in a copy of the package, which the test imports; the tree itself is never changed.  The test must
pass in the untouched copy, and fail in the changed one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 300


@dataclasses.dataclass(frozen=True)
class Guard:
    """Lines that keep a promise.

    Attributes:
        file: of the package.
        text: what is taken out; it stands there once.
        instead: what comes in its place, so that the file can still be read.
        command: that fails without it, behind `python`.
    """

    file: str
    text: str
    instead: str
    command: Sequence[str]


def pytest_of(path: str, name: str = "") -> list[str]:
    """pytest for a file, or for the tests with a name in it."""
    return ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{path}", *(["-k", name] if name else [])]


def campaign(name: str, rounds: int) -> list[str]:
    """Some rounds of a fault campaign."""
    return ["tests/faults/long.py", name, "--rounds", str(rounds), "--limit-s", "30"]


GUARDS = {
    "a thread is woken when its task is queued": Guard(
        "fastdata/pipeline/jobs.py",
        "            self.queue.extend((flight, task) for task in tasks)\n            self.changed.notify_all()\n",
        "            self.queue.extend((flight, task) for task in tasks)\n",
        campaign("schedules", 300),
    ),
    "an error that waits does not keep its iterator alive": Guard(
        "fastdata/pipeline/jobs.py", "error.with_traceback(below)", "error", campaign("schedules", 300)
    ),
    "threads are joined": Guard(
        "fastdata/pipeline/jobs.py",
        "                thread.join(max(0.0, deadline - time.monotonic()))\n",
        "                pass\n",
        pytest_of("lifecycle/test_lifecycle.py", "break_stops or many_breaks"),
    ),
    "who waits is told that another thread has closed": Guard(
        "fastdata/pipeline/jobs.py",
        "        if in_time and not flight.done:\n            raise",
        "        if False:\n            raise",
        campaign("schedules", 300),
    ),
    "a forked child is refused its parent's iterator": Guard(
        "fastdata/pipeline/jobs.py",
        "        if os.getpid() != self._shared.owner_pid:\n            raise PipelineError(",
        "        if False:\n            raise PipelineError(",
        pytest_of("lifecycle/test_lifecycle.py", "inherited"),
    ),
    "the consumer's stream waits for the copy": Guard(
        "fastdata/device/prefetch.py",
        "        self._streams.consumer_waits_for(copy.done)\n",
        "",
        campaign("device_schedules", 100),
    ),
    "memory is kept while the consumer's stream uses it": Guard(
        "fastdata/device/prefetch.py",
        "            self._streams.consumer_uses(tensor)\n",
        "",
        campaign("device_schedules", 100),
    ),
    "a block of memory is not given out while a tensor sees it": Guard(
        "fastdata/pipeline/batch_memory.py",
        "        weakref.finalize(lease, self._give_back, block).atexit = False\n",
        "        self._give_back(block)\n",
        pytest_of("lifecycle/test_memory.py", "not_used_while"),
    ),
    "memory that is refused is one batch's error": Guard(
        "fastdata/pipeline/batch_memory.py",
        "except (MemoryError, RuntimeError) as error:",
        "except ZeroDivisionError as error:",
        pytest_of("faults/test_no_memory_for_a_batch.py"),
    ),
    "an image that changed in place is another one to the cache": Guard(
        "fastdata/pipeline/record_cache.py",
        "changed_ns if os.name",
        "0 if os.name",
        pytest_of("pixels/test_record_cache.py", "changed_but"),
    ),
    "a forked child does not write to its parent's cache files": Guard(
        "fastdata/pipeline/record_cache.py",
        "if self._process is not None and self._process != os.getpid():",
        "if False:",
        pytest_of("pixels/test_record_cache.py", "forked"),
    ),
    "a checkpoint's bytes have their checksum": Guard(
        "fastdata/train/checkpoint_files.py",
        "if _digits(file, size - _DIGITS) != tail[-_DIGITS:]:",
        "if False:",
        pytest_of("faults/test_damaged_checkpoints.py"),
    ),
    "a file appears under its name only when it is whole": Guard(
        "fastdata/system/files.py",
        '    partial = path.with_name(f".{path.name}.partial")\n',
        "    partial = path\n",
        pytest_of("shards/test_convert.py", "killed_at_any_moment"),
    ),
    "only regular files are read": Guard(
        "fastdata/system/files.py",
        "        check_regular(os.fstat(number), path)\n",
        "        pass\n",
        pytest_of("faults/test_not_regular_files.py", "image or checkpoint"),
    ),
    "encoded bytes have a limit": Guard(
        "fastdata/limits.py",
        "    return MAX_ENCODED_BYTES is not None and size_bytes > MAX_ENCODED_BYTES\n",
        "    return False\n",
        pytest_of("faults/test_encoded_bytes.py"),
    ),
    "decoded pixels have a limit": Guard(
        "fastdata/loaders/pillow.py",
        "    return None if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS\n",
        "    return None\n",
        pytest_of("lifecycle/test_errors.py", "bomb"),
    ),
    "an image in a shard has its checksum": Guard(
        "fastdata/shards/dataset.py",
        "        if found != expected:\n",
        "        if False:\n",
        pytest_of("shards/test_dataset.py"),
    ),
    "a shard that is downloaded has its checksum": Guard(
        "fastdata/shards/cache.py",
        "            if found != expected:\n                (size, crc)",
        "            if False:\n                (size, crc)",
        pytest_of("shards/test_remote_faults.py"),
    ),
    "a cache that is emptied meanwhile is filled again": Guard(
        "fastdata/shards/cache.py",
        "            except FileNotFoundError as error:  # never the store's",
        "            except ZeroDivisionError as error:  # never the store's",
        pytest_of("faults/test_emptied_cache.py"),
    ),
    "a batch that a worker cannot send is an error": Guard(
        "fastdata/dataloader/worker_faults.py",
        "        send_errors_of_queues(_send_the_reason)\n",
        "",
        pytest_of("faults/test_worker_processes.py", "shared_memory"),
    ),
    "workers end with their parent": Guard(
        "fastdata/dataloader/worker_faults.py",
        "        _end_with_the_training_process(self._training, self._starter)\n",
        "",
        pytest_of("faults/test_worker_processes.py", "killed_main"),
    ),
    "a message that cannot be unpacked ends the iterator": Guard(
        "fastdata/dataloader/worker_faults.py",
        "            self._note_lost(error)\n",
        "",
        pytest_of("faults/test_worker_processes.py", "descriptors"),
    ),
    "a state before the first batch has the dataset's place": Guard(
        "fastdata/dataloader/record.py",
        "        if self.begun_state is None and not (lazily and self._after_break):\n",
        "        if True:\n",
        pytest_of("faults/test_states_at_every_place.py", "lazy"),
    ),
    "an order that is not repeated is refused": Guard(
        "fastdata/order/epoch_batches.py",
        "or (self.state.checksum is not None and self.state.checksum != self._checksum)",
        "or False",
        pytest_of("order/test_resume_exactly.py", "repeat or checksum or refused"),
    ),
    "a substitute that fails is not a failed sample": Guard(
        "fastdata/pipeline/image_batch.py",
        "            if not self._load([(position, substitute, occurrence)], times):",
        "            tried = self._load([(position, substitute, occurrence)], times)\n"
        "            self._failures += tried\n"
        "            if not tried:",
        campaign("accounts", 150),
    ),
    "ranks that do not come are waited for no longer than the limit": Guard(
        "fastdata/train/ranks.py",
        "            timeout=timedelta(seconds=timeout_s),\n",
        "",
        pytest_of("faults/test_lost_ranks.py", "by_the_time_limit"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", help="file for what came of it")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in GUARDS]:
        parser.error(f"no guard is called {', '.join(unknown)}; there are: {'; '.join(GUARDS)}")
    chosen = {name: GUARDS[name] for name in options.names or GUARDS}
    missing = [name for name, guard in chosen.items() if (ROOT / guard.file).read_text().count(guard.text) != 1]
    if missing:
        print("no longer there, or more than once: " + "; ".join(missing), file=sys.stderr)
        return 1
    if options.check:
        return 0
    with tempfile.TemporaryDirectory(prefix="fastdata-planted-") as folder:
        copy = Path(folder) / "copy"
        for name in ("fastdata", "tests", "tools", "examples", "benchmarks"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        found = {name: _noticed(copy, name, guard) for name, guard in chosen.items()}
    if options.json:
        Path(options.json).write_text(json.dumps({"guards": found}, indent=1) + "\n")
    unnoticed = [name for name, noticed in found.items() if not noticed]
    print(f"{len(found) - len(unnoticed)} of {len(found)} planted faults were found")
    return int(bool(unnoticed))


def _noticed(copy: Path, name: str, guard: Guard) -> bool:
    """True if the command passes with the guard and fails without it."""
    began = time.monotonic()
    if not _passes(copy, guard):
        print(f"FAILS ANYWAY  {name}: {' '.join(guard.command)}", flush=True)
        return False
    file = copy / guard.file
    whole = file.read_text()
    changed = whole.replace(guard.text, guard.instead)
    compile(changed, guard.file, "exec")  # a file that cannot be read would fail every test
    file.write_text(changed)
    try:
        noticed = not _passes(copy, guard)
    finally:
        file.write_text(whole)
    print(f"{'found        ' if noticed else 'NOT FOUND    '} {name} ({time.monotonic() - began:.0f} s)", flush=True)
    return noticed


def _passes(copy: Path, guard: Guard) -> bool:
    """Runs the guard's command on the copy, with the native core that is installed here."""
    from fastdata.native import abi

    core = abi._find()
    # Without site-packages as a site, whose hook for editable packages would find the tree itself.
    paths = [str(copy), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "FASTDATA_NATIVE_LIBRARY": str(core),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    python = getattr(sys, "_base_executable", sys.executable)
    try:
        done = subprocess.run(
            [python, *guard.command],
            cwd=copy,
            env=environment,
            timeout=LIMIT_S,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
