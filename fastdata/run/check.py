"""Compares the batches of a loader with those that torch's DataLoader makes of the same dataset and arguments."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.utils.data

from fastdata.dataloader.arguments import OWN_ARGUMENTS
from fastdata.dataloader.loader import DataLoader, StatelessDataLoader
from fastdata.dataloader.verdict import asked_workers
from fastdata.errors import OptionError
from fastdata.order.random_states import GlobalStates
from fastdata.pipeline.batched_getitem import FetchesMany
from fastdata.run.differences import difference, size_of
from fastdata.system.switches import check_compares

__all__ = ["Comparison", "check"]

_MOST_BYTES = 1 << 30  # of torch's batches, which are kept until ours are made
_BOTH_HAVE = ("collate_fn", "worker_init_fn", "multiprocessing_context", "prefetch_factor", "timeout", "in_order")
# Of fastdata's arguments those that do not ask for something else than torch gives.
_LEFT_OUT = ("device", "seed", "on_error", "progress", "draws", "memory_format")
_KEPT = tuple(name for name in OWN_ARGUMENTS if name not in _LEFT_OUT)


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
        if not self.batches:
            return f"cannot be compared: {self.dataset}: the loader gives no batch"
        if self.equal:
            return (
                f"equal: {self.dataset}, {self.batches} {'batch' if self.batches == 1 else 'batches'}{of}{self.draws}"
            )
        if not self.repeatable:
            return (
                f"cannot be compared: {self.dataset}: torch's own DataLoader gives other batches the second time "
                f"({self.difference}): its code draws from a generator of its own, or remembers earlier samples"
            )
        return f"different: {self.dataset}, {self.difference}"


def check(loader: torch.utils.data.DataLoader[Any], *, batches: int = 50) -> Comparison:
    """Makes the same batches with torch's DataLoader and with fastdata's, and compares them.

    Values, types, dtypes, shapes, strides, their order and exceptions are compared.  Both begin from the same states of
    the global random generators, which are put back afterwards, and with copies of the sampler; the loader itself is
    not iterated.  The dataset is the loader's own, so what it counts or remembers moves on.

    Where fastdata draws for random transforms, values are compared under `draws="torch"`; the loader's own batches,
    whose views are others, are compared in all but the values of what has two dimensions or more in a batch.

    Args:
        loader: torch's loader or ours.  Its `device`, `memory_format`, `on_error`, `persistent_workers`, `pin_memory`,
            `progress` and `seed` are left out, since they ask for something else than torch gives.
        batches: number of batches to compare, from the first one of an epoch; fewer if they take more than 1 GiB.

    Raises:
        OptionError: `loader` is no DataLoader, `batches` is below 1, or the sampler cannot be copied: an iterator, for
            example, which can be read only once; or FASTDATA=0 is set.  Nothing has been read then.

    Example:
        >>> print(fastdata.check(loader))
        equal: ImageFolder, 50 batches of 64, training draws included
    """
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise OptionError(f"check compares a DataLoader, not {type(loader).__name__}")
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
        raise OptionError(f"batches={batches!r}; use an integer of at least 1")
    check_compares("check")
    return _Check(loader, batches).compared()


class _Check:
    """The loaders that are compared, and what they begin from."""

    def __init__(self, loader: Any, batches: int) -> None:
        self._loader, self._most = loader, batches
        self._is_ours = isinstance(loader, StatelessDataLoader)
        self._before = GlobalStates.now()
        self._indices: list[Any] = []  # of torch's batches
        self._order()  # which may be refused

    def compared(self) -> Comparison:
        """Makes the batches and compares them."""
        try:
            return self._compared()
        finally:
            self._before.put_back()

    def _compared(self) -> Comparison:
        torchs, ended = self._torchs_batches()
        ours = self._ours()
        draws = _draws(ours)
        exact = self._ours(draws="torch", augment_on="host") if draws else ours
        find = partial(self._first_difference, torchs, ended)
        found = find(exact, values=True)
        told, repeatable = "", True
        if found is not None:
            repeatable = find(self._torchs(), values=True) is None
        elif draws:
            told = ", training draws included"
            if getattr(self._loader, "draws", "sample") != "torch":
                told += " (draws='torch'; by itself the loader draws others)"
            found = find(ours, values=False)
            found = found and f"{found} (by its own draws; equal under draws='torch')"
        return Comparison(
            dataset=type(self._loader.dataset).__name__,
            batches=len(torchs),
            batch_size=getattr(self._loader.batch_sampler, "batch_size", None),
            difference=found,
            repeatable=repeatable,
            draws=told,
        )

    def _torchs_batches(self) -> tuple[list[Any], bool]:
        """The batches that are compared with, or their errors; True if there are no more."""
        found: list[Any] = []
        bytes_ = 0
        outcomes = self._outcomes(self._torchs())
        try:
            for outcome in outcomes:
                if len(found) == self._most or bytes_ > _MOST_BYTES:
                    return found, False
                found.append(outcome)
                bytes_ += size_of(outcome)
            return found, True
        finally:
            outcomes.close()

    def _first_difference(self, torchs: list[Any], ended: bool, loader: Any, *, values: bool) -> str | None:
        """The first difference between torch's outcomes and those of another loader, in words; None for none."""
        number = -1
        for number, outcome in enumerate(islice(self._outcomes(loader), len(torchs) + ended)):
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

    def _outcomes(self, loader: Any) -> Generator[Any, None, None]:
        """The batches of a loader, and the errors in their places, from the states that all begin with."""
        self._before.put_back()
        is_torchs = not isinstance(loader, StatelessDataLoader)
        iterator = None
        try:
            with _without_our_batch_form(loader.dataset) if is_torchs else nullcontext():
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

    def _order(self) -> dict[str, Any]:
        """The arguments that decide which samples come, as copies: reading them leaves the loader's own as they are."""
        loader = self._loader
        found = {"generator": loader.generator}
        if not isinstance(loader.dataset, torch.utils.data.IterableDataset):
            found |= {"batch_sampler": loader.batch_sampler, "sampler": loader.sampler}
        try:
            found = copy.deepcopy(found, {id(loader.dataset): loader.dataset})
        except Exception as error:
            raise OptionError(
                f"the loader's sampler cannot be copied, and reading it would change the loader: {error}; give it a "
                "sampler that can be iterated more than once"
            ) from error
        if found.get("batch_sampler") is not None:
            del found["sampler"]  # inside of it
        else:
            found |= {"batch_size": loader.batch_size}
            found |= {"drop_last": loader.drop_last} if loader.batch_size is not None else {}
            found.pop("batch_sampler", None)
        return found

    def _torchs(self) -> Any:
        torchs = next(each for each in StatelessDataLoader.__mro__[1:] if each.__name__ == "DataLoader")
        arguments = self._arguments()
        if "batch_sampler" in arguments:
            self._indices = []
            arguments["batch_sampler"] = _Noting(arguments["batch_sampler"], self._indices)
        return torchs(self._loader.dataset, **arguments)

    def _ours(self, **changes: Any) -> Any:
        own = {name: getattr(self._loader, name) for name in _KEPT} if self._is_ours else {}
        arguments = self._arguments()
        if self._is_ours:
            arguments["num_workers"] = asked_workers(self._loader)
            own["draws"] = self._loader.draws
        return DataLoader(self._loader.dataset, **{**arguments, **own, **changes})

    def _arguments(self) -> dict[str, Any]:
        loader = self._loader
        arguments = {name: getattr(loader, name) for name in _BOTH_HAVE} | self._order()
        arguments["num_workers"] = int(loader.num_workers)
        if loader.num_workers == 0:
            arguments.update(prefetch_factor=None, multiprocessing_context=None, timeout=0)
        return arguments


class _Noting:
    """A batch sampler whose index batches are noted."""

    def __init__(self, batch_sampler: Any, noted: list[Any]) -> None:
        self._batch_sampler, self._noted = batch_sampler, noted

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        for indices in self._batch_sampler:
            self._noted.append(indices)
            yield indices

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._batch_sampler, name)


def _draws(loader: Any) -> bool:
    """True if fastdata would draw for the samples of a loader, instead of the user's code."""
    route = loader._route()
    return any(plan.draws for plan in (*route.fused.values(), *([route.plan] if route.plan is not None else [])))


@contextmanager
def _without_our_batch_form(dataset: Any) -> Iterator[None]:
    """Hides the `__getitems__` that fastdata's datasets have for torch: it draws by (seed, epoch, sample), too."""
    while type(dataset) is torch.utils.data.Subset:
        dataset = dataset.dataset
    if not isinstance(dataset, FetchesMany):
        yield
        return
    vars(dataset)["__getitems__"] = None  # torch then asks for one sample after the other
    try:
        yield
    finally:
        del vars(dataset)["__getitems__"]
