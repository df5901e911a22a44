"""Compares the batches of a loader with those that torch's DataLoader makes of the same dataset and arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.utils.data

from fastdata.dataloader.arguments import OWN_ARGUMENTS
from fastdata.dataloader.loader import DataLoader, StatelessDataLoader
from fastdata.dataloader.verdict import asked_workers
from fastdata.errors import OptionError
from fastdata.order.random_states import GlobalStates, set_states_of, states_of
from fastdata.order.sampler_chain import own_generators
from fastdata.run.differences import difference, size_of

__all__ = ["Comparison", "check"]

_MOST_BYTES = 1 << 30  # of torch's batches, which are kept until ours are made
_BOTH_HAVE = (
    "collate_fn",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "timeout",
    "in_order",
)
# Of fastdata's arguments those that do not ask for something else than torch gives.
_KEPT = tuple(name for name in OWN_ARGUMENTS if name not in ("device", "seed", "on_error", "progress", "draws"))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of `fastdata.check`; printed, it is one line.

    Attributes:
        dataset: class of the loader's dataset.
        batches: batches that were compared.
        batch_size: samples in a batch; None for a batch sampler without that attribute, or single samples.
        difference: the first difference, in words: batch, place in the batch, sample, reason; None if all are equal.
        repeatable: False if torch's own loader gave other batches the second time, so that nothing can be said.
        draws: how random transforms were compared, in words; "" if there are none that are fused.
    """

    dataset: str
    batches: int
    batch_size: int | None
    difference: str | None
    repeatable: bool = True
    draws: str = ""

    @property
    def equal(self) -> bool:
        """True if every compared batch equals torch's."""
        return self.difference is None

    def __str__(self) -> str:
        of = f" of {self.batch_size}" if self.batch_size is not None else ""
        compared = f"{self.batches} {'batch' if self.batches == 1 else 'batches'}{of}{self.draws}"
        if self.equal:
            return f"equal: {self.dataset}, {compared}"
        if not self.repeatable:
            return (
                f"cannot be compared: {self.dataset}: torch's own DataLoader gives other batches the second time "
                f"({self.difference}): the dataset draws from a generator of its own, or remembers earlier samples"
            )
        return f"different: {self.dataset}, {self.difference}"


def check(loader: torch.utils.data.DataLoader[Any], *, batches: int = 50) -> Comparison:
    """Makes the same batches with torch's DataLoader and with fastdata's, and compares them.

    Values, types, dtypes, shapes, strides, their order and exceptions are compared.  Both begin from the same states of
    the random generators of torch, Python, NumPy and the samplers, which are put back afterwards; the loader itself is
    not iterated.  Where random transforms are fused, values are those of `draws="torch"`, and the loader's own batches,
    whose crops are others, are compared in all but values.  Comparing ends early at 1 GiB of batches.

    Args:
        loader: torch's loader or ours.  Its `device`, `seed`, `on_error` and `persistent_workers` are left out, since
            they ask for something else than torch gives.
        batches: number of batches to compare, from the first one of an epoch.

    Raises:
        OptionError: `loader` is no DataLoader, or `batches` is below 1.

    Example:
        >>> print(fastdata.check(loader))
        equal: ImageFolder, 50 batches of 64, training draws included
    """
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise OptionError(f"check compares a DataLoader, not {type(loader).__name__}")
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
        raise OptionError(f"batches={batches!r}; use an integer of at least 1")
    return _Check(loader, batches).compared()


