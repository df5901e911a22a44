"""Runs one variant in its peer's environment, told by lines of JSON on the standard input; answers on the output.

prepare: writes its format.  first: opens a loader and waits for the first batch.  epoch: all batches of one pass of the
loader that stays open, or several until some time is over.  anew: a pass of a new loader.  check: what the values look
like.  Whatever peers print goes to the standard error.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import programs
import torch
from seen import Seen
from workloads import WORKLOADS


class Worker:
    """One variant on one workload."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.program = importlib.import_module(f"programs.{told['program']}")
        self.job = programs.Job(
            work=replace(WORKLOADS[told["work"]], count=told.get("count", WORKLOADS[told["work"]].count)),
            option=told["option"],
            images=Path(told["images"]),
            stored=Path(told["stored"]),
            threads=1,
        )
        self.loader: programs.Loader | None = None

    def prepare(self) -> dict[str, Any]:
        """Writes its own format."""
        began = time.perf_counter()
        self.program.prepare(self.job)
        return {"seconds": time.perf_counter() - began}

    def first(self, threads: int) -> dict[str, Any]:
        """A new loader; the one that stays open is closed before."""
        self.close()
        self.job = replace(self.job, threads=threads)
        began = time.perf_counter()
        self.loader = self.program.loader(self.job)
        batches = iter(self.loader.epoch())
        next(batches)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        for _ in batches:  # to the end, so that the next pass begins with an idle loader
            pass
        return {"seconds": seconds}

    def cpu(self) -> dict[str, Any]:
        """CPU seconds of this process, to the nanosecond; those of others are known in hundredths of a second."""
        return {"seconds": time.process_time()}

    def close(self) -> dict[str, Any]:
        """Ends what the loader has started."""
        if self.loader is not None:
            self.loader.close()
            self.loader = None
            gc.collect()
        return {}

    def anew(self, threads: int) -> dict[str, Any]:
        """A pass of a new loader, with what it takes to open it, which is closed again."""
        self.job = replace(self.job, threads=threads)
        began = time.perf_counter()
        self.loader = self.program.loader(self.job)
        self.epoch()
        seconds = time.perf_counter() - began
        return {**self.close(), "seconds": seconds}

    def epoch(self, least_s: float = 0.0) -> dict[str, Any]:
        """Whole passes, one after the other, until at least so many seconds are over."""
        assert self.loader is not None
        began, cpu = time.perf_counter(), time.thread_time()
        images = passes = 0
        seconds = -1.0
        while seconds < least_s:
            images += sum(len(batch[1]) for batch in self.loader.epoch())
            passes += 1
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began
        consumer = time.thread_time() - cpu  # what no number of workers can share
        found = {"seconds": seconds, "images": images, "passes": passes, "consumer_cpu_s": consumer}
        return {**found, "gpu_s": self._gpu_s() * passes} if torch.cuda.is_initialized() else found

    def _gpu_s(self) -> float:
        """Seconds of work on the GPU in one more pass, which is not measured otherwise: the profiler slows it down."""
        assert self.loader is not None
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
            for _ in self.loader.epoch():
                pass
            torch.cuda.synchronize()
        return sum(each.self_device_time_total for each in profile.key_averages()) / 1e6

    def check(self, to: str) -> dict[str, Any]:
        """What a pass of a loader with one thread looks like, see `Seen`; pixels of its first images into a file."""
        opened = self.program.loader(self.job)
        seen = Seen(self.job.work)
        for images, targets in opened.epoch():
            seen.add(images, targets)
        opened.close()
        seen.save_pixels(to)
        return seen.to_dict()


def main() -> None:
    """Answers until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker: Worker | None = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if told["do"] == "start":
                worker = Worker(told)
                answer: dict[str, Any] = {}
            else:
                answer = getattr(worker, told["do"])(*told.get("with", []))
        except Exception as error:  # noqa: BLE001 - a peer's failure is a result
            answer = {"problem": f"{type(error).__name__}: {error}"[:400]}
            traceback.print_exc()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
