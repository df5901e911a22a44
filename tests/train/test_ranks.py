"""Processes that train together, for real, by gloo on this machine."""

from __future__ import annotations

import itertools
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from many_ranks import check_like_one, outcomes, results
from rank_program import COUNT, run
from warm_python import run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process with the joint batch."""
    return run("alone", tmp_path_factory.mktemp("alone"), 1, 0)


@pytest.mark.parametrize("world", [2, 4])
def test_several_processes_train_like_one_with_the_joint_batch(
    alone: dict[str, Any], tmp_path: Path, world: int
) -> None:
    """37 samples in joint batches of 8: the last batch is uneven, and with 4 processes some have one batch less."""
    ours = results("together", tmp_path, world)
    check_like_one(ours, alone)
    for epoch in range(2):
        shares = [rank["asked"] for rank in ours]
        sizes = [len(share) // 2 for share in shares]
        seen = [index for share, size in zip(shares, sizes, strict=True) for index in share[epoch * size :][:size]]
        assert sorted(seen) == list(range(COUNT))
    assert sorted(index for rank in ours for index in rank["validated"]) == sorted([*range(COUNT)] * 2)


def test_a_killed_process_stops_the_others_and_the_run_resumes_with_another_number(
    alone: dict[str, Any], tmp_path: Path
) -> None:
    (first, errors), (second, _) = outcomes("killed", tmp_path, 2)
    assert (first, second) == (1, -9)
    assert "TrainError: rank 0 of 2 lost another rank, which was killed, failed or hangs" in errors
    assert "resume='auto'" in errors
    saved = sorted((tmp_path / "run").glob("checkpoint-*.pt"))
    assert int(saved[-1].stem[-8:]) == 3
    check_like_one(results("resume", tmp_path, 4), alone)


@pytest.mark.parametrize(("before", "after", "checkpoint"), [(4, 2, 2), (2, 4, 9)])
def test_with_another_number_of_processes_every_sample_is_still_seen_once(
    tmp_path: Path, before: int, after: int, checkpoint: int
) -> None:
    """Two samples per process and batch, so that the joint batch changes; at the end ranks are idle."""
    first = results("first-2", tmp_path, before)
    for path in sorted((tmp_path / "run").glob("checkpoint-*.pt"))[checkpoint:]:
        path.unlink()
    seen = {index for rank in first for index in rank["asked"][: checkpoint * 2]}
    rest = results("resume-2", tmp_path, after)
    rest_of_epoch = COUNT - len(seen)
    asked = sum(len(rank["asked"]) for rank in rest)
    assert rest_of_epoch + COUNT <= asked <= rest_of_epoch + COUNT + after  # an idle rank asks for a stand-in
    assert seen | {index for rank in rest for index in rank["asked"]} == set(range(COUNT))
    for rank in rest:
        assert all(torch.isfinite(weight).all() for weight in rank["weights"])
        assert all(torch.equal(a, b) for a, b in zip(rank["weights"], rest[0]["weights"], strict=True))
        assert len(rank["epochs"]) == 2
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()[1:]
    rates = [float(row.split(",")[3]) for row in rows]
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    steps = 2 * -(-COUNT // (2 * after))  # of the second run's plan, to whose end the rate falls
    assert rates[-1] == pytest.approx(0.025 * (1 + math.cos(math.pi * (1 - 1 / steps))))


@pytest.mark.parametrize("who", ["signalled0", "signalled1", "signalled2"], ids=["rank 0", "rank 1", "all"])
def test_a_signal_to_any_process_stops_all_at_the_same_update(tmp_path: Path, who: str) -> None:
    """It comes while the third batch is read; the next look at the losses would be a thousand updates later."""
    ours = results(who, tmp_path, 2)
    assert [rank["stopped"] for rank in ours] == [True, True]
    (made,) = {len(rank["losses"]) for rank in ours}
    assert 3 <= made <= 4
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*.pt")] == [f"checkpoint-{made:08}.pt"]


def test_an_update_without_any_image_moves_no_weight_to_nowhere(tmp_path: Path) -> None:
    for rank in results("short", tmp_path, 2):
        assert [loss == loss for loss in rank["losses"]] == [True, True, True, True, True, False] * 2
        assert all(torch.isfinite(weight).all() for weight in rank["weights"])
        assert all(entry["loss"] == entry["loss"] for entry in rank["epochs"])


def test_an_empty_batch_counts_nothing(tmp_path: Path) -> None:
    """On both processes at once, so that an update has no image."""
    for rank in results("empty", tmp_path, 2):
        assert [loss == loss for loss in rank["losses"]] == [True, False, True, True, True] * 2
        assert all(torch.isfinite(weight).all() for weight in rank["weights"])


FLAGS = ["--model", "small", "--epochs", "1", "-b", "6", "--train-crop-size", "32", "--val-resize-size", "32"]
FLAGS += ["--val-crop-size", "32", "--device", "cpu", "--workers", "1"]


def torchrun(folder: Path, *more: str, world: int = 2) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    done = run_python([*launcher, "-m", "fastdata.train", "--data-path", folder, *FLAGS, *more])
    assert done.returncode == 0, done.stderr
    return done


def test_torchrun_starts_the_command(folder: Path, tmp_path: Path) -> None:
    done = torchrun(folder, "--output-dir", str(tmp_path))
    assert done.stdout.count("epoch 0") == 1
    assert (tmp_path / "result.json").exists()


def test_a_checkpoint_is_validated_jointly_and_told_once(folder: Path, tmp_path: Path) -> None:
    """Six images in batches of three, whose losses are summed to the last bit, whoever has which.

    Batches of other sizes may differ by float32's rounding inside of the model.
    """
    torchrun(folder, "--output-dir", str(tmp_path), world=1)
    more = ("-b", "3", "--test-only", str(next(tmp_path.glob("*.pt"))))
    alone, joint = (torchrun(folder, *more, world=world).stdout for world in (1, 2))
    assert alone == joint
    assert alone.count("val_loss") == 1


def test_one_process_answers_what_is_only_asked(folder: Path, tmp_path: Path) -> None:
    assert torchrun(folder, "--check", "--remove-biases").stdout.count("biases removed: none") == 1
    done = torchrun(folder, "--find-lr", "--output-dir", str(tmp_path))
    assert done.stdout.count("suggested peak learning rate") == 1
    assert "2 processes have a total batch size of 12: search with -b 12" in done.stdout
    alone = torchrun(folder, "--find-lr", world=1).stdout
    assert done.stdout.startswith(alone)
