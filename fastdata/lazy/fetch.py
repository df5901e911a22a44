"""Makes the samples of one batch with the dataset's own code, as torch's worker processes and torch's loop do.

A batch is made with its images left encoded.  If something of an image then turns out to be damaged, or its file has
changed, the batch is made again by the same fetcher, so in the same process, from the same random states, but with
every image opened by Pillow at once: the error is raised inside the user's own code, which may handle it.  Only an
error that escapes that code is raised by the loader.
"""

from __future__ import annotations

import itertools
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import Subset, get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from fastdata.device.prefetch import map_tensors
from fastdata.errors import DecodeError, FastdataError, ViewError, in_words
from fastdata.lazy.batch_messages import MadeAgain, MakeAgain, ReportedBatch, SampleOrder, UnfinishedBatch
from fastdata.lazy.encoded_source import EncodedSource
from fastdata.lazy.fill import decode_source
from fastdata.lazy.gains import Gains
from fastdata.lazy.image_errors import concerns_an_image, counts_as_image_error
from fastdata.lazy.pending_tensor import PendingImage, is_pending, real, stacks_pending, stands_in
from fastdata.lazy.sample_context import Notes, context, still_pending
from fastdata.lazy.undecoded import Undecoded, UndecodedBatch
from fastdata.loaders.fallback import asking_pillow
from fastdata.order.random_states import GlobalStates
from fastdata.pipeline.batched_getitem import FetchesMany
from fastdata.pipeline.config import OnError
from fastdata.pipeline.substitutes import none_decoded
from fastdata.sources.samples import users_dataset
from fastdata.views.draw import ImageTooSmall
from fastdata.views.philox import Key
from fastdata.views.view import View

__all__ = ["REPORTED", "SampleFetcher"]

REPORTED = 3  # batches per fetcher that are reported although nothing in them is decoded natively
_STATES_KEPT = 64  # batches whose random states are kept until they are completed


