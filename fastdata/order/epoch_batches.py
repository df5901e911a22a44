"""Order of an epoch's samples, and how to resume after any of them.

The order of an epoch is a pure function of a few integers for the samplers known here, so resuming is slicing.  An
unknown sampler is run again from the recorded states of the generators it may draw from, and fast-forwarded by index;
no sample is read for it.  A checksum of the indices passed over checks that they are the same as before.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastdata.errors import PipelineError, StateMismatch
from fastdata.order.aspect_buckets import BucketBatchSampler
from fastdata.order.early_batches import EarlyBatches, HandOver
from fastdata.order.epoch_sampler import EpochSampler
from fastdata.order.index_checksum import checksum_of
from fastdata.order.random_states import CANNOT_BE_STATES, GlobalStates, set_states_of, states_of
from fastdata.order.sampler_chain import own_generators, visits_each_sample_once
from fastdata.order.state import LoaderState
from fastdata.order.visits import Visits

__all__ = ["EpochBatches", "predicted_state", "recorded"]

_NOTHING = object()
_ARRAYS = (list, tuple, range, np.ndarray, torch.Tensor)
_DRAWING_AT_ONCE = (SubsetRandomSampler, WeightedRandomSampler)  # all of an epoch with its first index
_STATELESS = (SequentialSampler, DistributedSampler, EpochSampler, BucketBatchSampler)  # their order needs no generator


class EpochBatches:
    """The index batches of one epoch, from any sample on; stands in for a loader's batch sampler.

    Iterating yields what the wrapped sampler yields, less the first `state.delivered` indices and the batches in
    `state.ahead`.  `state` then also holds what is needed to do that again.

    Args:
        batches: the batch sampler, or a plain sampler for unbatched loading.
        start: the state to begin from; `delivered` is 0 for a fresh epoch.
        order_seed: decides the order of samplers that draw from global generators; None lets them draw as they do.
        batched: False if each item is one index.
        draw_due: the order is known in advance, but torch's sampler would now draw its seed from the global generator;
            so one number is drawn there and not used.
        in_order: batches are handed over in this order.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        *,
        start: LoaderState,
        order_seed: int | None,
        batched: bool = True,
        draw_due: bool = False,
        in_order: bool = True,
    ) -> None:
        self._batches, self._batched, self._draw_due, self._in_order = batches, batched, draw_due, in_order
        self._sampler = batches.sampler if batched and type(batches) is BatchSampler else batches
        self._is_random = type(self._sampler) is RandomSampler and (
            self._sampler.generator is None or order_seed is not None
        )
        self._is_known = self._is_random or type(self._sampler) in _STATELESS
        self._streams: GlobalStates | None = None  # what an unknown sampler draws from, if not the global generators
        self._candidates: Sequence[int] | None = None
        self.sizes = array("q")  # of all batches after the first `state.delivered` samples, `state.ahead` included
        self._yielded = array("q")  # places in `sizes` of the batches that were yielded
        self._begins = array("q", [0])  # samples before each batch of `sizes`, and after the last
        self._own_checksums: dict[int, int] = {}  # of single batches that may be handed over early, by their places
        self._early, self._handed, self._counted = EarlyBatches(()), HandOver(), 0
        self._checksum = 0
        self.checksums = array("q")
        self.unfinished = False  # iteration has begun, and the sampler has not come to its end (it may have raised)
        self.state = start if start.order_seed is not None else replace(start, order_seed=order_seed)
        self._visits = None if visits_each_sample_once(self._sampler) else Visits(self.state.dataset_size)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        self.sizes, self._begins, self._yielded = array("q"), array("q", [0]), array("q")
        self.checksums, self._checksum = array("q"), 0
        self._own_checksums, self._early = {}, EarlyBatches(self.state.ahead or ())
        self._handed, self._counted = HandOver(), 0
        self.unfinished = True
        remaining = self._remaining()
        while True:
            with self._drawing():
                batch: Any = next(remaining, _NOTHING)
            if type(self._sampler) in _DRAWING_AT_ONCE:
                self._streams = None
            if batch is _NOTHING:
                self._early.check_end(self._begins[-1])
                self.unfinished = False
                return
            if not self._is_early(batch if self._batched else [batch]):
                self._yielded.append(len(self.sizes) - 1)
                yield batch

    def _is_early(self, indices: Sequence[Any]) -> bool:
        """Notes the next batch of the sampler; returns whether it was handed over before the state was saved."""
        self._note(indices)
        place, begin = len(self.sizes), self._begins[-1]
        self.sizes.append(len(indices))
        self._begins.append(begin + len(indices))
        self.checksums.append(self._checksum)
        is_early = self._early.has(begin, indices)
        if is_early or not self._in_order:
            self._own_checksums[place] = checksum_of(indices, 0)
        if is_early:
            self._handed.add(place)
            if self._visits is not None:
                self._visits.update(indices)
        return is_early

    # ---- what has been given

    def size_of(self, number: int) -> int | None:
        """Samples in batch `number` of those yielded; None if it was not."""
        return self.sizes[self._yielded[number]] if number < len(self._yielded) else None

    def state_after(self, count: int, order: Sequence[int] | None = None) -> LoaderState:
        """Returns the state after `count` of the batches yielded here were handed over.

        Args:
            count: number of batches handed over; never smaller than in an earlier call.
            order: numbers of the yielded batches in the order in which they were handed over; None if as yielded.
        """
        for turn in range(self._counted, count):
            self._handed.add(self._yielded[turn if order is None else order[turn]])
        self._counted = count
        first, any_order = self._handed.first, not self._in_order or self.state.ahead is not None
        begin = self._begins[first]
        ahead = [
            [self._begins[place] - begin, self.sizes[place], self._own_checksums[place]]
            for place in sorted(self._handed.early)
        ]
        ahead += [[place - begin, *each] for place, *each in self._early.behind(self._begins[-1])]
        return replace(
            self.state,
            batches=self.state.batches + first,
            delivered=self.state.delivered + begin,
            ahead=ahead if any_order else None,
            checksum=None if self._is_known else self.checksums[first - 1] if first else self.state.checksum or 0,
        )

    def occurrences_of(self, batch: Iterable[Any]) -> list[int]:
        """Numbers that tell apart several visits of one sample in this epoch, on this rank and on others.

        Always 0 for samplers that visit each sample once.  Call it once for each batch, in order.
        """
        if self._visits is None:
            return [0 for _ in batch]
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        return [(rank << 16 | self._visits.add(index)) & 0xFFFFFFFF for index in batch]

    def candidates(self) -> Sequence[int]:
        """Indices from which a substitute is taken: those that the sampler may give, to any rank, in any batch.

        Of a sampler that is not known those of the whole dataset, or of its attribute `indices` if it has one.

        Raises:
            PipelineError: the dataset has no length.
        """
        if self._candidates is None:
            self._candidates = _may_give(self._sampler, self.state.dataset_size)
        return self._candidates

    def _note(self, indices: Sequence[Any]) -> None:
        if self._is_known:
            return
        self._checksum = checksum_of(indices, self._checksum)

    # ---- in which order

    def settle(self) -> None:
        """Decides an order that has not been drawn yet, so that `state` describes it."""
        if self._is_random:
            if self.state.order_seed is None or self._draw_due:  # as RandomSampler.__iter__ draws it
                seed = _draw(None)
                if self.state.order_seed is None:
                    self.state = replace(self.state, order_seed=seed)
                self._draw_due = False
        elif not self._is_known and self.state.sampler_own is None:
            self.state = recorded(self.state, self._batches)

    def _remaining(self) -> Iterator[Any]:
        state, skip = self.state, self.state.delivered
        self.settle()
        if self._is_random:
            order = self._random_order(self._sampler)  # type: ignore[arg-type]
            passed = itertools.islice(order, skip)
            if self._visits is not None:
                self._visits.update(passed)
            return self._batched_again(itertools.islice(order, 0 if self._visits is not None else skip, None))
        if type(self._sampler) is SequentialSampler:
            return self._batched_again(iter(range(skip, max(skip, len(self._sampler)))))
        if type(self._sampler) is EpochSampler:
            if self._visits is not None:
                self._visits.update(self._sampler.indices()[:skip].tolist())
            return self._batched_again(iter(self._sampler.remaining(skip).tolist()))
        if type(self._sampler) is DistributedSampler:
            return self._after(skip)
        if type(self._sampler) is BucketBatchSampler:  # by batches, which are as many on every rank
            batches = iter(self._sampler)
            for batch in itertools.islice(batches, state.batches):
                if self._visits is not None:
                    self._visits.update(batch)
            return batches
        if state.sampler_own is not None:  # recorded before
            self._set_own(state.sampler_own)
        if self.state.order_seed is not None:
            self._streams = GlobalStates.of_seed(self.state.order_seed)
        elif state.sampler_random is not None:
            streams = GlobalStates.from_json(state.sampler_random)
            self._streams = streams if streams != GlobalStates.now() else None  # nobody has drawn since
        with self._drawing():
            return self._after(skip)

    def _set_own(self, states: Sequence[Any]) -> None:
        generators = own_generators(self._batches)
        try:
            set_states_of(generators, states)
        except CANNOT_BE_STATES as error:
            raise StateMismatch(
                f"the state has {len(states)} random generators of the sampler, but the sampler has {len(generators)}, "
                f"or other kinds of them ({error}); create the sampler as it was created when the state was saved"
            ) from error

    def _drawing(self) -> Any:
        return self._streams.drawing() if self._streams is not None else nullcontext()

    def _batched_again(self, order: Iterator[int]) -> Iterator[Any]:
        if self._batched and isinstance(self._batches, BatchSampler):
            return iter(BatchSampler(order, self._batches.batch_size, self._batches.drop_last))
        return order

    def _random_order(self, sampler: RandomSampler) -> Iterator[int]:
        """RandomSampler's own order, from the seed that is kept.  Source: torch.utils.data.RandomSampler."""
        assert self.state.order_seed is not None
        seeded = RandomSampler(
            sampler.data_source,
            replacement=sampler.replacement,
            num_samples=sampler.num_samples,
            generator=torch.Generator().manual_seed(self.state.order_seed),
        )
        return iter(seeded)

    def _after(self, skip: int) -> Iterator[Any]:
        """The sampler's own iteration without its first `skip` indices, which must be those delivered before."""
        if self._batched and type(self._batches) is BatchSampler:
            order = iter(self._batches.sampler)
            passed = list(itertools.islice(order, skip))
            self._pass_over(passed, skip)
            return self._batched_again(order)
        if not self._batched:
            order = iter(self._batches)
            self._pass_over(list(itertools.islice(order, skip)), skip)
            return order
        return self._after_in_batches(map(_as_batch, self._batches), skip)

    def _after_in_batches(self, batches: Iterator[Any], skip: int) -> Iterator[Any]:
        """The remaining batches after the first `skip` indices; a batch that is cut in the middle keeps its rest."""
        passed: list[Any] = []
        rest: list[Any] = []
        while len(passed) < skip:
            batch = next(batches, None)
            if batch is None:
                break
            missing = skip - len(passed)
            passed.extend(batch[:missing])
            rest = batch[missing:]
        self._pass_over(passed, skip)
        return itertools.chain([rest] if len(rest) else [], batches)

    def _pass_over(self, passed: list[Any], skip: int) -> None:
        self._note(passed)
        if self._visits is not None:
            self._visits.update(passed)
        if len(passed) < skip or (self.state.checksum is not None and self.state.checksum != self._checksum):
            raise StateMismatch(
                f"the sampler does not repeat the {skip} samples that were delivered before the state was saved "
                f"({type(self._sampler).__name__} gave {len(passed)}); its order depends on something that is not "
                "saved in the state, or the dataset has changed: give the sampler a generator or a seed, call its "
                "set_epoch, or start the epoch from the beginning"
            )


