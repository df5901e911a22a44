"""Rows of gpu_check.py with several processes, or with the group of processes that several GPUs have."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

from gpu_row import Failed, Row, run


def ranks(row: Row) -> dict[str, Any]:
    """Two processes on one GPU: accumulation, statistics over both with recomputation, and one that is killed."""
    base = ["--model", "small", "--epochs", "1", "-b", "8", "--train-crop-size", "32", "--val-resize-size", "32"]
    base += ["--val-crop-size", "32", "--device", row.device.type, "--workers", "1", "--data-path", str(row.images())]
    accumulated, recomputed = ["--accumulate", "2"], ["--checkpoint-every-k", "1"]
    runs = {"no_sync with recomputation": [*accumulated, *recomputed]}
    if not row.dry:
        runs = {"no_sync": accumulated, "recomputation": recomputed}
        runs["SyncBatchNorm with recomputation"] = [*recomputed, "--sync-bn"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found: dict[str, Any] = {}
    for name, more in runs.items():
        began = time.monotonic()
        done = run([*launcher, "-m", "fastdata.train", *base, *more])
        if done.returncode != 0:
            raise Failed(f"{name}: {_said(done.stderr)}")
        found[name] = f"{time.monotonic() - began:.0f} s"
    program = Path(row._scratch.name) / "killed.py"
    program.write_text(_KILLED.format(device=row.device.type))
    done = run([*launcher, str(program)])
    noticed = re.search(r"lost another rank.*\nnoticed after ([\d.]+) s", done.stderr)
    if done.returncode == 0 or noticed is None:
        raise Failed(f"a killed rank: exit status {done.returncode}, {_said(done.stderr)}")
    found["killed rank noticed in"] = f"{noticed[1]} s"
    return found


_KILLED = """
import os, signal, sys, time, torch
from fastdata.errors import TrainError
from fastdata.train.ranks import end_at_once, join_ranks

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, which would end this rank before it has noticed
ranks = join_ranks(torch.device("{device}"), 120.0)
began = time.monotonic()
try:
    with ranks.together():
        values = torch.ones(1000, device="{device}")
        for step in range(1000):
            ranks.sum(values)
            began = time.monotonic()
            if step == 5 and ranks.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        values.sum().item()
except TrainError as error:
    end_at_once(f"TrainError: {{error}}\\nnoticed after {{time.monotonic() - began:.1f}} s")
"""


def nccl(row: Row) -> dict[str, Any]:
    """A group of one process with the backends of several GPUs: DDP, sums on host and device, votes, a clean end."""
    program = Path(row._scratch.name) / "alone.py"
    backend, name = ("gloo", "cpu") if row.dry else ("cpu:gloo,cuda:nccl", "cuda:0")
    program.write_text(_ALONE.format(backend=backend, device=name))
    done = run([sys.executable, str(program)], limit_s=50.0)
    if done.returncode != 0 or done.stdout.splitlines()[-1:] != ["ended well"]:
        raise Failed(f"exit status {done.returncode}, {_said(done.stderr)}")
    return {"backend": backend}


_ALONE = """
import torch
import torch.distributed as dist
from fastdata.train.ranks import Ranks, Vote, leave_ranks

device = torch.device("{device}")
known = dict(device_id=device) if device.type == "cuda" else dict()
dist.init_process_group("{backend}", store=dist.HashStore(), rank=0, world_size=1, **known)
peers = [None]
dist.all_gather_object(peers, "this process")
assert peers == ["this process"]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2).to(device))
for step in range(3):
    model(torch.ones(4, 8, device=device)).sum().backward()
for values in (torch.ones(3, device=device), torch.ones(3)):
    dist.all_reduce(values)
    assert values.sum().item() == 3.0
dist.broadcast(torch.ones(3, device=device), 0)
assert Vote(True).is_yes() and not Vote(False).is_yes()
del model
leave_ranks()
print("ended well")
"""


def _said(stderr: str) -> str:
    """The line that names the error, among those of the launcher."""
    named = [line for line in stderr.splitlines() if re.match(r"(\w+\.)*\w+Error: ", line)]
    return named[0] if named else stderr[-800:]