class SampleFetcher(_MapDatasetFetcher):
    """torch's fetcher for map-style datasets, which also tracks the current sample and reports pending images.

    Args:
        dataset: the dataset, or its copy with fused transforms.
        auto_collation: True for batches, False for single samples.
        collate_fn: merges samples.
        drop_last: torch's argument of that name.
        on_error: treatment of samples whose image cannot be opened or decoded.
        for_others: leaving images encoded gained nothing in an earlier epoch.
    """

    def __init__(
        self,
        dataset: Any,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
        *,
        on_error: OnError = "raise",
        for_others: bool = False,
    ) -> None:
        super().__init__(dataset, auto_collation, stacks_pending(collate_fn), drop_last)
        self._on_error = on_error
        self._fetched, self._defers, self._fuses_draws = 0, False, True
        self._gains = Gains(for_others=for_others)
        self._numbers = itertools.count()  # for batches that come without a SampleOrder
        self._states: OrderedDict[int, GlobalStates] = OrderedDict()  # before recent batches, by their numbers

    def fetch(self, possibly_batched_index: Any) -> Any:
        """Returns the collated batch, or an UnfinishedBatch if images are pending.

        Given a `MakeAgain` instead of indices, it returns a MadeAgain.
        """
        given = possibly_batched_index
        if isinstance(given, MakeAgain):
            return self._made_again(given)
        if not isinstance(given, SampleOrder):
            given = SampleOrder(next(self._numbers), given if self.auto_collation else [given])
        if self._is_for_others(given):
            return self._made_by_others(given)
        saves_states = self._defers or self._fetched < REPORTED
        # A copy of three generators' states per batch; not made any more if the first batches decoded nothing natively.
        before = GlobalStates.now() if saves_states else None
        notes, info = Notes(), get_worker_info()
        worker = None if info is None else info.id
        try:
            with context.noting(notes):
                batch = self._batch_of(given, before)
            if context.has_left_some:
                _leave_to_the_loader(batch, notes.kept)
            if worker is None:  # others are pickled, as what they should be
                batch = _with_real_tensors(batch)
        except Exception as error:
            if not (self._is_handled(error) and (notes.natively or self._on_error != "raise")):
                raise
            self._keep(given, before)
            if self._on_error != "replace":
                return self._made_again(MakeAgain(given), in_turn=True)
            return UnfinishedBatch(None, given, notes.counts(len(given.indices)), worker)
        self._fetched += 1
        self._defers |= notes.natively
        if notes.left:
            self._keep(given, before)
            return UnfinishedBatch(batch, given, notes.counts(len(given.indices)), worker)
        if self._fetched <= REPORTED and (notes.decoded or notes.opened or notes.others or notes.fused or notes.plain):
            return ReportedBatch(batch, notes.counts(len(given.indices)))
        return batch

    def _is_for_others(self, order: SampleOrder) -> bool:
        """True if nothing in a batch stays encoded or is fused, and nothing of it need be reported."""
        gains_nothing = self._fetched >= REPORTED and self._gains.leaves_all(self._fetched)
        is_plain = order.key is None and self._on_error == "raise" and not context.has_left_some
        return gains_nothing and is_plain and self.auto_collation and not _getitems_of(self.dataset)

    def _made_by_others(self, order: SampleOrder) -> Any:
        """Returns a batch as torch's fetcher would make it."""
        self._fetched += 1
        with context.having(leaves_encoded=False):
            return self.collate_fn(self._samples_of_others(order.indices))

    def _batch_of(self, order: SampleOrder, before: GlobalStates | None) -> Any:
        context.fuses_draws = self._fuses_draws
        samples = self._samples(order)
        if context.repeats_draws:
            # The user's code has set torch's generator back, to give two images of a sample the same crop: all samples
            # are made again, and from now on the original transforms draw.
            self._fuses_draws = context.fuses_draws = context.repeats_draws = False
            if before is not None:
                before.put_back()
            samples = self._samples(order)
        batch = self.collated(samples)
        del samples
        _store_what_has_pixels(still_pending(context.notes.pending))
        return batch

    def _keep(self, order: SampleOrder, before: GlobalStates | None) -> None:
        """Keeps the random states from before a batch was made, in case it is made again."""
        if before is not None:
            self._states[order.number] = before
            while len(self._states) > _STATES_KEPT:
                self._states.popitem(last=False)

    def collated(self, samples: list[Any]) -> Any:
        """Collates samples to a batch with collate_fn."""
        return self.collate_fn(samples if self.auto_collation else samples[0])

    def _samples(self, order: SampleOrder) -> list[Any]:
        getitems = _getitems_of(self.dataset) if self.auto_collation else None
        if getitems:
            wanted = list(order.samples())
            context.note_batch(wanted)
            index, occurrence = wanted[0] if wanted else (None, 0)
            with context.making(index, occurrence, order.key, samples=max(1, len(wanted))):
                return getitems(order.indices)  # type: ignore[no-any-return]
        wanted = order.samples()
        context.note_batch(wanted)
        samples: list[Any] = []
        opens, is_plain = context.opens_encoded, order.key is None
        with context.having(leaves_encoded=opens, is_for_others=False, modes_for_pillow=frozenset()):
            for index, occurrence in wanted:
                if opens:
                    self._gains.leave(self._fetched, is_first=not samples)
                    if context.is_for_others and is_plain:  # so are all that follow
                        return samples + self._samples_of_others(each for each, _ in wanted[len(samples) :])
                samples.append(self.sample(index, occurrence, order.key))
        return samples

    def sample(self, index: Any, occurrence: int = 0, key: Key | None = None) -> Any:
        """Returns one sample of the dataset."""
        try:
            with context.making(index, occurrence, key):
                return self._sample_of(index)
        except Exception as error:
            self._add_note(error, index)
            raise

    def _samples_of_others(self, indices: Iterable[Any]) -> list[Any]:
        """Samples in which no image stays encoded and no transform is fused: they are made as torch makes them."""
        index = None
        try:
            return [self.dataset[index := each] for each in indices]
        except Exception as error:
            self._add_note(error, index)
            raise

    def _add_note(self, error: Exception, index: Any) -> None:
        if counts_as_image_error(error) and hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(f"while making sample {index} of {type(users_dataset(self.dataset)).__name__}")

    def _sample_of(self, index: Any) -> Any:
        pending = context.notes.pending
        left = len(pending)
        sample = self.dataset[index]
        sources = context.sources or ()
        if sources or len(pending) > left:
            living = still_pending(pending[left:])
            _decode_what_is_held(living)
            _decode_what_nobody_used(living)
            _take_pixels_that_are_there(living)
            self._gains.note(sources)
        return sample

    # ---- again, without leaving images encoded

    def _made_again(self, request: MakeAgain, *, in_turn: bool = False) -> MadeAgain:
        """Makes a batch again, with every image opened by Pillow at once.

        If the random states from before its first attempt were saved, it starts from these.

        Args:
            request: the batch's samples, and substitutes for them.
            in_turn: no later batch has been made, so the next one goes on from the random states that this leaves.  If
                False in a worker process, the states from before this call are put back instead.
        """
        in_turn |= get_worker_info() is None
        now, before = GlobalStates.now(), self._states.get(request.order.number)
        context.fuses_draws = self._fuses_draws
        try:
            if before is not None:
                before.put_back()
            with asking_pillow(), context.having(notes=Notes()):
                return self._make_handling_failures(request)
        finally:
            if before is not None and not in_turn:
                now.put_back()

    def _make_handling_failures(self, request: MakeAgain) -> MadeAgain:
        """Makes samples one by one, and treats each failure as on_error says: stop, leave out, or substitute."""
        order, samples, failures, left_out = request.order, [], [], 0
        for row, (index, occurrence) in enumerate(order.samples()):
            try:
                samples.append(self.sample(index, occurrence, order.key))
            except Exception as error:
                if not self._is_handled(error):
                    raise
                failures.append(_failure(error, index))
                if self._on_error == "raise":
                    raised = error if isinstance(error, FastdataError) else None
                    return MadeAgain(None, failures, raised=raised, is_empty=True)
                if request.substitutes is not None:
                    samples.append(self._substitute(request.substitutes[row], failures[-1], occurrence, order.key))
                else:
                    left_out += 1
        batch = self.collated(samples) if samples else None
        return MadeAgain(batch, failures, left_out, is_empty=not samples)

    def _is_handled(self, error: Exception) -> bool:
        """True if it is treated as that of an image; with on_error="raise" an error of the user's code is not."""
        return counts_as_image_error(error) and (self._on_error != "raise" or concerns_an_image(error))

    def _substitute(self, candidates: list[int], failure: DecodeError, occurrence: int, key: Key | None) -> Any:
        for other in candidates:
            try:
                return self.sample(other, occurrence, key)
            except Exception as error:
                if not counts_as_image_error(error):
                    raise
                # This candidate fails, too: try the next.  Its error is reported when the sampler gives its index.
        raise failure from none_decoded()


