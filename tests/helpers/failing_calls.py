"""Runs jobs whose Nth file-system call fails, or before which the process is killed, each in a fork of one server.

The server is this file as a program, started with failing_calls.c preloaded.  It imports what the jobs need once, and
forks for each request: a line of JSON with the job of file_jobs.py and the place and kind of the failure.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
KILL, SHORT, INTERRUPT = 0, -1, -2
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "EMFILE": errno.EMFILE, "short": SHORT}
ERRORS |= {"Ctrl-C": INTERRUPT}
NEVER = 1 << 40
LIMIT_S = 20.0


def rounds_with(folder: Path, kinds: list[str]) -> Callable[[Random], str]:
    """The rounds of a campaign, which walk through all calls with all kinds, in a fixed order.

    Args:
        folder: for the files.
        kinds: "kill", or names of ERRORS; "EIO for good" fails from a call on.
    """
    server = Server(folder)
    counts = sorted(server.counts.items())
    cases = [(job, at, kind) for job, count in counts for at in range(1, count + 1) for kind in dict.fromkeys(kinds)]
    Random(0).shuffle(cases)

    def one(rng: Any) -> str:
        job, at, kind = cases[rng.number % len(cases)]
        answer = server.ask({"job": job, "at": at, "kind": kind})
        assert "broken" not in answer, f"{job}, {kind} at call {at} of {server.counts[job]}: {answer['broken']}"
        return f"{job}: {answer['outcome']}"

    return one


class Server:
    """The process that forks.

    Attributes:
        counts: how many calls each job makes.
    """

    def __init__(self, folder: Path) -> None:
        one_thread = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "failing_calls.py"), str(folder)],
            env={**os.environ, **one_thread, "LD_PRELOAD": str(_library(folder))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.counts: dict[str, int] = self._answer()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What came of one round: its "outcome", or what is "broken"."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server has ended"
        return json.loads(line)


def _library(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("there is no C compiler (cc), with which failing_calls.c is made; install one, such as gcc")
    made = folder / "failing_calls.so"
    command = [compiler, "-shared", "-fPIC", "-O1", str(HERE / "failing_calls.c"), "-o", str(made), "-ldl"]
    subprocess.run(command, check=True)
    return made


def _serve(folder: Path) -> None:
    """Answers requests; the first answer says how many calls each job makes."""
    import file_jobs

    told = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a job prints is no answer

    def tell(answer: Any) -> None:
        os.write(told, json.dumps(answer).encode() + b"\n")

    jobs = file_jobs.make(folder / "work")
    wholes = {}
    for name, job in jobs.items():
        job.begin()
        job.run()  # here, so that forks need not import
        wholes[name] = _forked(lambda job=job: _whole(job))
        assert "result" in wholes[name], f"{name}: {wholes[name]}"
    gc.collect()
    gc.freeze()  # forks copy no page because of what is collected
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"
    tell({name: whole["calls"] for name, whole in wholes.items()})
    for line in sys.stdin:
        request = json.loads(line)
        tell(_round(jobs[request["job"]], wholes[request["job"]], request["at"], request["kind"]))


def _whole(job: Any) -> dict[str, Any]:
    """An undisturbed run: its result and calls, and what is in its files before and after."""
    job.begin()
    before, calls = job.files(), _Calls()
    calls.arm(job.work, NEVER, KILL, lasting=False)
    result = job.run()
    return {"calls": calls.disarm(), "result": result, "before": before, "after": job.files()}


def _round(job: Any, whole: dict[str, Any], at: int, kind: str) -> dict[str, Any]:
    first = _forked(lambda: _disturbed(job, at, kind))
    if "broken" in first:
        return first
    second = _forked(lambda: _finished(job, whole))
    if "broken" in second:
        second["broken"] += f"\nafter: {first}"
        return second
    survived, wanted = first.get("result"), whole["result"]
    if first["outcome"] == "warned":  # so a file may be missing that others can do without
        survived, wanted = survived[0], wanted[0]
    has_stopped = kind == "Ctrl-C" and job.stops_when_asked
    if survived is not None and survived != wanted and not has_stopped:
        return {"broken": f"not told, but the result is {survived} instead of {wanted}"}
    return {"outcome": first["outcome"]}


def _disturbed(job: Any, at: int, kind: str) -> dict[str, Any]:
    job.begin()
    calls = _Calls()
    name, _, lasting = kind.partition(" ")
    calls.arm(job.work, at, ERRORS.get(name, KILL), lasting=bool(lasting))
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = job.run()
    except KeyboardInterrupt:
        calls.disarm()
        return {"outcome": "interrupted"}
    except Exception as error:  # noqa: BLE001 - which kinds are right is the question
        calls.disarm()
        words = traceback.format_exc()
        return {"outcome": "told"} if _is_told(error, job.work) else {"broken": f"not told in words:\n{words}"}
    calls.disarm()
    outcome = "survived" if calls.has_struck() else "no such call"
    if any(_says_why(each.message, job.work) for each in warned):
        outcome = "warned"
    return {"outcome": outcome, "result": result}


def _is_told(error: Exception, work: Path) -> bool:
    """True for an error of fastdata's, or of the system, that names the file or the reason."""
    from fastdata.errors import FastdataError

    return isinstance(error, FastdataError | OSError) and _says_why(error, work)


def _says_why(told: Exception, work: Path) -> bool:
    reasons = [os.strerror(number) for number in ERRORS.values() if number > 0]
    return any(each in str(told) for each in [str(work), *reasons, "no space left", "quota is used up"])


def _finished(job: Any, whole: dict[str, Any]) -> dict[str, Any]:
    """Looks for what is half-made under a final name, and runs the job again."""
    wrong = {
        name: digest
        for name, digest in job.files().items()
        if not job.is_temporary(name) and digest not in (whole["before"].get(name), whole["after"].get(name))
    }
    wrong.update(job.half_made())
    if wrong:
        return {"broken": f"half-made: {wrong}"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = job.again()
    if result != whole["result"]:
        return {"broken": f"run again, the result is {result} instead of {whole['result']}"}
    if left := [name for name in job.files() if name not in whole["after"]]:
        return {"broken": f"left behind: {left}"}
    return {"outcome": "finished"}


class _Calls:
    """The functions of the preloaded library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.arm.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int)
        self._library.disarm.restype = ctypes.c_long

    def arm(self, folder: Path, at: int, error: int, *, lasting: bool) -> None:
        assert self._library.arm(os.fsencode(folder), at, error, lasting) == 0

    def disarm(self) -> int:
        return int(self._library.disarm())

    def has_struck(self) -> bool:
        return bool(self._library.has_struck())


def _forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a function returns in a forked child; "broken" is what went wrong."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException:  # noqa: BLE001 - a fork must not go on as the server
            answer = {"broken": traceback.format_exc()}
        with open(writes, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writes)
    with open(reads, "rb", buffering=0) as file:
        text = b""
        while select.select([file], [], [], LIMIT_S)[0] and (more := file.read(1 << 16)):
            text += more
        hangs = not select.select([file], [], [], 0)[0]
    if hangs:
        os.kill(child, signal.SIGABRT)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if hangs:
        return {"broken": f"it hangs: nothing for {LIMIT_S:.0f} s"}
    if status == -signal.SIGKILL:
        return {"outcome": "killed"}
    return dict(json.loads(text)) if status == 0 else {"broken": f"it ended by signal {-status}"}


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
