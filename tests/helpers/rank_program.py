"""Processes that train together, started by test_ranks.py: `python rank_program.py WHAT OUTPUT WORLD`.

What takes longest is to import torch, so one process does it and is forked for every rank.  It prints the exit statuses
as JSON; what a rank writes to stderr is in the file `WHAT-RANK.err`.  With RANK set, it is that rank and forks nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from small_training import CLASSES, plain_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from fastdata import DataLoader, EpochSampler, OptionError
from fastdata.errors import TrainError
from fastdata.train import TrainOptions, fit
from fastdata.train.checkpoints import Checkpointer
from fastdata.train.ranks import Ranks, join_ranks, leave_ranks

COUNT, JOINT = 37, 8


class Numbered(Dataset[Any]):
    """Noise with a label, and a note of who was asked for."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(COUNT, 3, 16, 16, generator=generator)
        self.labels = torch.randint(0, CLASSES, (COUNT,), generator=generator).tolist()
        self.asked: list[int] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked.append(index)
        return self.images[index], self.labels[index]


def run(what: str, output: Path, world: int, rank: int, **more: Any) -> dict[str, Any]:
    """Trains this rank's share; returns what the test compares."""
    given: dict[str, Any] = {"epochs": 2, "lr": 0.05, "device": "cpu", "timeout_s": 90.0, "print_freq": 1, **more}
    batch = given.pop("batch_size", JOINT // world)
    given = {"save_every": 1, **given}
    options = TrainOptions(batch_size=batch, output_dir=str(output / "run"), keep=50, **given)
    ranks = join_ranks(options.torch_device(), options.timeout_s)
    train, val = Numbered(), Numbered()
    shares: dict[str, Any] = {"num_replicas": world, "rank": rank, "uneven": "keep", "seed": 3}
    sampler = EpochSampler(train, order="random", **shares)
    loader: Any = DataLoader(train, options.batch_size, sampler=sampler)
    if what in ("short", "empty"):
        loader = Short(loader) if what == "short" else Emptied(loader)
    if what.startswith("signalled") and what[-1] in (str(rank), "2"):
        loader = Dying(loader, after=2, by=signal.SIGTERM)
    if what == "killed" and rank == world - 1:
        loader = Dying(loader, after=3)
    val_loader = DataLoader(val, 5, sampler=EpochSampler(val, order="sequential", **shares))
    if what.startswith("lost") and rank == world - 1:
        die_at(what)
    trained = plain_model()
    result = fit(trained, loader, val_loader, options, ranks=ranks)
    return {
        "asked": train.asked,
        "validated": val.asked,
        "losses": result.losses,
        "epochs": result.epochs,
        "stopped": result.stopped,
        "weights": [parameter.detach() for parameter in trained.parameters()],
        "buffers": {name: buffer.tolist() for name, buffer in trained.named_buffers()},
    }


class Short:
    """A loader with fewer batches than it says."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.dataset, self.sampler = loader, loader.dataset, loader.sampler

    def __len__(self) -> int:
        return len(self.loader) + 1

    def __iter__(self) -> Any:
        return iter(self.loader)


class Emptied(Short):
    """A loader of whose batches one is empty."""

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        for number, (images, labels) in enumerate(self.loader):
            yield (images[:0], labels[:0]) if number == 1 else (images, labels)


class Dying:
    """A loader whose process gets a signal after some batches."""

    def __init__(self, loader: Any, after: int, by: int = signal.SIGKILL) -> None:
        self.loader, self.sampler, self.after, self.by = loader, loader.sampler, after, by

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        for number, batch in enumerate(self.loader):
            if number == self.after:
                os.kill(os.getpid(), self.by)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


def die_at(what: str) -> None:
    """Has this process killed where it would take part in a collective of the start of training."""
    owner, name = {
        "lost at the count of batches": (Ranks, "largest"),
        "lost at the broadcast of weights": (DistributedDataParallel, "__init__"),
        "lost at the search for checkpoints": (Checkpointer, "_kept"),
        "lost at the check of the folder": (Checkpointer, "_check_same_place"),
    }[what]
    setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))


def gloo_threads() -> list[str]:
    """Names of gloo's threads in this process, where the system tells."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def forked_ranks(what: str, output: Path, world: int) -> int | None:
    """The rank in the processes that are made here; None in this one, once they have ended."""
    processes = []
    for rank in range(world):
        process = os.fork()
        if process == 0:
            with open(output / f"{what}-{rank}.err", "w") as errors:
                os.dup2(errors.fileno(), sys.stderr.fileno())
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            return rank
        processes.append(process)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]))
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in ("torch._dynamo", "matplotlib.figure"):  # what every rank would import when it trains
        importlib.import_module(name)
    what, output, world = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    rank = int(os.environ["RANK"]) if "RANK" in os.environ else forked_ranks(what, output, world)
    if rank is None:
        sys.exit()
    torch.set_num_threads(1)  # else two threads at once may find the pool that did not come through the fork
    more: dict[str, Any] = {"resume": "auto"} if what.startswith("resume") else {}
    more |= {"device": "cuda", "tf32": False} if "cuda" in what else {}
    if "-" in what:
        more["batch_size"] = int(what.rpartition("-")[2])
    if what.startswith("signalled"):
        more |= {"save_every": 0, "print_freq": 1000}
    status = 0
    try:
        torch.save(run(what, output, world, rank, **more), output / f"{what}-{world}-{rank}.pt")
    except (TrainError, OptionError) as error:
        status = 1
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    leave_ranks()
    if status == 0 and (left := gloo_threads()):  # they would outlive the interpreter, and abort it now and then
        status = 1
        print(f"threads left: {left}", file=sys.stderr)
    sys.exit(status)
