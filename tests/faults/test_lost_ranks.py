"""Ranks that never come, or are lost while training starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from places import HELPERS
from warm_python import run_python

from fastdata import OptionError
from fastdata.train.ranks import join_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
TIMEOUT_S = 5.0
PLACES = ["count of batches", "broadcast of weights", "search for checkpoints", "check of the folder"]
JOINING = """
import sys, time, torch
from fastdata.errors import TrainError
from fastdata.train.ranks import join_ranks
began = time.monotonic()
try:
    join_ranks(torch.device("cpu"), float(sys.argv[1]))
except TrainError as error:
    print(f"{time.monotonic() - began:.2f} {error}")
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def environment(port: int, world: int) -> dict[str, str]:
    sizes = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    path = f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": path, **sizes}


def start(rank: int, port: int, world: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", JOINING, str(TIMEOUT_S)],
        env=environment(port, world) | {"RANK": str(rank)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> tuple[float, str]:
    try:
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    seconds, _, message = output.partition(" ")
    return float(seconds), message


def test_a_rank_that_waits_for_another_one_ends_by_the_time_limit() -> None:
    """torch connects to rank 0 twice."""
    for rank in (0, 1):
        waited_s, message = told(start(rank, free_port(), 2))
        assert 0.8 * TIMEOUT_S <= waited_s <= 4 * TIMEOUT_S
        assert f"rank {rank} of 2 could not join the others: " in message
        assert "--timeout-s" in message


@pytest.mark.parametrize(("name", "value"), [("MASTER_ADDR", None), ("MASTER_PORT", None), ("MASTER_PORT", "http")])
def test_an_address_that_is_none_is_refused_at_once(
    name: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each, known in environment(29500, 2).items():
        monkeypatch.setenv(each, known)
    monkeypatch.setenv("RANK", "1")
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=f"WORLD_SIZE=2 is set, but .*({name}|{value})"):
        join_ranks(torch.device("cpu"), 60.0)


@pytest.mark.parametrize(("place", "world"), [*((place, 2) for place in PLACES), *((place, 3) for place in PLACES[:2])])
def test_a_rank_lost_while_training_starts_ends_the_others(place: str, world: int, tmp_path: Path) -> None:
    what = f"lost at the {place}"
    program = [HELPERS / "rank_program.py", what, tmp_path, str(world)]
    done = run_python(program, env=environment(free_port(), world))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [1] * (world - 1) + [-9]
    for rank in range(world - 1):
        errors = (tmp_path / f"{what}-{rank}.err").read_text()
        assert f"TrainError: rank {rank} of {world} lost another rank" in errors
        assert "Traceback" not in errors


def test_all_ranks_continue_from_the_checkpoint_before_a_damaged_one(tmp_path: Path) -> None:
    for what in ("whole", "resume"):
        done = run_python([HELPERS / "rank_program.py", what, tmp_path, "2"], env=environment(free_port(), 2))
        assert json.loads(done.stdout.splitlines()[-1]) == [0, 0]
        latest = max((tmp_path / "run").glob("*.pt"))
        if what == "whole":
            latest.write_bytes(latest.read_bytes()[:-1])
    assert f"{latest.name} is damaged" in (tmp_path / "resume-0.err").read_text()
    assert "is damaged" not in (tmp_path / "resume-1.err").read_text()
    assert latest.with_name(f"{latest.name}.damaged").exists()
    for rank in range(2):
        whole, again = (torch.load(tmp_path / f"{what}-2-{rank}.pt") for what in ("whole", "resume"))
        assert again["losses"] == whole["losses"]
