"""FSDP2 on CUDA devices: two processes where there are two, and one alone with the same group of processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from many_ranks import check_like_one, outcomes, results
from places import HELPERS
from rank_program import run

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(400)]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
LOOSENED = 20.0  # of the tolerance on the CPU: cuDNN sums in no fixed order


def alone(folder: Path, **more: Any) -> dict[str, Any]:
    return run("alone", folder / "alone", 1, 0, device="cuda", tf32=False, **more)


@two_gpus
def test_weights_that_two_processes_share_train_like_one_process(tmp_path: Path) -> None:
    ours, like = results("sharded, cuda", tmp_path, 2), alone(tmp_path)
    check_like_one(ours, like, loosened=LOOSENED)
    total = sum(weight.numel() for weight in like["weights"])
    assert sum(rank["held"] for rank in ours) == total
    assert all(0 < rank["held"] < total for rank in ours)


@two_gpus
def test_averaged_and_clipped_weights_are_those_of_ddp(tmp_path: Path) -> None:
    ours, like = (results(what, tmp_path / what, 2) for what in ("sharded, cuda, averaged", "cuda, averaged"))
    check_like_one(ours, like[0], loosened=LOOSENED)


@two_gpus
def test_a_sharded_run_goes_on_in_one_process(tmp_path: Path) -> None:
    results("sharded, cuda", tmp_path, 2)
    for path in sorted((tmp_path / "run").glob("checkpoint-*.pt"))[3:]:
        path.unlink()
    with pytest.warns(UserWarning, match="with other options: batch_size was 4, now 8, fsdp was True, now False"):
        resumed = run("alone", tmp_path, 1, 0, device="cuda", tf32=False, resume="auto")
    check_like_one([resumed], alone(tmp_path), loosened=LOOSENED)


@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="needs one CUDA device")
def test_processes_that_share_a_gpu_cannot_share_weights(tmp_path: Path) -> None:
    """With gloo they would end by a signal, without any message: https://github.com/pytorch/pytorch/issues/152645."""
    for status, errors in outcomes("sharded, cuda", tmp_path, 2):
        assert status == 1
        assert "OptionError: fsdp=True needs a GPU for each process: those that share one" in errors


def test_a_group_of_one_shards_by_nccl(tmp_path: Path) -> None:
    """What several GPUs run, but for their number: NCCL's group, mixed precision, gathering, saving, loading."""
    program = tmp_path / "one.py"
    program.write_text(_ONE)
    done = subprocess.run(
        [sys.executable, program], cwd=HELPERS, capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["ended well"]


_ONE = """
import copy, sys
sys.path.insert(0, ".")
import torch
import torch.distributed as dist
from small_training import plain_model
from torch.distributed.tensor import DTensor
from fastdata.train.ranks import Ranks, leave_ranks
from fastdata.train.sharding import gathered, gathered_weights, load_optimizer_state, load_weights, local_parts, shard

device = torch.device("cuda", 0)
dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
torch.backends.cudnn.allow_tf32 = False
whole = plain_model().to(device)
sharded = copy.deepcopy(whole)
shard(sharded, Ranks(), device)
assert all(isinstance(each, DTensor) for each in sharded.parameters())
images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1)).to(device)

def steps(model, optimizer, count):
    losses = []
    for _ in range(count):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), torch.arange(8, device=device) % 4)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses

optimizers = [torch.optim.AdamW(each.parameters(), 0.01, fused=True) for each in (whole, sharded)]
first, second = (steps(each, by, 5) for each, by in zip((whole, sharded), optimizers))
assert all(abs(a - b) < 0.02 for a, b in zip(first, second)), (first, second)
with gathered_weights(sharded), torch.no_grad():
    assert torch.allclose(sharded(images), whole(images), atol=0.05)
state = gathered({"model": sharded.state_dict(), "optimizer": optimizers[1].state_dict()}, keeps=True)
assert all(not isinstance(each, DTensor) and each.device.type == "cpu" for each in state["model"].values())
then = steps(sharded, optimizers[1], 3)
load_weights(sharded, state["model"])
load_optimizer_state(optimizers[1], state["optimizer"])
again = steps(sharded, optimizers[1], 3)
assert all(abs(a - b) < 0.02 for a, b in zip(then, again)), (then, again)
held, total = (sum(each.numel() for each in local_parts(model.parameters())) for model in (sharded, whole))
assert held == total
del sharded, optimizers
leave_ranks()
print("ended well")
"""
