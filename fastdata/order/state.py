"""State of a loader, as plain values that are checked when they are loaded."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Any

from fastdata.errors import StateMismatch
from fastdata.order.random_states import GlobalStates

__all__ = ["STATE_VERSION", "LoaderState"]

STATE_VERSION = 2
_OF_TORCH = ("worker_seed", "order_seed", "sampler_epoch")  # which seed torch's generators


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """Position of a loader in its epochs, as plain JSON-able values.

    Attributes:
        version: format version of this state.
        dataset_size: samples in the dataset, or -1 where it has no length.
        sampler: the sampler and what decides its order, in words; see `describe_sampler`.
        epoch: the epoch under way.
        delivered: samples of that epoch handed to the caller (skipped bad ones included).
        batches: batches of that epoch handed to the caller.
        ahead: with in_order=False in worker processes, the batches that were handed over before earlier ones: samples
            from `delivered` to each, its samples, and the CRC-32 of their indices; None with in_order=True.
        checksum: CRC-32 of the delivered indices, for samplers whose order cannot be computed; compared when they are
            run again.
        view_seed: seed of the random views of that epoch.
        worker_seed: base seed of the random numbers of torch's worker processes.
        order_seed: seed of the epoch's order: `seed`, or for a RandomSampler a number drawn from torch's generator.
        sampler_random: states of the global generators when the epoch's order was drawn, for other samplers.
        sampler_own: states at that time of the generators that the sampler has as attributes.
        sampler_epoch: the `epoch` of the sampler, or of one inside it, that has `set_epoch` (DistributedSampler).
        dataset_random: states of the global generators now, in the middle of an epoch: they draw the next epochs, and
            samples that are made in the training process; None where `seed` decides all of that.
        global_random: the same before an epoch has begun.
        dataset_state: the dataset's own state, or its iterator's, where it has one.
        dataset_first: the same object's state after the first batch, which shows if a dataset starts anew.
        worker_states: states of torch's worker processes; see `fastdata.dataloader.worker_states`.
        workers: worker processes, for iterable datasets, whose order depends on them.
        ranks: number of ranks of an EpochSampler; `delivered` counts one rank's samples since the last change of it.
        history: (ranks, samples delivered by each) before that.
    """

    version: int = STATE_VERSION
    dataset_size: int = -1
    sampler: str
    epoch: int = 0
    delivered: int = 0
    batches: int = 0
    ahead: list[list[int]] | None = None
    checksum: int | None = None
    view_seed: int | None = None
    worker_seed: int | None = None
    order_seed: int | None = None
    sampler_random: list[Any] | None = None
    sampler_own: list[Any] | None = None
    sampler_epoch: int | None = None
    dataset_random: list[Any] | None = None
    global_random: list[Any] | None = None
    dataset_state: Any = None
    dataset_first: Any = None
    worker_states: dict[str, Any] | None = None
    workers: int | None = None
    ranks: int | None = None
    history: list[list[int]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that `json.dumps` accepts (if the dataset's own state does)."""
        return {field.name: copy.deepcopy(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> LoaderState:
        """Checks and reads a dictionary written by `to_dict`.

        Raises:
            StateMismatch: it is no such dictionary, of another version, or holds values that cannot be.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(state, dict) or not {"version", "dataset_size", "sampler"} <= state.keys():
            given = f"a dictionary with {list(state)[:5]}" if isinstance(state, dict) else type(state).__name__
            raise StateMismatch(f"not a loader state but {given}; pass what the loader's state_dict() returned")
        if state["version"] != STATE_VERSION:
            raise StateMismatch(
                f"state has format version {state['version']!r}, this fastdata reads {STATE_VERSION}; "
                "resume with the version of fastdata that saved it, or start the epoch from the beginning"
            )
        unknown = state.keys() - names
        if foreign := sorted(name for name in unknown if not name.startswith("_")):  # accelerate adds one with _
            raise StateMismatch(f"state has unknown entries {foreign}")
        loaded = cls(**{name: value for name, value in state.items() if name in names})
        loaded._check_values()
        return loaded

    def _check_values(self) -> None:
        """Raises StateMismatch unless every entry has its type, and counts are none below zero."""
        for name in ("dataset_size", "epoch", "delivered", "batches"):
            least = -1 if name == "dataset_size" else 0
            if not _is_count(getattr(self, name), least):
                raise StateMismatch(
                    f"state has {name} = {getattr(self, name)!r}; expected an integer of at least {least}"
                )
        for name in ("checksum", "view_seed", "worker_seed", "order_seed", "sampler_epoch", "workers", "ranks"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise StateMismatch(f"state has {name} = {value!r}; expected an integer or None")
            if name in _OF_TORCH and value is not None and not -(2**63) <= value < 2**64:
                raise StateMismatch(f"state has {name} = {value}; expected at most 64 bits")
        for name in ("ahead", "sampler_random", "sampler_own", "dataset_random", "global_random", "history"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, list | tuple):
                raise StateMismatch(f"state has {name} = {value!r}; expected a list or None")
        for states in (self.sampler_random, self.dataset_random, self.global_random):
            if states is not None:
                GlobalStates.from_json(states)
        for each in self.ahead or []:
            if not isinstance(each, list | tuple) or len(each) != 3 or not all(_is_count(count, 0) for count in each):
                raise StateMismatch(f"state has {each!r:.100} in ahead; expected two counts of samples and a checksum")
        if not isinstance(self.sampler, str):
            raise StateMismatch(f"state has sampler = {self.sampler!r}; expected a string")
        if self.batches > self.delivered and self.dataset_size >= 0 and not self.history:
            raise StateMismatch(
                f"state has {self.batches} batches of {self.delivered} samples, which is impossible; was it edited?"
            )

    def check_belongs_to(self, other: LoaderState) -> None:
        """Raises StateMismatch unless both come from the same dataset and kind of sampler."""
        for name in ("dataset_size", "sampler"):
            saved, here = getattr(self, name), getattr(other, name)
            if saved != here:
                raise StateMismatch(
                    f"state was saved with {name} = {saved!r}, this loader has {name} = {here!r}; "
                    "create the loader as it was created when the state was saved"
                )


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63
