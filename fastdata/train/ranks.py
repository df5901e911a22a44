"""Processes that train together: joining the process group, and sums over it."""

from __future__ import annotations

import gc
import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fastdata.errors import FastdataError, OptionError, TrainError
from fastdata.train.peers import Peer, ended_ranks, this_peer
from fastdata.train.rendezvous import meet

__all__ = ["Ranks", "Vote", "join_ranks", "leave_ranks", "launched_ranks"]

_LOST = ("connection closed", "connection reset", "broken pipe", "timed out", "gloo", "nccl", "socket")  # in messages


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Rank of this process and world size.

    Attributes:
        rank: number of this process, from 0.
        world_size: number of processes.
        peers: the process of every rank; empty if they are not known.
    """

    rank: int = 0
    world_size: int = 1
    peers: tuple[Peer, ...] = field(default=(), repr=False)

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

    def take_over(self, values: torch.Tensor) -> None:
        """Overwrites the values with those of rank 0."""
        if self.world_size > 1:
            dist.broadcast(values, 0)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Turns communication errors into a clear TrainError.

        gloo notices a closed connection at once, and a process that hangs after `timeout_s`.  NCCL's watchdog ends the
        process itself after that time, with its own message.

        Raises:
            TrainError: another process was lost.
        """
        try:
            yield
        except RuntimeError as error:
            if (
                self.world_size == 1
                or isinstance(error, FastdataError)
                or not any(sign in str(error).lower() for sign in _LOST)
            ):
                raise
            told = str(error).partition("\n")[0]
            raise TrainError(
                f"rank {self.rank} of {self.world_size} lost {self._lost()}.  Start again with resume='auto', with any "
                f"number of processes.  ({told})"
            ) from error

    def _lost(self) -> str:
        """The lost ranks, as far as this machine can tell."""
        if ended := ended_ranks(self.peers):
            if len(ended) == 1:
                return f"rank {ended[0]}, which was killed or failed; see its message"
            return f"ranks {', '.join(map(str, ended))}, which were killed or failed; see their messages"
        hosts = {peer.host for peer in self.peers} - {socket.gethostname()}
        if self.peers and not hosts:
            return "another rank, which hangs: all still run"
        elsewhere = f" on {', '.join(sorted(hosts))}" if hosts else ""
        return f"another rank{elsewhere}, which was killed, failed or hangs; see that rank's message"


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
        TrainError: another process did not come within `timeout_s`, or was lost.
    """
    if launched_ranks().world_size == 1:
        return Ranks()
    if ":" in str(device):
        raise OptionError(f"device={device} under torchrun would put every process on the same GPU; use device=cuda")
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # Functions there take the group as a default when they are imported, which DDP does, and would keep it for ever.
    importlib.import_module("torch.distributed.nn.functional")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"  # what is on the host waits for no device
    ranks = launched_ranks()
    store = meet(ranks.rank, ranks.world_size, timeout_s)
    with ranks.together():
        dist.init_process_group(
            backend, store=store, rank=ranks.rank, world_size=ranks.world_size, timeout=timedelta(seconds=timeout_s)
        )
        peers: list[Any] = [None] * ranks.world_size
        dist.all_gather_object(peers, this_peer())
    return replace(ranks, peers=tuple(peers))


def leave_ranks() -> None:
    """Leaves the process group, if there is one; call it when training has ended.

    gloo's threads end with the last reference to the group, and must not outlive the interpreter.
    """
    if dist.is_initialized():
        gc.collect()  # DDP refers to the group
        dist.destroy_process_group()
        gc.collect()