class _Check:
    """The loaders that are compared, and what they begin from."""

    def __init__(self, loader: Any, batches: int) -> None:
        self._loader, self._most = loader, batches
        self._is_ours = isinstance(loader, StatelessDataLoader)
        self._before = GlobalStates.now()
        self._generators = own_generators(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler)
        if isinstance(loader.generator, torch.Generator):
            self._generators = [*self._generators, loader.generator]
        self._generators_before = states_of(self._generators)
        self._indices: list[Any] = []  # of torch's batches

    def compared(self) -> Comparison:
        """Makes the batches and compares them."""
        try:
            return self._compared()
        finally:
            self._put_back()

    def _compared(self) -> Comparison:
        torchs = list(_within(self._outcomes(self._torchs()), self._most))
        ours = self._ours(draws="sample")
        draws = _draws(ours)
        exact = self._ours(draws="torch", workers="auto") if draws else ours
        found = self._first_difference(torchs, exact, values=True)
        told, repeatable = "", True
        if found is not None:
            repeatable = self._first_difference(torchs, self._torchs(), values=True) is None
        elif draws:
            found, told = self._first_difference(torchs, ours, values=False), ", training draws included"
        return Comparison(
            dataset=type(self._loader.dataset).__name__,
            batches=len(torchs),
            batch_size=getattr(self._loader.batch_sampler, "batch_size", None),
            difference=found,
            repeatable=repeatable,
            draws=told,
        )

    def _first_difference(self, torchs: list[Any], loader: Any, *, values: bool) -> str | None:
        """The first difference between torch's outcomes and those of another loader, in words; None for none."""
        outcomes = islice(self._outcomes(loader), len(torchs) + (len(torchs) < self._most))
        number = -1
        for number, outcome in enumerate(outcomes):
            if number == len(torchs):
                return f"fastdata gives a batch {number} behind torch's last one"
            found = difference(torchs[number], outcome, values=values)
            if found is not None:
                return f"batch {number}{found.place}{self._sample(number, found.row)}: {found.reason}"
        if number + 1 < len(torchs):
            return f"fastdata gives {number + 1} batches, torch more"
        return None

    def _sample(self, number: int, row: int | None) -> str:
        if row is None or number >= len(self._indices):
            return ""
        try:
            return f", sample {row} (dataset[{self._indices[number][row]}])"
        except (TypeError, LookupError):
            return f", sample {row}"

    def _outcomes(self, loader: Any) -> Iterator[Any]:
        """The batches of a loader, and the errors in their places, from the states that all begin with."""
        self._put_back()
        self._indices = self._indices if isinstance(loader, StatelessDataLoader) else []
        iterator = None
        try:
            while True:
                try:
                    iterator = iter(loader) if iterator is None else iterator
                    batch = next(iterator)
                except StopIteration:
                    return
                except Exception as error:  # noqa: BLE001 - the user's, which is what is compared
                    yield error
                    if iterator is None or isinstance(loader.dataset, torch.utils.data.IterableDataset):
                        return
                else:
                    yield batch
        finally:
            del iterator  # which ends its workers

    def _put_back(self) -> None:
        self._before.put_back()
        set_states_of(self._generators, self._generators_before)

    def _torchs(self) -> Any:
        torchs = next(
            each
            for each in StatelessDataLoader.__mro__
            if each.__name__ == "DataLoader" and each is not StatelessDataLoader
        )
        arguments = self._arguments()
        if "batch_sampler" in arguments:
            arguments["batch_sampler"] = _Noting(arguments["batch_sampler"], self)
        return torchs(self._loader.dataset, **arguments)

    def note(self, indices: Any) -> None:
        """Keeps the index batches of torch's loader, for the message."""
        self._indices.append(indices)

    def _ours(self, *, draws: str, **changes: Any) -> Any:
        own = {name: getattr(self._loader, name) for name in _KEPT} if self._is_ours else {}
        arguments = self._arguments()
        if self._is_ours:
            arguments["num_workers"] = asked_workers(self._loader)
        if draws == "torch":
            own["augment_on"] = "host"
        return DataLoader(self._loader.dataset, **{**arguments, **own, **changes, "draws": draws})

    def _arguments(self) -> dict[str, Any]:
        loader = self._loader
        arguments = {name: getattr(loader, name) for name in _BOTH_HAVE}
        arguments["num_workers"] = int(loader.num_workers)
        if loader.num_workers == 0:
            arguments.update(prefetch_factor=None, multiprocessing_context=None, timeout=0)
        if loader.batch_sampler is not None and not isinstance(loader.dataset, torch.utils.data.IterableDataset):
            arguments["batch_sampler"] = loader.batch_sampler
        else:
            arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
            if not isinstance(loader.dataset, torch.utils.data.IterableDataset):
                arguments["sampler"] = loader.sampler
        if loader.batch_size is None:
            arguments.pop("drop_last", None)
        return arguments


class _Noting:
    """A batch sampler whose index batches are noted."""

    def __init__(self, batch_sampler: Any, noted: _Check) -> None:
        self._batch_sampler, self._noted = batch_sampler, noted

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        for indices in self._batch_sampler:
            self._noted.note(indices)
            yield indices

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._batch_sampler, name)


def _draws(loader: Any) -> bool:
    """True if fastdata would draw for the samples of a loader, instead of the user's code."""
    route = loader._route()
    plans = [*route.fused.values(), *([route.plan] if route.plan is not None else [])]
    return route.in_threads or any(plan.draws or plan.unfused for plan in plans)


def _within(outcomes: Iterable[Any], most: int) -> Iterator[Any]:
    """The first outcomes: at most so many, and about 1 GiB."""
    bytes_ = 0
    for outcome in islice(outcomes, most):
        yield outcome
        bytes_ += size_of(outcome)
        if bytes_ > _MOST_BYTES:
            return