def recorded(
    state: LoaderState, sampler: object, generator: torch.Generator | None = None, *, drawn: bool = False
) -> LoaderState:
    """Returns the state with the states of all generators from which a sampler may draw its next order.

    Args:
        state: state of the loader.
        sampler: the sampler that draws the order.
        generator: the loader's own generator.
        drawn: True for the states after torch's iterator will have drawn its base seed, from `generator`, or from the
            global generator if that is None.
    """
    before = generator.get_state() if drawn and generator is not None else None
    if drawn and generator is not None:
        _draw(generator)
    own_states = states_of(own_generators(sampler))
    if generator is not None and before is not None:
        generator.set_state(before)
    now = GlobalStates.now()
    now = now.after_a_draw(generator) if drawn else now
    # With an order_seed global draws come from there.
    globally = now.to_json() if state.order_seed is None else None
    return replace(state, sampler_own=own_states, sampler_random=globally)


def predicted_state(
    state: LoaderState, sampler: Any, generator: torch.Generator | None, *, drawn: bool, batched: bool
) -> LoaderState:
    """Predicts the state of an epoch that has not begun: with the seeds and generator states that decide it.

    The prediction holds if nobody draws from these generators before; it does not change them.

    Args:
        state: state of the loader.
        sampler: the loader's batch sampler, or plain sampler; None for an iterable dataset.
        generator: the loader's own generator; None if it has none.
        drawn: torch's iterator will draw its base seed first, from `generator`, or from the global generator if that
            is None.
        batched: False if the sampler's items are single indices, or batches for a dataset that takes such.
    """
    inner = sampler.sampler if batched and type(sampler) is BatchSampler else sampler
    ahead = torch.Generator()
    ahead.set_state(torch.get_rng_state())
    if drawn:
        own = torch.Generator()
        own.set_state(generator.get_state() if generator is not None else torch.get_rng_state())
        base_seed = _draw(ahead) if generator is None else _draw(own)
        state = replace(state, view_seed=base_seed, worker_seed=base_seed)
    if sampler is None or type(inner) in _STATELESS:
        return state
    if type(inner) is not RandomSampler or inner.generator is not None:
        return recorded(state, sampler, generator, drawn=drawn)
    return replace(state, order_seed=_draw(ahead))


