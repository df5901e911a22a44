"""State of a loader: the next epoch, the progress of the present one, and how to resume from a saved state."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, TensorDataset

from fastdata.dataloader.record import EpochRecord
from fastdata.dataloader.worker_states import WorkerStates, all_known, has_datasets, passed_over
from fastdata.errors import StateMismatch
from fastdata.order.epoch_batches import EpochBatches, predicted_state
from fastdata.order.epoch_sampler import EpochSampler
from fastdata.order.random_states import GlobalStates
from fastdata.order.resumed import resumed_with
from fastdata.order.sampler_chain import describe_sampler, epoch_sampler, keeps_to_loader, own_generators
from fastdata.order.state import LoaderState
from fastdata.pipeline.config import OnError
from fastdata.pipeline.stats import EpochSkips, PipelineStats
from fastdata.system.stack_level import users_level
from fastdata.views.philox import Key

__all__ = ["StatefulEpochs"]


class StatefulEpochs:
    """The part of a DataLoader that counts epochs and samples; expects torch's attributes and methods beside it."""

    dataset: Any
    batch_sampler: Any
    generator: torch.Generator | None
    num_workers: int
    persistent_workers: bool
    in_order: bool
    seed: int | None
    on_error: OnError
    _stats: PipelineStats

    def _begin_counting(self) -> None:
        self._record: EpochRecord | None = None
        self._resume_from: LoaderState | None = None
        self._planned: LoaderState | None = None
        self._globals_loaded: GlobalStates | None = None  # the global generators when a state was loaded
        self._next_epoch = self._epoch_set = 0  # the latter on an EpochSampler, by this loader
        self._persistent_seed: int | None = None

    _index_sampler: Any  # torch's: the batch sampler, or where there is none the sampler

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, here and in the samplers that know epochs."""
        if self._resume_from is not None and self._resume_from.epoch != epoch:
            warnings.warn(
                f"set_epoch({epoch}) discards the loaded state, which is in epoch {self._resume_from.epoch}",
                stacklevel=users_level(),
            )
            self._resume_from = None
        if self._planned is not None and self._planned.epoch != epoch:
            self._planned = None
        self._next_epoch = epoch
        if (sampler := epoch_sampler(self._index_sampler)) is not None:
            sampler.set_epoch(epoch)
            self._epoch_set = epoch

    def state_now(self) -> dict[str, Any]:
        """Position of the latest iterator, counted in samples handed over, as a few plain, JSON-able values."""
        record = self._record
        if self._resume_from is not None:
            return self._resume_from.to_dict()
        if record is None or record.ended:
            if self._planned is None:
                self._planned = self._plan()
            state = self._planned
            if record is not None and self.persistent_workers:  # which go on as they are
                state = replace(state, worker_states=record.worker_states_then())
            if record is None or not hasattr(self.dataset, "state_dict"):
                record = None
        else:
            state = record.state()
            if self.seed is None or (record.by_torchs_code and self.num_workers == 0):
                state = replace(state, dataset_random=record.globals_then().to_json())
        if record is not None and record.stateful is not None:
            state = replace(state, dataset_state=record.dataset_state_then(), dataset_first=record.first_state)
        return state.to_dict()

    def continue_from(self, state: dict[str, Any]) -> None:
        """Makes the next iterator continue right after the sample where `state` was taken.

        Raises:
            StateMismatch: the state is of another format, dataset, sampler or seed, or its numbers cannot be.
        """
        loaded = LoaderState.from_dict(state)
        loaded.check_belongs_to(self._fresh_state())
        if self.seed is not None and loaded.view_seed not in (None, self.seed):
            raise StateMismatch(f"state was saved with seed {loaded.view_seed}, this loader has seed {self.seed}")
        self._check_within_epoch(loaded)
        if loaded.workers not in (None, self.num_workers) and loaded.batches:
            raise StateMismatch(
                f"state was saved with num_workers={loaded.workers}, this loader has {self.num_workers}; the order of "
                "an iterable dataset's batches depends on it"
            )
        if self._is_iterable() and self.num_workers > 0 and loaded.worker_states is not None:
            WorkerStates(self.num_workers, loaded.worker_states)  # raises where they cannot be
            passed = passed_over(loaded.worker_states)
            if passed != loaded.batches and not has_datasets(loaded.worker_states):
                raise StateMismatch(
                    f"state has {loaded.batches} delivered batches, of its worker processes {passed}; was it edited?"
                )
        begins_with_iter = self._is_iterable() and hasattr(self.dataset, "__next__")  # it is its own iterator
        keeps_state = loaded.dataset_state is not None and hasattr(self.dataset, "load_state_dict")
        if keeps_state and self.num_workers == 0 and not (begins_with_iter and loaded.batches):
            self.dataset.load_state_dict(copy.deepcopy(loaded.dataset_state))
        sampler = epoch_sampler(self._index_sampler)
        if isinstance(sampler, EpochSampler):
            loaded = resumed_with(loaded, sampler)
            self._epoch_set = loaded.epoch
        elif keeps_to_loader(sampler):
            sampler.set_epoch(loaded.epoch)
            self._epoch_set = loaded.epoch
        elif loaded.sampler_epoch is not None and sampler is not None:
            sampler.set_epoch(loaded.sampler_epoch)
        self._resume_from, self._next_epoch, self._planned = loaded, loaded.epoch, None
        self._globals_loaded = GlobalStates.now()
        self._iterator: Any = None
        self._persistent_seed = None  # persistent workers have drawn; new ones begin as those did

    def _check_within_epoch(self, loaded: LoaderState) -> None:
        """Raises StateMismatch if more was delivered than one epoch has; an EpochSampler's ranks may have changed."""
        sampler = self._index_sampler
        if self._is_iterable() or isinstance(epoch_sampler(sampler), EpochSampler):
            return
        inner = self._inner_sampler()
        if inner is sampler and self.batch_sampler is not None:
            return  # how many samples its batches have is not known
        try:
            size = len(inner)
        except (TypeError, NotImplementedError, AttributeError):
            return
        if loaded.delivered > size:
            raise StateMismatch(
                f"state has {loaded.delivered} delivered samples, an epoch of this loader's sampler has {size}; create "
                "the loader as it was created when the state was saved"
            )

    def batches_left(self) -> int:
        """Number of batches that the next iterator will yield: a whole epoch's, or those left by a loaded state."""
        state, batches = self._resume_from, self._index_sampler
        if state is None:
            return len(self)  # type: ignore[arg-type]
        if type(batches) is not BatchSampler or self.batch_sampler is None:
            return max(0, len(self) - state.batches - len(state.ahead or []))  # type: ignore[arg-type]
        early = sum(each[1] for each in state.ahead or [])
        left = max(0, len(batches.sampler) - state.delivered - early)  # type: ignore[arg-type]
        return left // batches.batch_size if batches.drop_last else -(-left // batches.batch_size)

    def _fresh_state(self) -> LoaderState:
        sampler = None if self._is_iterable() else self._index_sampler
        inner = epoch_sampler(sampler)
        sampler_epoch = getattr(inner, "epoch", None)
        return LoaderState(
            sampler=describe_sampler(sampler),
            dataset_size=self._dataset_size(),
            epoch=self._next_epoch,
            sampler_epoch=sampler_epoch if isinstance(sampler_epoch, int) else None,
            ranks=inner.num_replicas if isinstance(inner, EpochSampler) else None,
            workers=self.num_workers if self._is_iterable() else None,
        )

    def _dataset_size(self) -> int:
        try:
            return -1 if self._is_iterable() else len(self.dataset)
        except (TypeError, NotImplementedError):  # with a sampler of its own, a dataset need not have a length
            return -1

    def _inner_sampler(self) -> Any:
        """Sampler from which torch makes batches: the index sampler, or the sampler inside torch's own BatchSampler."""
        sampler = self._index_sampler
        return sampler.sampler if type(sampler) is BatchSampler and self.batch_sampler is not None else sampler

    def _plan(self) -> LoaderState:
        """A state before the next epoch, which this loader will keep to as well."""
        state = self._fresh_state()
        if self.seed is None or self.num_workers == 0:
            state = replace(state, global_random=GlobalStates.now().to_json())
        if self.seed is not None:
            return state
        sampler = None if self._is_iterable() else self._index_sampler
        alive = self.persistent_workers and self.num_workers > 0 and self._iterator is not None
        drawn = self._persistent_seed is None and not alive
        return predicted_state(state, sampler, self.generator, drawn=drawn, batched=self.batch_sampler is not None)

    def begin_epoch(self, *, by_torchs_code: bool = True) -> EpochRecord:
        """Begins the epoch that comes next: a loaded one where it was, else a new one.

        Args:
            by_torchs_code: torch's iterators make its batches, not decode threads.
        """
        start = self._start_of_epoch()
        if self._globals_loaded is not None and start.global_random is not None:
            GlobalStates.from_json(start.global_random).put_back_where_unchanged(self._globals_loaded)
        self._globals_loaded = None
        if self._is_iterable():
            if start.sampler_random is None:
                start = replace(start, sampler_random=GlobalStates.now().to_json())
        elif keeps_to_loader(sampler := epoch_sampler(self._index_sampler)):
            sampler.set_epoch(start.epoch)
            self._epoch_set = start.epoch
        batches = None
        in_order = self.in_order or self._is_iterable() or self.num_workers == 0 or not by_torchs_code
        if not self._is_iterable():
            batches = EpochBatches(
                self._index_sampler,
                start=start,
                order_seed=self._key(start.epoch)[0] if self.seed is not None else None,
                batched=self.batch_sampler is not None,
                draw_due=start.order_seed is not None
                and start.delivered == 0
                and start.dataset_random is None  # else it is of a moment after that draw
                and self.seed is None,
                in_order=in_order,
            )
        self._resume_from, self._planned, self._next_epoch = None, None, start.epoch + 1
        worker_seed = start.worker_seed
        if worker_seed is None and self.seed is not None:
            worker_seed = self._key(start.epoch)[1]
        skips = EpochSkips(self._stats) if self.on_error == "skip" else None
        after_break = self._record is not None and not self._record.ended
        self._record = EpochRecord(
            start,
            batches,
            worker_seed=worker_seed,
            skips=skips,
            after_break=after_break,
            by_torchs_code=by_torchs_code,
            in_order=in_order,
        )
        return self._record

    def _start_of_epoch(self) -> LoaderState:
        """The state to begin with; an epoch that somebody has set on the sampler counts, as everywhere in torch."""
        start = self._resume_from or self._planned or self._fresh_state()
        sampler = None if self._is_iterable() else epoch_sampler(self._index_sampler)
        epoch = getattr(sampler, "epoch", None)
        if not isinstance(epoch, int):
            return start
        if keeps_to_loader(sampler):
            if epoch in (self._epoch_set, start.epoch):
                return start
            self._next_epoch = epoch
        elif epoch == start.sampler_epoch:
            return start
        if start.delivered:
            warnings.warn(
                f"the sampler's set_epoch({epoch}) discards the loaded state, which is in its epoch "
                f"{start.epoch if keeps_to_loader(sampler) else start.sampler_epoch}",
                stacklevel=users_level(),
            )
        return replace(self._fresh_state(), epoch=self._next_epoch)

    def _key(self, epoch: int) -> tuple[int, int]:
        """Two words from (seed, epoch): for the order, and for torch's worker processes."""
        assert self.seed is not None
        return Key(seed=self.seed, epoch=epoch).words()

    def _draw_base_seed(self) -> int:
        """Draws torch's base seed as torch's iterator does."""
        base_seed = self._persistent_seed
        if base_seed is None:
            base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        if self.persistent_workers:
            self._persistent_seed = base_seed  # torch's persistent iterator draws it once
        return base_seed

    def _view_seed(self, batches: EpochBatches, base_seed: int) -> int:
        """The seed of the epoch's views, kept in its state."""
        saved = batches.state.view_seed
        view_seed = saved if saved is not None else self.seed if self.seed is not None else base_seed
        batches.state = replace(batches.state, view_seed=view_seed)
        return view_seed

    def _is_iterable(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    def _warn_of_other_draws(self, start: LoaderState) -> None:
        """Says so where a resumed epoch may not be what it would have been."""
        goes_on = self.persistent_workers or (self._is_iterable() and self.num_workers == 0)  # from epoch to epoch
        if start.batches == 0 and not (start.epoch > 0 and goes_on):
            return
        if isinstance(self.dataset, TensorDataset):
            return
        if not (self.in_order or self._is_iterable()) and self.num_workers > 0:
            return  # which worker draws for which batch is decided by the clock in every run
        if self.num_workers > 0 and all_known(start.worker_states, self.num_workers):
            if self._is_iterable() and start.batches and not has_datasets(start.worker_states):
                self._warn_of_own_generators()
            return
        if self._is_iterable():
            if self.num_workers > 0 and hasattr(self.dataset, "state_dict"):
                warnings.warn(
                    f"the state has not where {type(self.dataset).__name__} was in each worker process; its batches "
                    "are read again and skipped, which is exact only if they do not depend on earlier epochs; with "
                    "num_workers=0 it is always exact",
                    stacklevel=users_level(),
                )
            elif start.dataset_state is None:
                self._warn_of_own_generators()
        elif self.num_workers > 0 or start.dataset_random is None:
            warnings.warn(
                "the order continues exactly, but random numbers that the dataset draws differ from those of an "
                "uninterrupted run: the state is of another number of worker processes, or was taken when not all of "
                "them had begun the epoch",
                stacklevel=users_level(),
            )

    def _warn_of_own_generators(self) -> None:
        if own_generators(self.dataset):
            warnings.warn(
                f"{type(self.dataset).__name__} has its own random generator but no state_dict, so the skipped "
                "batches may differ from those delivered before; give it state_dict and load_state_dict",
                stacklevel=users_level(),
            )
