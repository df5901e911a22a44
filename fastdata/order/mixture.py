"""The order of a mixture: several datasets, each with a weight, one behind the other in one range of indices.

An epoch takes so many samples of each source as its weight says.  Each source is an endless sequence, one pass over all
of its samples after the other, each in a new order; an epoch goes on where the epoch before ended.  So a small source
comes several times in an epoch, every sample equally often, and a large one is seen whole after several epochs.  What
an epoch takes is a function of seed and epoch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.views.philox import Key, random_words, uniform
from fastdata.views.streams import Stream

__all__ = ["Mixture", "MixtureSource", "mixture_of", "windowed"]

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MixtureSource:
    """One dataset of a mixture.

    Attributes:
        name: name of the source, for messages.
        weight: its share of the samples of an epoch, from 0 to 1.
        begin: index of its first sample in the mixture.
        length: number of its samples.
        shard_ends: index in the source after the last sample of each of its shards; None for a source without shards.
    """

    name: str
    weight: float
    begin: int
    length: int
    shard_ends: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Mixture:
    """Sources with weights that add up to 1.

    Attributes:
        sources: the sources.
        epoch_samples: number of samples in an epoch.
        exact: an epoch has the number of samples that the weights say, to the sample; otherwise each sample's source is
            drawn with the weights.
    """

    sources: tuple[MixtureSource, ...]
    epoch_samples: int
    exact: bool

    def __str__(self) -> str:
        # No names: a state is compared by this text, and paths may be others elsewhere.
        parts = ", ".join(f"{each.weight:.6g} of {each.length}" for each in self.sources)
        return f"[{parts}], epoch_samples={self.epoch_samples}, weights_per={'epoch' if self.exact else 'sample'!r}"

    @property
    def repeats(self) -> bool:
        """True if a sample may come more than once in an epoch: where it is drawn, or a pass may end inside of one."""
        if not self.exact:
            return True
        return any(count and each.length % count for count, each in zip(self.counts(), self.sources, strict=True))

    def sequence(self, order: Literal["random", "windowed", "sequential"], window: int, key: Key) -> Ints:
        """Indices of an epoch in order: int64, (epoch_samples,).

        Args:
            order: order of each source's samples; see `EpochSampler`.  "windowed" is random for sources without shards.
            window: shards that are mixed with each other.
            key: seed and epoch.
        """
        positions = np.arange(self.epoch_samples)
        if self.exact:
            counts = self.counts()
            in_turn = np.repeat(np.arange(len(counts)), counts)
            source_at = in_turn[np.argsort(random_words(positions, Stream.MIXTURE, key), kind="stable")]
            passed = [key.epoch * count for count in counts]
        else:
            edges = np.cumsum([each.weight for each in self.sources])
            drawn = uniform(random_words(positions, Stream.MIXTURE, key) >> np.uint64(32))
            source_at = np.minimum(np.searchsorted(edges, drawn, side="right"), len(edges) - 1)
            passed = [int(key.epoch * each.weight * self.epoch_samples) for each in self.sources]
        result = np.empty(self.epoch_samples, np.int64)
        for number, source in enumerate(self.sources):
            places = np.flatnonzero(source_at == number)
            result[places] = _taken(source, passed[number], len(places), order, window, key.seed)
        return result

    def counts(self) -> list[int]:
        """Samples of each source in an epoch, by the method of the largest remainders."""
        shares = [each.weight * self.epoch_samples for each in self.sources]
        counts = [int(share) for share in shares]
        by_remainder = sorted(range(len(shares)), key=lambda number: counts[number] - shares[number])
        for number in by_remainder[: self.epoch_samples - sum(counts)]:
            counts[number] += 1
        return counts


def mixture_of(dataset: Any) -> Mixture | None:
    """The mixture of a `MixedDataset`; None for other datasets."""
    mixture = getattr(dataset, "mixture", None)
    return mixture if isinstance(mixture, Mixture) else None


def _taken(source: MixtureSource, passed: int, count: int, order: str, window: int, seed: int) -> Ints:
    """The next samples of a source, of which so many have passed."""
    if count == 0:
        return np.empty(0, np.int64)
    first, last = passed // source.length, (passed + count - 1) // source.length
    begin = passed - first * source.length
    if source.length == 1:
        return np.full(count, source.begin)
    passes = [_pass(source, order, window, Key(seed=seed, epoch=number)) for number in range(first, last + 1)]
    return source.begin + np.concatenate(passes)[begin : begin + count]


def _pass(source: MixtureSource, order: str, window: int, key: Key) -> Ints:
    """One pass over a source's samples: indices in the source."""
    samples = np.arange(source.length)
    if order == "sequential":
        return samples
    words = random_words(source.begin + samples, Stream.SAMPLES, key)
    if order == "random" or source.shard_ends is None:
        return np.argsort(words, kind="stable")
    sequence, shard_of = windowed(source.shard_ends, key, source.begin)
    return sequence[np.lexsort((words[sequence], shard_of // window))]


def windowed(shard_ends: Sequence[int] | Ints, key: Key, begin: int = 0) -> tuple[Ints, Ints]:
    """Samples of shards in random order, those of a shard in a row.

    Args:
        shard_ends: index after the last sample of each shard.
        key: seed and epoch.
        begin: number from which on the shards are told apart from those of other sources.

    Returns:
        Indices of the samples, int64, (N,); and for each place the number of its shard in this order, int64, (N,).
    """
    ends = np.asarray(shard_ends, np.int64)
    begins = np.concatenate([[0], ends[:-1]])
    shards = np.argsort(random_words(begin + np.arange(len(ends)), Stream.SHARDS, key), kind="stable")
    lengths = (ends - begins)[shards]
    places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(begins[shards], lengths) + places, np.repeat(np.arange(len(ends)), lengths)
