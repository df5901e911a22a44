"""A run that is left and resumed any number of times, at any places, gives what it would have given in one piece."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import images
from loader_routes import BATCH, ROUTES, drawn, seed_all
from loader_states import saved

from fastdata import DataLoader

EPOCHS = 2
ROUNDS = (250, 3_000, 20_000)
WITH_PROCESSES = 0.03  # they take a hundred times as long


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds of two epochs each, by every route; what they give in one piece is kept for each."""
    for number in range(14):
        path = folder / "images" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images.jpeg(40 + number, 30, seed=number))
    alone = [name for name in ROUTES if "worker" not in name]
    others = [name for name in ROUTES if "worker" in name]
    whole: dict[tuple[str, str], list[list[Any]]] = {}

    def made(name: str) -> DataLoader[Any]:
        return DataLoader(batch_size=BATCH, **ROUTES[name](folder / "images"))

    def begun(name: str, before: str) -> DataLoader[Any]:
        seed_all(1)
        loader = made(name)
        if before == "an epoch":
            list(loader)
        elif before == "a part of one":
            next(iter(loader))
        return loader

    def one(rng: Random) -> str:
        name = rng.choice(others if rng.random() < WITH_PROCESSES else alone)
        before = rng.choice(["nothing", "an epoch", "a part of one"])
        if (name, before) not in whole:
            loader = begun(name, before)
            whole[name, before] = [[drawn(batch) for batch in loader] for _ in range(EPOCHS)]
        loader, transitions = begun(name, before), 0
        epochs: list[list[Any]] = [[]]
        while True:
            iterator = iter(loader)
            for _ in range(rng.choice([0, 1, 1, 2, 99])):
                batch = next(iterator, None)
                if batch is None:
                    break
                epochs[-1].append(drawn(batch))
            else:
                state = saved(loader)
                seed_all(rng.randrange(1000))
                del iterator
                loader = made(name)
                loader.load_state_dict(state)
                transitions += 1
                continue
            if len(epochs) == EPOCHS:
                break
            epochs.append([])
            if rng.random() < 0.5:  # between two epochs
                state = saved(loader)
                seed_all(rng.randrange(1000))
                loader = made(name)
                loader.load_state_dict(state)
                transitions += 1
        assert epochs == whole[name, before], (name, before, epochs, whole[name, before])
        return f"{transitions} transitions"

    return one
