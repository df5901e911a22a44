"""Processes that train together: joining the process group, and sums over it."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from fastdata.errors import FastdataError, OptionError, TrainError
from fastdata.system import cuda, interrupts

__all__ = [
    "SHARE_GPU",
    "Ranks",
    "Vote",
    "end_at_once",
    "is_one_of_several",
    "join_ranks",
    "launched_ranks",
    "leave_ranks",
]

SHARE_GPU = "FASTDATA_RANKS_SHARE_GPU"
"""Environment variable: "1" lets the processes of one machine share its GPUs, with gloo instead of NCCL."""

_LOST = ("connection closed", "connection reset", "broken pipe", "timed out", "gloo", "nccl", "socket")  # in messages


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Rank of this process and world size.

    Attributes:
        rank: number of this process, from 0.
        world_size: number of processes.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """True for rank 0, which prints and writes files."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over all processes, in place, on the device of the values."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """The maximum over all processes."""
        if self.world_size == 1:
            return value
        values = torch.tensor([value])
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return int(values.numpy()[0])

    def union(self, names: Iterable[str]) -> list[str]:
        """The names that any process has, in sorted order."""
        found: list[Any] = [list(names)]
        if self.world_size > 1:
            found = [None] * self.world_size
            dist.all_gather_object(found, list(names))
        return sorted({name for each in found for name in each})

    def take_over(self, values: torch.Tensor) -> None:
        """Overwrites the values with those of rank 0, whatever their strides."""
        if self.world_size > 1:
            whole = values.contiguous()  # gloo writes past the memory of others
            dist.broadcast(whole, 0)
            if whole is not values:
                values.copy_(whole)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Turns communication errors into a clear TrainError; processes that end well leave it together.

        A process whose own error leaves the block must end (`end_at_once`): the others, which may sit in any
        collective, notice nothing else.  gloo notices a closed connection at once, and a process that hangs after
        `timeout_s`; NCCL notices both after that time, and torch then ends the process.

        Raises:
            TrainError: another process was lost.
        """
        try:
            yield
            if self.world_size > 1 and dist.is_initialized():
                self.largest(0)  # else whoever has ended well would be taken for lost by those who save or plot
        except RuntimeError as error:
            if (
                self.world_size == 1
                or isinstance(error, FastdataError)
                or not any(sign in str(error).lower() for sign in _LOST)
            ):
                raise
            raise TrainError(
                f"rank {self.rank} of {self.world_size} lost another rank, which was killed, failed or hangs; see that "
                "rank's message.  Start again with resume='auto', with any number of processes.  "
                f"({str(error).partition(chr(10))[0]})"
            ) from error


class Vote:
    """An asynchronous vote among all processes; every process must take part.

    Args:
        yes: this process's vote.
    """

    def __init__(self, yes: bool) -> None:
        self._answers = torch.tensor([int(yes)])  # on the host, where gloo sums without any device
        self._work = dist.all_reduce(self._answers, dist.ReduceOp.MAX, async_op=True)

    def is_yes(self) -> bool:
        """True if any process voted yes; waits until all have voted."""
        if self._work is not None:
            self._work.wait()
        return bool(self._answers.numpy()[0])


def launched_ranks() -> Ranks:
    """Rank and world size that torchrun set for this process, before it joins the process group."""
    return Ranks(rank=int(os.environ.get("RANK", "0")), world_size=int(os.environ.get("WORLD_SIZE", "1")))


def join_ranks(device: torch.device, timeout_s: float) -> Ranks:
    """Joins the process group if torchrun started this process (RANK and WORLD_SIZE are set), with NCCL or gloo.

    Raises:
        OptionError: the device has a number, which would put every process on the same GPU; or the address of rank 0
            is missing.
        TrainError: another process did not come within the time that torch waits for it, or was lost.
    """
    if launched_ranks().world_size == 1:
        return Ranks()
    if ":" in str(device):
        raise OptionError(f"device={device} under torchrun would put every process on the same GPU; use device=cuda")
    shares = os.environ.get(SHARE_GPU, "0") not in ("", "0")
    number = _gpu_of(int(os.environ.get("LOCAL_RANK", "0")), shares) if device.type == "cuda" else None
    if number is not None:
        cuda.set_device(number)
    # Functions there take the group as a default when they are imported, which DDP does, and would keep it for ever.
    importlib.import_module("torch.distributed.nn.functional")
    by_nccl = number is not None and not shares  # which refuses two processes on one GPU
    backend = "cpu:gloo,cuda:nccl" if by_nccl else "gloo"  # what is on the host waits for no device
    ranks = launched_ranks()
    try:
        dist.init_process_group(
            backend,
            timeout=timedelta(seconds=timeout_s),
            device_id=torch.device("cuda", number) if by_nccl and number is not None else None,
        )
    except ValueError as error:  # an environment variable is missing, or is no number
        raise OptionError(f"WORLD_SIZE={ranks.world_size} is set, but {error}; start with torchrun") from error
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise TrainError(
            f"rank {ranks.rank} of {ranks.world_size} could not join the others: {first}; see whether one was killed "
            "or failed, and whether WORLD_SIZE, MASTER_ADDR and MASTER_PORT are the same everywhere; then start all "
            "ranks again (--timeout-s sets how long they wait)"
        ) from error
    return ranks


def _gpu_of(local_rank: int, shares: bool) -> int:
    """The number of the GPU of this process.

    Raises:
        OptionError: there are fewer GPUs than processes on this machine.
    """
    count = cuda.device_count()
    if count and shares:
        return local_rank % count
    if count == 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        # A scheduler started each process by itself, and lets it see one GPU, its own; NCCL refuses a shared one.
        return 0
    if local_rank >= count:
        raise OptionError(
            f"this is process {local_rank} of this machine (LOCAL_RANK), but there are only {count} GPUs; start with "
            f"--nproc-per-node={max(1, count)}, or set {SHARE_GPU}=1 to let processes share a GPU, for tests"
        )
    return local_rank


def is_one_of_several() -> bool:
    """True if this process has joined a group with other processes."""
    return dist.is_initialized() and dist.get_world_size() > 1


def end_at_once(message: str | None = None, *, status: int = 1) -> NoReturn:
    """Ends this process without leaving its group: that would wait for processes which are in a collective, for ever.

    Its connections are closed by the system, which the others notice.
    """
    interrupts.exit_at_once(status, message)


def leave_ranks() -> None:
    """Leaves the process group, if there is one; call it when training has ended well.

    gloo's threads end with the last reference to the group, and must not outlive the interpreter.
    """
    if dist.is_initialized():
        gc.collect()  # DDP refers to the group
        dist.destroy_process_group()
        gc.collect()
