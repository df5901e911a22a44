"""A backend without decoding: fixed noise, the upper limit of what any loader can reach."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fastdata.loaders.backend import Backend, Fidelity, Filled
from fastdata.loaders.rows import store, view_at
from fastdata.tables import Recipes
from fastdata.views.philox import Key
from fastdata.views.plan import Plan

__all__ = ["SyntheticBackend"]


class SyntheticBackend(Backend):
    """Fills images with noise from a fixed seed.

    The pipeline goes further and delivers one ready batch again and again without reading a file, so a training run
    with this backend shows what it would cost if data were free.
    """

    name = "synthetic"
    mean_tolerance = None
    install_hint = "it is built in"

    @classmethod
    def version(cls) -> str:
        return "built in"

    def __init__(self, *, fidelity: Fidelity = "exact") -> None:
        super().__init__(fidelity=fidelity)
        self._ready: dict[int, torch.Tensor] = {}

    def filler(self, plan: Plan | None = None, key: Key | None = None, *, threads: int) -> NoiseFiller:
        return NoiseFiller(plan)

    def ready_batches(self) -> SyntheticBackend:
        return self

    def ready(self, count: int, make_empty: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """Returns the one batch of `count` images, made by `make_empty` and filled with noise at the first call."""
        if count not in self._ready:
            batch = make_empty(count)
            noise = torch.randint(0, 256, batch.shape, generator=torch.Generator().manual_seed(0)).to(batch.device)
            self._ready[count] = batch.copy_(noise if batch.dtype == torch.uint8 else noise / 255)
        return self._ready[count]


class NoiseFiller:
    """Stores noise without reading a byte; see `fastdata.loaders.backend.Filler`."""

    takes_batches = reads_records = False

    def __init__(self, plan: Plan | None) -> None:
        self._size = plan.size if plan is not None else None

    def fill(self, recipes: Recipes) -> Filled:
        """Stores N images; see `Filler`."""
        refused: dict[int, Exception] = {}
        for row in range(len(recipes)):
            size = self._size if recipes.windows is None else view_at(recipes, row).size
            try:
                store(recipes, row, np.random.default_rng(0).integers(0, 256, (*(size or ()), 3), dtype=np.uint8))
            except Exception as error:  # noqa: BLE001 - told with its row, whatever it is
                refused[row] = error
        return Filled(refused=refused, read_bytes=np.zeros(len(recipes), np.int64))

    def close(self, ended: bool = True) -> None:
        """Nothing is open."""