def _decode_what_is_held(left: list[Any]) -> None:
    """Decodes the whole image of each pending tensor if user code still holds that image.

    A dataset that keeps the images it has opened will probably use them again, from the pixels that are kept here.
    """
    for tensor in left:
        if isinstance(tensor, PendingImage) and (source := tensor.undecoded.source).is_held():
            source.is_kept = True
            tensor.undecoded.decoded()


def _take_pixels_that_are_there(left: list[Any]) -> None:
    """Gives pending tensors the pixels of their views if user code has had those decoded meanwhile."""
    for tensor in left:
        if not isinstance(tensor, PendingImage):
            continue
        own = tensor.undecoded
        view, pixels = own.source.latest
        if view != own.view:
            continue
        context.repeats_views = True  # from now on the pixels of views are kept
        if pixels is not None and own.part_of is None and own.known() is None:
            own.source, own.view = EncodedSource.of_pixels(pixels), View.whole(pixels.shape[1], pixels.shape[0])


def _store_what_has_pixels(left: list[Any]) -> None:
    """Makes tensors of what would not be decoded anywhere else: images that have their pixels, and were not stacked."""
    for tensor in left:
        if isinstance(tensor, PendingImage) and tensor.undecoded.source.is_decoded:
            tensor.undecoded.decoded()


