"""Delivered, skipped and replaced samples of all ranks make the dataset, however often ranks and batches change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import images
from ledger import Ledger
from loader_states import saved
from torch.utils.data import Dataset
from torchvision import transforms

from fastdata import DataLoader, DatasetError, EpochSampler

ROUNDS = (150, 2_000, 20_000)


class Numbered(Dataset[Any]):
    """Tiny images with their numbers, some of them damaged."""

    transform = transforms.Compose([transforms.Resize((8, 8)), transforms.PILToTensor()])

    def __init__(self, size: int, damaged: set[int]) -> None:
        self._size, self._damaged = size, damaged

    def __len__(self) -> int:
        return self._size

    def read_encoded(self, index: int) -> bytes:
        return DAMAGED if index in self._damaged else INTACT

    def read_target(self, index: int) -> int:
        return index


INTACT = images.jpeg(12, 10)
DAMAGED = INTACT[:40]


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds of one epoch each, which goes on with other ranks, batches, threads and backends a few times."""
    return one


def one(rng: Random) -> str:
    """An epoch in legs; every leg begins with the state of rank 0 in the leg before."""
    size = rng.randrange(1, 60)
    replaced = rng.random() < 0.5
    most = size // 4 if replaced else size - 1  # sixteen substitutes are tried, and then the error is raised
    damaged = set(rng.sample(range(size), rng.randint(0, min(5, most))))
    ledger = Ledger(size, damaged)
    epoch = rng.randrange(3)
    options = {"size": size, "damaged": damaged, "rng": rng, "replaced": replaced, "epoch": epoch}
    whole = _leg(**options, ranks=1, rank=0, batch=7, state=None, until=99)[0]
    state, legs, left, until = None, 0, size, 0
    while until < 99:
        ranks, batch = rng.randrange(1, 5), rng.randrange(1, 9)
        full = left // ranks // batch
        until = rng.choice([0, 1, 2, 3, 99]) if legs < 5 else 99
        until = until if until <= full else 99
        found = [
            _leg(**options, ranks=ranks, rank=rank, batch=batch, state=state, until=until) for rank in range(ranks)
        ]
        legs += 1
        places = {delivered for *_, delivered in found}
        if until < 99 and (len(places) > 1 or None in places):
            return "ranks at different places: a batch of damaged samples alone was left out"
        for delivered, failed, *_ in found:
            ledger.note(delivered, failed)
        state, left = found[0][2], left - ranks * batch * until
    ledger.check(replaced=replaced)
    assert not replaced or Counter(whole) == ledger.delivered, "a substitute depends on ranks or batches"
    return f"{legs} legs, {'replaced' if replaced else 'skipped'}"


def _leg(
    *,
    size: int,
    damaged: set[int],
    rng: Random,
    ranks: int,
    rank: int,
    batch: int,
    replaced: bool,
    epoch: int,
    state: Any,
    until: int,
) -> tuple[list[int], list[int], Any, int | None]:
    """What a rank is given, what it is told has failed, its state, and its place in an epoch that has not ended."""
    dataset = Numbered(size, damaged)
    sampler = EpochSampler(dataset, num_replicas=ranks, rank=rank, seed=3)
    loader = DataLoader(
        dataset,
        batch,
        sampler=sampler,
        seed=3,
        num_workers=rng.randrange(3),
        backend=rng.choice(["native", "pil"]),
        on_error="replace" if replaced else "skip",
    )
    if state is not None:
        loader.load_state_dict(state)
    else:
        loader.set_epoch(epoch)
    iterator, delivered, ended = iter(loader), [], False
    for _ in range(until):
        try:
            found = next(iterator, None)
        except DatasetError:  # all that this rank was to be given
            assert len(loader.stats()["quarantine"]) == len(sampler)
            found = None
        if found is None:
            ended = True
            break
        delivered += found[1].tolist()
    now = saved(loader)
    failed = [index for index, *_ in loader.stats()["quarantine"]]
    return delivered, failed, now, None if ended else now["delivered"]
