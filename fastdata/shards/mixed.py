"""MixedDataset: several datasets with weights."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset, Dataset

from fastdata.errors import DatasetError, OptionError
from fastdata.order.mixture import Mixture, MixtureSource
from fastdata.shards.open_images import open_images
from fastdata.system.stack_level import users_level

__all__ = ["MixedDataset"]

Given: TypeAlias = "str | os.PathLike[str] | Dataset[Any]"
WeightsPer: TypeAlias = Literal["epoch", "sample"]


class MixedDataset(ConcatDataset[Any]):
    """Several datasets, of which an epoch takes as much as their weights say.

    Its samples are those of the datasets, one behind the other; `EpochSampler` gives the order that mixes them, so it
    must be the sampler.  Small datasets come several times in an epoch, large ones are seen whole after several; an
    epoch goes on where the one before ended.  The order is a function of seed and epoch, is divided among any number of
    ranks, and a loader's state goes on in the middle of it.

    Args:
        sources: weight of each dataset: a map-style dataset, or the path or URL of shards or of an image folder.
            Weights are relative to their sum.
        transform: transform of the datasets that are opened here.
        epoch_samples: number of samples in an epoch; None for as many as all datasets have.
        weights_per: "epoch": the number of samples of each dataset is exact; "sample": each sample's dataset is drawn.

    Attributes:
        mixture: what `EpochSampler` reads.

    Raises:
        OptionError: a weight is not a number above 0, there are no sources, or another argument cannot work.
        DatasetError: a path holds no images, or a dataset is empty or has no length.

    Example:
        >>> mixed = MixedDataset({"shards/photos": 0.7, "shards/drawings": 0.3}, transform)
        >>> loader = DataLoader(mixed, batch_size=256, sampler=EpochSampler(mixed, order="windowed"))
    """

    def __init__(
        self,
        sources: Mapping[Given, float] | Sequence[tuple[Given, float]],
        transform: Callable[[Any], Any] | None = None,
        *,
        epoch_samples: int | None = None,
        weights_per: WeightsPer = "epoch",
    ) -> None:
        pairs = list(sources.items() if isinstance(sources, Mapping) else sources)
        if not pairs:
            raise OptionError("a mixture needs at least one dataset with a weight")
        if weights_per not in ("epoch", "sample"):
            raise OptionError(f"weights_per={weights_per!r} is not accepted; use epoch or sample")
        if epoch_samples is not None and (not isinstance(epoch_samples, int) or epoch_samples < 1):
            raise OptionError(f"epoch_samples={epoch_samples} is not a positive integer")
        weights = [_checked(weight, _name(given, number)) for number, (given, weight) in enumerate(pairs)]
        super().__init__([_opened(given, transform) for given, _ in pairs])
        begins = [0, *self.cumulative_sizes[:-1]]
        parts = []
        for number, ((given, _), dataset) in enumerate(zip(pairs, self.datasets, strict=True)):
            name, length, ends = _name(given, number), len(dataset), getattr(dataset, "shard_ends", None)  # type: ignore[arg-type]
            if length == 0:
                raise DatasetError(f"{name} is empty; leave it out of the mixture")
            shard_ends = tuple(np.asarray(ends).tolist()) if ends is not None else None
            parts.append(MixtureSource(name, weights[number] / math.fsum(weights), begins[number], length, shard_ends))
        self.mixture = Mixture(tuple(parts), epoch_samples or self.cumulative_sizes[-1], weights_per == "epoch")
        never = [each.name for count, each in zip(self.mixture.counts(), parts, strict=True) if count == 0]
        if never and self.mixture.exact:
            raise OptionError(
                f"the weight of {never[0]} gives it no sample in an epoch of {self.mixture.epoch_samples}; take a "
                "larger epoch_samples or weight, or weights_per='sample'"
            )
        for (one, first), (two, second) in pairwise(zip((each.name for each in parts), self.datasets, strict=True)):
            if getattr(first, "classes", None) != getattr(second, "classes", None):
                warnings.warn(
                    f"{one} and {two} have different classes, so the same class number means different things in them",
                    stacklevel=users_level(),
                )
                break

    def __repr__(self) -> str:
        names = ", ".join(each.name for each in self.mixture.sources)
        return f"MixedDataset({names}; {self.mixture})"

    def expect(self, indices: npt.NDArray[np.int64]) -> None:
        """Announces which samples will be read, in order, to the datasets that fetch ahead."""
        for source, dataset in zip(self.mixture.sources, self.datasets, strict=True):
            if hasattr(dataset, "expect"):
                own = indices[(indices >= source.begin) & (indices < source.begin + source.length)]
                dataset.expect(own - source.begin)

    def fits_in_cache(self) -> bool:
        """False if a dataset is remote and larger than its local cache."""
        return all(dataset.fits_in_cache() for dataset in self.datasets if hasattr(dataset, "fits_in_cache"))


def _name(given: Given, number: int) -> str:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else f"{type(given).__name__} {number}"


def _checked(weight: Any, name: str) -> float:
    is_number = isinstance(weight, numbers.Real | np.number) and not isinstance(weight, bool)
    if not is_number or not math.isfinite(weight):
        raise OptionError(f"the weight of {name} is {weight!r}; weights are numbers above 0")
    if weight <= 0:
        raise OptionError(f"the weight of {name} is {weight}; weights are above 0: leave it out of the mixture")
    return float(weight)


def _opened(given: Given, transform: Callable[[Any], Any] | None) -> Dataset[Any]:
    if not isinstance(given, str | os.PathLike):
        if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
            raise DatasetError(
                f"{type(given).__name__} has no length or no __getitem__; a mixture needs map-style ones"
            )
        return given
    if (found := open_images(os.fspath(given), transform)) is None:
        raise DatasetError(f"{os.fspath(given)} is neither a folder of images nor shards")
    return found
