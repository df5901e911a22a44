"""The three generators from which torchvision's and timm's transforms draw, with the calls that these make of them.

Every method makes the same call of torch, Python or NumPy as the libraries' code, so that it takes as many numbers from
the generator and gives the same value.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence

import numpy as np
import torch

__all__ = ["Generators", "float32"]


class Generators:
    """torch's, Python's and NumPy's random generators.

    Args:
        torchs: torch's.
        python: Python's.
        numpy: NumPy's.
    """

    def __init__(self, torchs: torch.Generator, python: random.Random, numpy: np.random.RandomState) -> None:
        self.torch, self.python, self.numpy = torchs, python, numpy
        self._float, self._int = torch.empty(1), torch.empty(1, dtype=torch.int64)

    @classmethod
    def of_this_process(cls) -> Generators:
        """The global generators, which a transform's own code uses."""
        return cls(torch.default_generator, random._inst, np.random.mtrand._rand)

    @classmethod
    def seeded(cls, seed: int, numpy_seed: Sequence[int]) -> Generators:
        """New generators, seeded as those of a worker process."""
        return cls(
            torch.Generator().manual_seed(seed),
            random.Random(seed),
            np.random.RandomState(np.array(numpy_seed, np.uint32)),
        )

    def uniform(self, low: float, high: float) -> float:
        """A number from `low` to `high`, of float32."""
        return self._float.uniform_(low, high, generator=self.torch).item()

    def exp_uniform(self, low: float, high: float) -> float:
        """The exponential of such a number, in float32."""
        return torch.exp(self._float.uniform_(low, high, generator=self.torch)).item()

    def integer(self, low: int, high: int) -> int:
        """An integer from `low`, below `high`."""
        return int(self._int.random_(low, high, generator=self.torch).item())

    def share(self) -> float:
        """A number of [0, 1), of float32."""
        return self._float.uniform_(0.0, 1.0, generator=self.torch).item()

    def is_below(self, p: float) -> bool:
        """True with probability `p`, compared in float32."""
        return self.share() < float32(p)

    def order(self, count: int) -> list[int]:
        """A permutation."""
        return torch.randperm(count, generator=self.torch).tolist()

    def choice(self, shares: Sequence[float]) -> int:
        """The index of one of `shares`, as likely as that is large."""
        return int(torch.multinomial(torch.tensor(shares), 1, generator=self.torch))

    def normals(self, count: int) -> list[float]:
        """Numbers of the standard normal distribution, of float32."""
        return torch.empty(count).normal_(generator=self.torch).tolist()


@functools.lru_cache(maxsize=256)
def float32(value: float) -> float:
    """The value that torch compares float32 with."""
    return float(np.float32(value)) if math.isfinite(value) else value
