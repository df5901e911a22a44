"""A backend without decoding: fixed noise, the upper limit of what any loader can reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fastdata.loaders.backend import Backend, Encoded, Fidelity, Pixels
from fastdata.views.view import View

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

    def decode(self, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]) -> list[Exception | None]:
        for place in out:
            place[...] = np.random.default_rng(0).integers(0, 256, place.shape, dtype=np.uint8)
        return [None] * len(out)

    def ready_batches(self) -> SyntheticBackend:
        return self

    def ready(self, count: int, make_empty: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """Returns the one batch of `count` images, made by `make_empty` and filled with noise at the first call."""
        if count not in self._ready:
            batch = make_empty(count)
            noise = torch.randint(0, 256, batch.shape, generator=torch.Generator().manual_seed(0)).to(batch.device)
            self._ready[count] = batch.copy_(noise if batch.dtype == torch.uint8 else noise / 255)
        return self._ready[count]