def _decode_what_nobody_used(left: list[Any]) -> None:
    """Decodes images that user code loaded or converted without using them: it may check files for damage.

    Raises:
        OSError: one is damaged; the sample is then made again, so that the code meets the error.
    """
    if not (asked := [source for source in context.sources or () if source.is_asked and not source.is_seen]):
        return
    alive = [tensor.undecoded for tensor in left if is_pending(tensor)]
    used = {id(each.source) for each in alive if isinstance(each, Undecoded)}
    used |= {id(source) for each in alive if isinstance(each, UndecodedBatch) for source in each.images.sources}
    for source in asked:
        if id(source) not in used and not source.is_held():
            decode_source(source, View.whole(source.header.width, source.header.height))


def _failure(error: Exception, index: Any) -> DecodeError:
    """Wraps an error of the user's code in a DecodeError or ViewError that can be sent to another process."""
    number = index if isinstance(index, int) else -1
    place = {"index": number, "location": _location(error, index), "backend": "pil"}
    kind = ViewError if isinstance(error, ImageTooSmall) else DecodeError
    made = kind.because(error, **place)  # type: ignore[arg-type]
    try:
        pickle.dumps(made)
    except Exception:  # noqa: BLE001 - a class of the user's that other processes cannot import
        made = DecodeError.because(OSError(in_words(error)), **place)  # type: ignore[arg-type]
    return made


def _location(error: Exception, index: Any) -> str:
    """The file that the error names, else the image opened last, else the sample's index."""
    return str(getattr(error, "filename", None) or context.opened_path() or f"sample {index}")


def _getitems_of(dataset: Any) -> Any:
    """Returns the dataset's `__getitems__`; None if the innermost dataset has none, or only ours, added for torch."""
    inner = dataset
    while type(inner) is Subset:
        inner = inner.dataset
    own = getattr(inner, "__getitems__", None)
    is_for_torch = getattr(own, "__func__", None) is FetchesMany.__getitems__
    return getattr(dataset, "__getitems__", None) if own and not is_for_torch else None


def _leave_to_the_loader(batch: Any, pending: list[Any]) -> None:
    """Marks a batch's own pending tensors for the loader to decode.

    Others are decoded now: those that are not in the batch, and those in it that an earlier one had, and a dataset has
    kept.

    Raises:
        OSError: an image that is decoded now is damaged or missing.
    """
    found: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found[id(tensor)] = tensor
        return tensor

    map_tensors(batch, note)
    for tensor in pending:
        if found.pop(id(tensor), None) is None:
            real(tensor)
            _replace_in_objects(batch)
        elif is_pending(tensor):
            tensor.undecoded.is_sent = True
    for tensor in found.values():
        real(tensor)


def _with_real_tensors(value: Any) -> Any:
    """Returns a batch with plain tensors in the place of pending ones that have been decoded."""
    found = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(stands_in(tensor))
        return tensor

    map_tensors(value, note)
    return map_tensors(value, lambda tensor: real(tensor) if stands_in(tensor) else tensor) if any(found) else value


_DEEPEST = 4


def _replace_in_objects(value: Any, depth: int = 0) -> None:
    """Replaces pending tensors by decoded ones in attributes of objects in a batch, for example of dataclasses."""
    if depth > _DEEPEST or isinstance(value, torch.Tensor):
        return
    if isinstance(value, Mapping | list | tuple):
        for each in list(value.values() if isinstance(value, Mapping) else value):
            _replace_in_objects(each, depth + 1)
    elif isinstance(attributes := getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        for name, each in list(attributes.items()):
            if (plain := _with_real_tensors(each)) is not each:
                attributes[name] = plain
            else:
                _replace_in_objects(each, depth + 1)
