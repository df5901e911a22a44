"""Assigns samples to shards before anything is written: a pure function of sizes and a seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fastdata.shards.conversion.job import ConvertOptions
from fastdata.shards.records import Ref
from fastdata.shards.tar import BLOCK, END_OF_ARCHIVE, padding

__all__ = ["plan_shards", "room_in", "stored_bytes"]

_SAMPLE_OVERHEAD = 3 * BLOCK  # two headers and a label


def plan_shards(refs: Sequence[Ref], options: ConvertOptions) -> list[list[Ref]]:
    """The samples of each shard, in order."""
    order: Iterable[int] = range(len(refs))
    if options.shuffle_seed is not None:
        order = _permutation(len(refs), options.shuffle_seed)
    shards: list[list[Ref]] = []
    room = 0
    for position in order:
        ref = refs[position]
        size = stored_bytes(ref.size, *(part.size for part in ref.parts))
        if not shards or size > room:
            shards.append([])
            room = room_in(options)
        shards[-1].append(ref)
        room -= size
    return shards


def room_in(options: ConvertOptions) -> int:
    """Bytes available for samples in a shard."""
    return options.shard_bytes - len(END_OF_ARCHIVE)


def stored_bytes(size: int, *parts: int) -> int:
    """Bytes that a sample takes in a tar file: its image of this size, its label, and other parts of these sizes."""
    return size + padding(size) + _SAMPLE_OVERHEAD + sum(part + padding(part) + BLOCK for part in parts)


def _permutation(count: int, seed: int) -> list[int]:
    """A random order that is the same everywhere: samples sorted by words of a counter-based generator."""
    from fastdata.views.philox import Key, random_words

    words = random_words(np.arange(count), 0, Key(seed=seed, epoch=0))
    order: list[int] = np.argsort(words, kind="stable").tolist()
    return order
