"""EpochSampler: the samples that a rank sees in an epoch and their order, as pure functions of a few integers.

A dataset of N samples has a base sequence of N positions: for "random" a permutation of all samples, for "windowed"
the shards in random order with their samples in a row, for "sequential" the dataset as it is.  Ranks take disjoint
parts of it.  When a run continues with another number of ranks, what the old ranks had delivered is taken out of the
sequence and the rest is divided anew; the history of such changes is a list of (ranks, samples delivered by each).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence, Sized
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch.utils.data import Sampler

from fastdata.errors import OptionError
from fastdata.order.mixture import mixture_of, windowed
from fastdata.system.stack_level import users_level
from fastdata.views.philox import Key, Words, random_words
from fastdata.views.streams import Stream

__all__ = ["ORDERS", "EpochSampler", "ranks_and_rank"]

Ints: TypeAlias = npt.NDArray[np.int64]

Order: TypeAlias = Literal["random", "windowed", "sequential"]
ORDERS: tuple[Order, ...] = ("random", "windowed", "sequential")
Uneven: TypeAlias = Literal["keep", "pad", "drop"]
UNEVEN: tuple[Uneven, ...] = ("keep", "pad", "drop")


class EpochSampler(Sampler[int]):
    """Yields the indices of one rank for one epoch.

    fastdata's DataLoader sets the epoch by itself; with torch's, call `set_epoch` before each one.  Where ranks train
    together, every one must see as many batches as the others: say "pad" or "drop" for `uneven`.

    Args:
        dataset: anything with a length; "windowed" needs one of shards (`shard_ends`).  Of a `MixedDataset` an epoch
            has what its weights say; the order is then that of each of its datasets.
        order: "random" (a permutation of everything), "windowed" (shards in random order, mixed `window` at a time, so
            that a disk reads large pieces), or "sequential".
        window: shards that are mixed with each other, for "windowed".
        num_replicas: number of ranks; None asks torch.distributed, and is 1 where it is not in use.
        rank: number of this rank; None asks torch.distributed, and is 0 where it is not in use.
        seed: the order is a function of it and of the epoch.
        uneven: when samples do not divide evenly: "keep" (some ranks have one more; no sample is left out or comes
            twice), "pad" (the others repeat one), or "drop" (what is over is left out).
        repetitions: repeated augmentation: each sample comes so many times in a row, in views of its own, before ranks
            divide the order, and an epoch ends after as many samples as the dataset has, with fewer different ones.
            For order="random".  Source: Hoffer et al., "Augment your batch", CVPR 2020; torchvision's RASampler.

    Raises:
        OptionError: an argument has a value that cannot work.

    Example:
        >>> sampler = EpochSampler(dataset, order="windowed", seed=1)
        >>> loader = DataLoader(dataset, batch_size=256, sampler=sampler)
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        order: Order = "random",
        window: int = 8,
        num_replicas: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        uneven: Uneven = "keep",
        repetitions: int = 1,
    ) -> None:
        if order not in ORDERS:
            raise OptionError(f"order={order!r} is not accepted; use one of {', '.join(ORDERS)}")
        if uneven not in UNEVEN:
            raise OptionError(f"uneven={uneven!r} is not accepted; use one of {', '.join(UNEVEN)}")
        mixture = mixture_of(dataset)
        has_shards = any(each.shard_ends for each in mixture.sources) if mixture else hasattr(dataset, "shard_ends")
        if order == "windowed" and not has_shards:
            raise OptionError(
                f"order='windowed' needs a ShardDataset, not {type(dataset).__name__}; use order='random'"
            )
        if repetitions < 1 or (repetitions > 1 and (order != "random" or mixture is not None)):
            raise OptionError(f"repetitions={repetitions} must be above 0, and above 1 needs order='random'")
        if window < 1:
            raise OptionError(f"window={window} must be above 0")
        self.num_replicas, self.rank = ranks_and_rank(num_replicas, rank)
        if order == "random" and hasattr(dataset, "fits_in_cache") and not dataset.fits_in_cache():
            warnings.warn(
                "a random order reads from all shards at once, but the cache holds only some of them; use "
                "order='windowed' or a larger cache_bytes",
                stacklevel=users_level(),
            )
        self.dataset, self.order, self.window, self.seed, self.uneven = dataset, order, window, seed, uneven
        self.mixture, self.repetitions = mixture, repetitions
        self.epoch = 0
        self._history: tuple[int, list[tuple[int, int]]] = (0, [])

    def __repr__(self) -> str:
        window = f", window={self.window}" if self.order == "windowed" else ""
        mixture = f", mixture={self.mixture}" if self.mixture is not None else ""
        mixture += f", repetitions={self.repetitions}" if self.repetitions > 1 else ""
        return f"EpochSampler(order={self.order!r}{window}, seed={self.seed}, uneven={self.uneven!r}{mixture})"

    @property
    def repeats(self) -> bool:
        """True if a sample may come more than once in an epoch, as small datasets of a mixture do."""
        return self.repetitions > 1 or (self.mixture is not None and self.mixture.repeats)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration is for."""
        self.epoch = epoch

    @property
    def history(self) -> list[tuple[int, int]]:
        """(ranks, samples delivered by each) for every time this epoch went on with another number of ranks."""
        epoch, history = self._history
        return history if epoch == self.epoch else []

    def resume(self, epoch: int, history: Sequence[Sequence[int]]) -> None:
        """Makes `epoch` continue where other numbers of ranks left it; other epochs are whole."""
        self._history = epoch, [(int(ranks), int(delivered)) for ranks, delivered in history]
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.indices()) if self.history else self._share(self._count(), self.num_replicas, self.rank)

    def _count(self) -> int:
        """Samples of an epoch, on all ranks."""
        return self.mixture.epoch_samples if self.mixture is not None else len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        return iter(self.remaining(0).tolist())

    def remaining(self, skip: int) -> Ints:
        """`indices` without the first; the dataset is told, if it wants to know, so that it can fetch ahead."""
        indices = self.indices()[skip:]
        if self.order != "random" and hasattr(self.dataset, "expect"):
            self.dataset.expect(indices)
        return indices

    def indices(self) -> Ints:
        """This rank's indices in order: int64, (n,)."""
        sequence, shard_of = self._sequence()
        remaining = np.arange(len(sequence))
        for ranks, delivered in self.history:
            taken = np.zeros(len(sequence), np.bool_)
            for rank in range(ranks):
                taken[self._part(remaining, shard_of, ranks, rank)[:delivered]] = True
            remaining = remaining[~taken[remaining]]
        return sequence[self._part(remaining, shard_of, self.num_replicas, self.rank)]

    def _sequence(self) -> tuple[Ints, Ints | None]:
        """The base sequence, and for "windowed" the number of the shard at each position, counted in that sequence."""
        if self.mixture is not None:
            return self.mixture.sequence(self.order, self.window, Key(seed=self.seed, epoch=self.epoch)), None
        count = len(self.dataset)
        if self.order == "sequential":
            return np.arange(count), None
        if self.order == "random":
            order = np.argsort(self._words(np.arange(count), Stream.SAMPLES), kind="stable")
            return np.repeat(order, self.repetitions)[:count], None
        return windowed(self.dataset.shard_ends, Key(seed=self.seed, epoch=self.epoch))  # type: ignore[attr-defined]

    def _part(self, remaining: Ints, shard_of: Ints | None, ranks: int, rank: int) -> Ints:
        """The positions that one rank visits, in order."""
        count = len(remaining)
        if count == 0:
            return remaining
        if self.order == "random":
            part = remaining[rank::ranks]
        else:
            usable = count // ranks * ranks if self.uneven == "drop" else count
            part = remaining[usable * rank // ranks : usable * (rank + 1) // ranks]
        if shard_of is not None and len(part):
            part = self._mixed(part, shard_of)
        share = self._share(count, ranks, rank)
        if len(part) < share:
            part = np.concatenate([part, (part if len(part) else remaining)[: share - len(part)]])
        return part[:share]

    def _mixed(self, part: Ints, shard_of: Ints) -> Ints:
        """A part's positions, shuffled inside of windows of whole shards."""
        shards = shard_of[part]
        ordinal = np.concatenate([[0], np.cumsum(shards[1:] != shards[:-1])])
        return part[np.lexsort((self._words(part, Stream.SAMPLES), ordinal // self.window))]

    def _words(self, numbers: Ints, stream: int) -> Words:
        return random_words(numbers, stream, Key(seed=self.seed, epoch=self.epoch))

    def _share(self, count: int, ranks: int, rank: int) -> int:
        """Number of samples that a rank sees, of `count`."""
        if self.uneven == "drop":
            return count // ranks
        if self.uneven == "pad":
            return -(-count // ranks)
        if self.order == "random":  # every ranks-th of them
            return len(range(rank, count, ranks))
        return count * (rank + 1) // ranks - count * rank // ranks


def ranks_and_rank(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """The number of ranks and this one's, as given, or those of torch.distributed; (1, 0) where it is not in use.

    Raises:
        OptionError: only one of them is given, or there is no such rank.
    """
    if (num_replicas is None) != (rank is None):
        raise OptionError(f"num_replicas={num_replicas} and rank={rank}: give both, or neither")
    if num_replicas is None or rank is None:
        in_use = dist.is_available() and dist.is_initialized()
        return (dist.get_world_size(), dist.get_rank()) if in_use else (1, 0)
    if not 0 <= rank < num_replicas:
        raise OptionError(f"rank={rank} is not between 0 and {num_replicas - 1}")
    return num_replicas, rank
