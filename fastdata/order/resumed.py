"""Continues the order of an epoch from a state, perhaps with another number of ranks."""

from __future__ import annotations

from dataclasses import replace

from fastdata.errors import StateMismatch
from fastdata.order.epoch_sampler import EpochSampler
from fastdata.order.state import LoaderState
from fastdata.terminal.words import counted

__all__ = ["resumed_with"]

_MOST_RANKS = 1 << 20


def resumed_with(state: LoaderState, sampler: EpochSampler) -> LoaderState:
    """Sets a sampler to continue from a state, perhaps saved with another number of ranks; returns the state for it."""
    try:
        history = [[int(ranks), int(delivered)] for ranks, delivered in state.history or []]
    except (TypeError, ValueError, OverflowError) as error:
        raise StateMismatch(f"the state's history is {state.history!r}, not pairs of ranks and samples") from error
    if state.ranks not in (None, sampler.num_replicas) and state.ahead is not None and (state.delivered or state.ahead):
        raise StateMismatch(
            f"the state was saved with {counted(state.ranks or 1, 'rank')} and in_order=False, but this run has "
            f"{counted(sampler.num_replicas, 'rank')}. Batches that were delivered out of order cannot be distributed "
            f"over another number of ranks: resume with {counted(state.ranks or 1, 'rank')}, or start the epoch from "
            "the beginning"
        )
    if state.ranks not in (None, sampler.num_replicas) and state.delivered:
        history.append([state.ranks or 1, state.delivered])
        state = replace(state, delivered=0)
    if not all(1 <= ranks <= _MOST_RANKS and delivered >= 0 for ranks, delivered in history):
        raise StateMismatch(
            f"the state's history is {history}: expected pairs of at least 1 rank and at least 0 samples"
        )
    sampler.resume(state.epoch, history)
    return replace(state, ranks=sampler.num_replicas, history=history or None)
