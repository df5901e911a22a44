"""Runs rank_program.py for every rank, and compares what the ranks say with one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from places import HELPERS
from warm_python import run_python

from fastdata.train.ranks import SHARE_GPU

__all__ = ["TOLERANCE", "check_like_one", "outcomes", "results"]

PROGRAM = HELPERS / "rank_program.py"
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}  # gradients are summed in another order


def outcomes(what: str, output: Path, world: int) -> list[tuple[int, str]]:
    """Runs all ranks; exit status and stderr of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sizes = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **sizes}
    arguments = [str(PROGRAM), what, str(output), str(world)]
    if "cuda" in what:
        shares = {SHARE_GPU: "1"} if torch.cuda.device_count() < world else {}
        return _started_apart(arguments, environment | shares, world)
    done = run_python(arguments, env=environment)
    assert done.returncode == 0, done.stderr
    return [
        (status, (output / f"{what}-{rank}.err").read_text())
        for rank, status in enumerate(json.loads(done.stdout.splitlines()[-1]))
    ]


def _started_apart(arguments: list[str], environment: dict[str, str], world: int) -> list[tuple[int, str]]:
    """Starts each rank for itself: CUDA cannot be used in forked processes once their parent has asked for it."""
    ranks = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        told = [process.communicate(timeout=150)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return [(process.returncode, errors) for process, errors in zip(ranks, told, strict=True)]


def results(what: str, output: Path, world: int) -> list[dict[str, Any]]:
    """Runs all ranks and returns what each saved."""
    output.mkdir(exist_ok=True)
    for status, errors in outcomes(what, output, world):
        assert status == 0, errors
    return [torch.load(output / f"{what}-{world}-{rank}.pt", map_location="cpu") for rank in range(world)]


def check_like_one(ours: list[dict[str, Any]], alone: dict[str, Any], *, loosened: float = 1.0) -> None:
    """Compares weights, losses and validation of each rank with those of one process."""
    tolerance = {name: loosened * each for name, each in TOLERANCE.items()}
    for rank in ours:
        pairs = zip(rank["weights"], alone["weights"], strict=True)
        assert all(torch.allclose(a.cpu(), b.cpu(), **tolerance) for a, b in pairs)
        assert rank["losses"] == pytest.approx(alone["losses"], rel=tolerance["rtol"])
        for name in ("loss", "val_loss", "val_accuracy"):
            found = [epoch[name] for epoch in rank["epochs"]]
            assert found == pytest.approx([epoch[name] for epoch in alone["epochs"]], rel=tolerance["rtol"])