def _draw(generator: torch.Generator | None) -> int:
    """A seed as torch's samplers and iterators draw theirs, from the global generator if none is given."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _may_give(sampler: Any, dataset_size: int) -> Sequence[int]:
    """The indices that a sampler may give in an epoch, as far as that is known."""
    if type(sampler) is WeightedRandomSampler:
        return torch.nonzero(sampler.weights).flatten().tolist()
    own = sampler if isinstance(sampler, _ARRAYS) else getattr(sampler, "indices", None)
    if isinstance(own, _ARRAYS) and len(own):
        nested = itertools.chain.from_iterable(each if isinstance(each, _ARRAYS) else [each] for each in own)
        return sorted({operator.index(each) for each in nested})
    if type(sampler) in (SequentialSampler, RandomSampler):
        return range(len(sampler.data_source))
    if dataset_size < 1:
        raise PipelineError(
            "on_error='replace' takes a substitute from the samples of the dataset, but this one has no length; give "
            "it __len__, or its sampler the attribute indices, or use on_error='skip'"
        )
    return range(dataset_size)


def _as_batch(batch: Any) -> Any:
    """A batch that has a length and can be cut: lists, tuples and arrays as they are, others as a list."""
    if isinstance(batch, list | tuple | torch.Tensor) or type(batch).__module__ == "numpy":
        return batch
    return list(batch)
