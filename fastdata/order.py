"""Which samples come when, and how to continue after any of them.

The order of an epoch is a pure function of a few integers for the samplers known here, so resuming is slicing.  An
unknown sampler is run again from its recorded random state and fast-forwarded by index; no sample is read for it.
"""

from __future__ import annotations

import base64
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from fastdata.errors import StateMismatch
from fastdata.samplers import EpochSampler

__all__ = [
    "STATE_VERSION",
    "EpochBatches",
    "LoaderState",
    "describe_sampler",
    "epoch_sampler",
    "generator_of",
    "resumed_with",
    "visits_each_sample_once",
]

STATE_VERSION = 1

_MOST_RANKS = 1 << 20
_STATELESS = (SequentialSampler, DistributedSampler, EpochSampler)  # their order needs no generator


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """Where a loader stands, as plain JSON-able values.

    Attributes:
        version: format version of this state.
        dataset_size: samples in the dataset, or -1 where it has no length.
        sampler: the sampler and what decides its order, in words; see `describe_sampler`.
        epoch: the epoch under way.
        delivered: samples of that epoch handed to the caller (skipped bad ones included).
        batches: batches of that epoch handed to the caller.
        view_seed: seed of the random views of that epoch.
        order_seed: seed of a RandomSampler's permutation, if it was drawn from torch's generator.
        rng_state: torch generator state before the epoch's order was drawn (base64), for other samplers.
        sampler_epoch: the `epoch` of the sampler, or of one inside it, that has `set_epoch` (DistributedSampler).
        dataset_state: an iterable dataset's own state, where it has one.
        ranks: number of ranks of an EpochSampler; `delivered` counts one rank's samples since the last change of it.
        history: (ranks, samples delivered by each) before that.
    """

    version: int = STATE_VERSION
    dataset_size: int = -1
    sampler: str
    epoch: int = 0
    delivered: int = 0
    batches: int = 0
    view_seed: int | None = None
    order_seed: int | None = None
    rng_state: str | None = None
    sampler_epoch: int | None = None
    dataset_state: Any = None
    ranks: int | None = None
    history: list[list[int]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that `json.dumps` accepts (if the dataset's own state does)."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> LoaderState:
        """Checks and reads a dictionary written by `to_dict`.

        Raises:
            StateMismatch: it is no such dictionary, or of another version.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(state, dict) or not {"version", "dataset_size", "sampler"} <= state.keys():
            given = f"a dictionary with {list(state)[:5]}" if isinstance(state, dict) else type(state).__name__
            raise StateMismatch(f"not a loader state but {given}; pass what the loader's state_dict() returned")
        if state["version"] != STATE_VERSION:
            raise StateMismatch(
                f"state has format version {state['version']!r}, this fastdata reads {STATE_VERSION}; "
                "resume with the fastdata that saved it, or start the epoch anew"
            )
        unknown = state.keys() - names
        if foreign := sorted(name for name in unknown if not name.startswith("_")):  # accelerate adds one with _
            raise StateMismatch(f"state has unknown entries {foreign}")
        return cls(**{name: value for name, value in state.items() if name in names})

    def check_belongs_to(self, other: LoaderState) -> None:
        """Raises StateMismatch unless both come from the same dataset and kind of sampler."""
        for name in ("dataset_size", "sampler"):
            saved, here = getattr(self, name), getattr(other, name)
            if saved != here:
                raise StateMismatch(
                    f"state was saved with {name} = {saved!r}, this loader has {name} = {here!r}; "
                    "make the loader as it was made when the state was saved"
                )


def samplers_in(sampler: object) -> list[Any]:
    """A sampler and those it wraps, from the outside in."""
    chain: list[Any] = []
    while sampler is not None and all(sampler is not outer for outer in chain):
        chain.append(sampler)
        inner = getattr(sampler, "batch_sampler", None)
        sampler = inner if inner is not None else getattr(sampler, "sampler", None)
    return chain


def resumed_with(state: LoaderState, sampler: EpochSampler) -> LoaderState:
    """The state for a sampler of perhaps another number of ranks, which it sets to continue there."""
    try:
        history = [[int(ranks), int(delivered)] for ranks, delivered in state.history or []]
    except (TypeError, ValueError) as error:
        raise StateMismatch(f"the state's history is {state.history!r}, not pairs of ranks and samples") from error
    if not all(1 <= ranks <= _MOST_RANKS and delivered >= 0 for ranks, delivered in history):
        raise StateMismatch(f"the state's history is {history}: ranks from 1 on and samples from 0 on are expected")
    if state.ranks not in (None, sampler.num_replicas) and state.delivered:
        history.append([state.ranks or 1, state.delivered])
        state = replace(state, delivered=0)
    sampler.resume(state.epoch, history)
    return replace(state, ranks=sampler.num_replicas, history=history or None)


def epoch_sampler(sampler: object) -> Any:
    """The outermost of `samplers_in` that knows epochs, or None."""
    return next((each for each in samplers_in(sampler) if hasattr(each, "set_epoch")), None)


def describe_sampler(sampler: object) -> str:
    """Class names from the outside in, with what decides the order of those known here."""
    names = [_describe_one(each) for each in samplers_in(sampler) if type(each) is not BatchSampler]
    return " of ".join(names) or type(sampler).__name__


def _describe_one(sampler: Any) -> str:
    name = type(sampler).__name__
    if isinstance(sampler, DistributedSampler):
        return f"{name}(num_replicas={sampler.num_replicas}, shuffle={sampler.shuffle}, seed={sampler.seed})"
    if isinstance(sampler, EpochSampler):
        return repr(sampler)
    if isinstance(sampler, RandomSampler):
        return f"{name}({'with a' if sampler.generator is not None else 'without'} generator)"
    return name


def visits_each_sample_once(sampler: object) -> bool:
    """True for samplers known to draw no sample twice in an epoch, across all ranks."""
    return (
        type(sampler) is SequentialSampler
        or type(sampler) in (DistributedSampler, EpochSampler)
        or (type(sampler) is RandomSampler and _is_plain_permutation(sampler))
    )


def _is_plain_permutation(sampler: RandomSampler) -> bool:
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)


class EpochBatches:
    """The index batches of one epoch, from any sample on; stands in for a loader's batch sampler.

    Iterating yields what the wrapped sampler yields, less the first `state.delivered` indices.  `state` then also
    holds what is needed to do that again.
    """

    def __init__(self, batches: Iterable[Any], *, start: LoaderState, order_seed: int | None) -> None:
        """Args:
        batches: what to iterate: a batch sampler, or a plain sampler for unbatched loading.
        start: the state to begin from; `delivered` is 0 for a fresh epoch.
        order_seed: decides a RandomSampler's order; None draws it as RandomSampler does.
        """
        self._batches = batches
        self._sampler = batches.sampler if type(batches) is BatchSampler else batches
        generators = (generator_of(sampler) for sampler in samplers_in(batches))
        self._generator = next((generator for generator in generators if generator is not None), None)
        self._seen: Counter[int] | None = None if visits_each_sample_once(self._sampler) else Counter()
        self.sizes: list[int] = []
        self.state = start if start.order_seed is not None else replace(start, order_seed=order_seed)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        self.sizes = []
        for batch in self._remaining():
            self.sizes.append(_size_of(batch))
            yield batch

    def delivered_after(self, batches: int) -> int:
        """Samples delivered in this epoch once `batches` of the batches here have been handed over."""
        return self.state.delivered + sum(self.sizes[:batches])

    def copies_of(self, batch: Iterable[int]) -> list[int]:
        """Numbers that tell apart several visits of one sample in this epoch, on this rank and on others.

        Always 0 for samplers that visit each sample once.  Call it once for each batch, in order.
        """
        if self._seen is None:
            return [0 for _ in batch]
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        copies = []
        for index in map(int, batch):
            copies.append((rank << 16 | self._seen[index] & 0xFFFF) & 0xFFFFFFFF)
            self._seen[index] += 1
        return copies

    def _remaining(self) -> Iterator[Any]:
        skip = self.state.delivered
        fresh = self.state.rng_state is None
        self.settle()
        if type(self._sampler) is RandomSampler and self._sampler.generator is None:
            return self._skip(self._batched(self._random_order(self._sampler)), skip)
        if type(self._sampler) is SequentialSampler:
            rest = range(skip, max(skip, len(self._sampler)))
            return self._batched(iter(rest))
        if type(self._sampler) is EpochSampler:
            return self._batched(iter(self._sampler.remaining(skip).tolist()))
        if type(self._sampler) is DistributedSampler:
            return self._skip(iter(self._batches), skip)
        return self._skip(iter(self._batches), skip) if fresh else self._replayed(skip)

    def _batched(self, order: Iterator[int]) -> Iterator[Any]:
        if isinstance(self._batches, BatchSampler):
            return iter(BatchSampler(order, self._batches.batch_size, self._batches.drop_last))
        return order

    def settle(self) -> None:
        """Decides an order that has not been drawn yet, so that `state` describes it."""
        if type(self._sampler) is RandomSampler and self._sampler.generator is None:
            if self.state.order_seed is None:  # as RandomSampler.__iter__ draws it
                seed = int(torch.empty((), dtype=torch.int64).random_().item())
                self.state = replace(self.state, order_seed=seed)
        elif (
            type(self._sampler) not in (SequentialSampler, DistributedSampler, EpochSampler)
            and self.state.rng_state is None
        ):
            rng = self._generator.get_state() if self._generator is not None else torch.get_rng_state()
            self.state = replace(self.state, rng_state=base64.b64encode(rng.numpy().tobytes()).decode())

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

    def _replayed(self, skip: int) -> Iterator[Any]:
        """Any other sampler: recorded random state, then fast-forward by index."""
        assert self.state.rng_state is not None
        with _restored(self._generator, self.state.rng_state):
            rest = self._skip(iter(self._batches), skip)
            return itertools.chain(list(itertools.islice(rest, 1)), rest)  # most draw all with the first

    def _skip(self, batches: Iterator[Any], count: int) -> Iterator[Any]:
        """Drops the first `count` indices; a batch cut in the middle keeps its rest."""
        while count > 0:
            batch = next(batches, None)
            if batch is None:
                return iter(())
            size = _size_of(batch)
            if self._seen is not None:
                self._seen.update(map(int, batch[:count] if hasattr(batch, "__len__") else [batch]))
            if size > count:
                return itertools.chain([batch[count:]], batches)
            count -= size
        return batches


def _size_of(batch: Any) -> int:
    return len(batch) if hasattr(batch, "__len__") else 1


def generator_of(sampler: object) -> torch.Generator | None:
    """The torch.Generator that a sampler or loader draws from, if it has one of its own."""
    generator = getattr(sampler, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


class _restored:  # noqa: N801 - a context manager, used like a function
    """Sets a generator (torch's global one for None) to a recorded state; the global one is put back afterwards."""

    def __init__(self, generator: torch.Generator | None, recorded: str) -> None:
        self._generator = generator
        self._recorded = torch.frombuffer(bytearray(base64.b64decode(recorded)), dtype=torch.uint8)

    def __enter__(self) -> None:
        if self._generator is not None:
            self._generator.set_state(self._recorded)
        else:
            self._before = torch.get_rng_state()
            torch.set_rng_state(self._recorded)

    def __exit__(self, *_: object) -> None:
        if self._generator is None:
            torch.set_rng_state(self._before)
