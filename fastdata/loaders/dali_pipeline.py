"""A pipeline of NVIDIA DALI's for whole batches: the window, antialiased resize, crop, flip and effects.

DALI draws nothing here: windows, sizes, flips and effects come from the feeds, through an external source.  A damaged
image stops a whole pipeline and is not named; the batches in flight behind it are given to a new pipeline.

Ownership of memory: an output is passed on by DLPack without a copy; the executor counts references, so memory of an
output that is still referenced is not written again.  On the GPU DALI may give freed memory to its own stream while
kernels of the consumer's stream still read it.  So an output is also kept here until an event has passed that was
recorded on the consumer's stream when the next batch was asked for; copy an output to keep it longer.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from fastdata.errors import BackendError
from fastdata.loaders.backend import Fidelity
from fastdata.loaders.batch_decoder import BatchFeed, BatchRequest, Decoded
from fastdata.loaders.dali_effects import DaliEffects
from fastdata.loaders.dali_options import DaliOptions
from fastdata.system import cuda
from fastdata.views.resampling import Interpolation

__all__ = ["FILTERS", "Built", "DaliPipeline", "build_pipeline", "columns_of"]

_LARGEST_UNKNOWN_BATCH = 4096  # for batch samplers that do not say; DALI needs a bound
_MOST_RETIRED = 3  # outputs that the consumer's stream may still read
# Parts of DALI's messages when the GPU's memory does not suffice, in small letters.
_OUT_OF_MEMORY = ("out of memory", "memory allocation", "can't allocate", "cuda allocation failed")
# Pillow's filters that DALI has, too; images with other filters are decoded by Pillow.
FILTERS = {
    Interpolation.NEAREST: "INTERP_NN",
    Interpolation.BILINEAR: "INTERP_LINEAR",
    Interpolation.BICUBIC: "INTERP_CUBIC",
    Interpolation.LANCZOS: "INTERP_LANCZOS3",
}
_BUILT: weakref.WeakSet[Any] = weakref.WeakSet()  # pipelines of this process, or of the one that it was forked from
_INHERITED: list[Any] = []  # pipelines that are never taken down


def _keep_inherited() -> None:
    """Keeps a forked child from taking down the parent's pipelines: joining missing threads may end the process.

    Without this, garbage collection in the child could take down pipelines that the parent had not collected yet.
    """
    _INHERITED.extend(_BUILT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)


def columns_of(feed: BatchFeed, request: BatchRequest) -> tuple[Any, ...]:
    """Returns the inputs of the pipeline, in its order."""
    views = feed.views
    windows, crops = (np.asarray(boxes, np.int32) for boxes in (views.window_px, views.crop_px))
    sizes = np.ascontiguousarray(views.resize_px[:, ::-1], np.float32)
    columns: list[Any] = [list(feed.encoded), windows[:, :2].copy(), windows[:, 2:] - windows[:, :2], sizes]
    if request.crops:
        columns += [crops[:, :2].copy(), crops[:, 2:] - crops[:, :2]]
    if request.flips:
        columns += [views.flips[:, number].astype(np.int32) for number in (0, 1)]
    if isinstance(request.effects, DaliEffects):
        columns += request.effects.columns(feed.effects, len(feed.encoded))
    return tuple(columns)


class _Flow:
    """The batches on their way into a pipeline and through it; the pipeline refers to this, never to its owner."""

    def __init__(self, feeds: Iterator[BatchFeed], request: BatchRequest) -> None:
        self.feeds, self.request = feeds, request
        self.again: deque[BatchFeed] = deque()  # were fed to a pipeline that failed
        self.in_flight: deque[BatchFeed] = deque()
        self.columns: deque[tuple[Any, ...]] = deque()  # inputs of the batches in flight
        self.end: BaseException | None = None  # why `feeds` ended

    def next_columns(self) -> tuple[Any, ...]:
        """Returns the next batch's inputs; DALI's external source, called in `run`, some batches ahead."""
        if self.again:
            feed = self.again.popleft()
        else:
            if self.end is not None:
                raise StopIteration
            try:
                feed = next(self.feeds)
            except BaseException as error:  # noqa: BLE001 - raised at its place, after the batches before it
                self.end = error
                raise StopIteration from None
        columns = columns_of(feed, self.request)
        self.in_flight.append(feed)
        self.columns.append(columns)  # on the CPU the pipeline does not copy them
        return columns

    def close(self) -> None:
        """Drops all batches: a pipeline that was taken down refers to this until the next garbage collection."""
        self.feeds, self.end = iter(()), self.end or StopIteration()
        self.again.clear()
        self.in_flight.clear()
        self.columns.clear()

    def arrived(self) -> BatchFeed:
        """Removes and returns the oldest batch in flight, which has been decoded."""
        self.columns.popleft()
        return self.in_flight.popleft()

    def restart(self) -> BatchFeed:
        """Removes and returns the batch that failed; the batches after it will be fed again."""
        feed = self.in_flight.popleft()
        self.columns.clear()
        self.again.extendleft(reversed(self.in_flight))
        self.in_flight.clear()
        return feed


class Built:
    """DALI's own pipeline, which outlives an epoch.

    Attributes:
        request: what it was built for.
        pid: number of the process that built it.
        flow: where its batches come from; None between two epochs.
    """

    def __init__(self, flow: _Flow, request: BatchRequest, fidelity: Fidelity) -> None:
        self.request, self.pid = request, os.getpid()
        self.flow: _Flow | None = flow
        prefetch = _options(request).prefetch
        self._pipeline = build_pipeline(request, self._next_columns, prefetch=prefetch, fidelity=fidelity)

    def run(self, stream: Any) -> Any:
        """Returns the images of the next batch; raises StopIteration at the end, RuntimeError if DALI gives up."""
        (output,) = self._pipeline.run(stream)
        return output

    def rest(self) -> None:
        """Makes it ready for another epoch, after StopIteration."""
        self.flow = None
        self._pipeline.reset()

    def shut_down(self, getpid: Callable[[], int] = os.getpid) -> None:  # `os` may be gone when the interpreter ends
        """Ends its threads; a forked child has none of them."""
        self.flow = None
        if getpid() == self.pid:
            # As its __del__ does; it is in a cycle, so its threads would live until garbage collection.
            self._pipeline._shutdown()

    def _next_columns(self) -> tuple[Any, ...]:
        if self.flow is None:
            raise StopIteration
        return self.flow.next_columns()


class DaliPipeline:
    """Decodes batches in order, several ahead.

    Args:
        feeds: yields the batches; may raise, and its error is raised at its place in the order.
        request: the requirements on the pipeline.
        kept: pipelines that earlier epochs have left, at most one; it is taken if it suits the request, and one is
            left here at the end.  Building a pipeline takes longer than many batches.
        fidelity: "exact" upsamples chroma as Pillow does, on a GPU, too.
    """

    def __init__(
        self,
        feeds: Iterator[BatchFeed],
        request: BatchRequest,
        *,
        kept: list[Built] | None = None,
        fidelity: Fidelity = "exact",
    ) -> None:
        self._flow, self._request, self._fidelity = _Flow(feeds, request), request, fidelity
        self._kept = kept
        self._built: Built | None = None
        self._latest: Any = None
        self._retired: deque[tuple[Any, cuda.Event]] = deque()

    def __iter__(self) -> Iterator[tuple[BatchFeed, Decoded]]:
        return self

    def __next__(self) -> tuple[BatchFeed, Decoded]:
        """Returns the next batch and its images, uint8 (N, H, W, 3), or the error with which DALI gave up on them.

        Raises:
            BackendError: the GPU has not enough memory, or the pipeline cannot be built or run.
        """
        self._retire()
        try:
            if self._built is None:
                self._built = self._taken() or Built(self._flow, self._request, self._fidelity)
            output = self._built.run(self._stream())
        except StopIteration:
            self._leave()
            end, self._flow.end = self._flow.end, StopIteration()
            if end is None or isinstance(end, StopIteration):
                raise
            raise end  # noqa: B904 - it has a cause of its own
        except RuntimeError as error:
            self._shut_down()
            if not self._flow.in_flight:  # it was not an image
                raise BackendError(f"DALI's pipeline could not be built or run: {error}") from error
            failed = self._flow.restart()
            _check_memory(error, failed, self._request)
            return failed, error
        self._latest = output.as_tensor()
        return self._flow.arrived(), torch.utils.dlpack.from_dlpack(self._latest)

    def close(self) -> None:
        """Shuts the pipeline down; in a forked child only drops it.  May be called again."""
        self._retire()
        for _, event in self._retired:  # kernels may still read memory that DALI would reuse
            event.synchronize()
        self._retired.clear()
        self._shut_down()
        self._latest = None
        self._flow.close()

    __del__ = close

    def _taken(self) -> Built | None:
        """Takes the pipeline that an earlier epoch has left, if it suits; another one is shut down."""
        try:
            built = self._kept.pop() if self._kept is not None else None
        except IndexError:
            built = None
        if built is None:
            return None
        if built.request == self._request and built.pid == os.getpid():
            built.flow = self._flow
            return built
        built.shut_down()
        return None

    def _leave(self) -> None:
        """Leaves the pipeline, which has nothing in flight, to the next epoch."""
        built, self._built = self._built, None
        if built is not None and self._kept is not None and not self._kept:
            built.rest()
            self._kept.append(built)
        elif built is not None:
            built.shut_down()

    def _shut_down(self) -> None:
        built, self._built = self._built, None
        if built is not None:
            built.shut_down()

    def _stream(self) -> Any:
        """Returns the consumer's stream, on which outputs are ordered without waiting on the host; None on the CPU."""
        index = self._request.device_index
        return None if index is None else cuda.current_stream(index)

    def _retire(self) -> None:
        """Keeps the latest output until the consumer's stream has passed this point; see the module docstring."""
        if self._request.device_index is None:
            return
        while self._retired and self._retired[0][1].query():  # type: ignore[no-untyped-call]
            self._retired.popleft()
        if len(self._retired) > _MOST_RETIRED:  # the host has run ahead; DALI would take new memory for each batch
            self._retired.popleft()[1].synchronize()
        if self._latest is not None:
            event = cuda.recorded_event(cuda.current_stream(self._request.device_index), blocking=True)
            self._retired.append((self._latest, event))
            self._latest = None


def _options(request: BatchRequest) -> DaliOptions:
    return request.options if request.options is not None else DaliOptions()


def build_pipeline(
    request: BatchRequest, source: Callable[[], tuple[Any, ...]], *, prefetch: int, fidelity: Fidelity
) -> Any:
    """Builds a pipeline from the inputs of `columns_of` to uint8 images (H, W, 3), with the request's effects done."""
    from nvidia.dali import fn, pipeline_def, types

    on_gpu = request.device_index is not None
    effects = request.effects if isinstance(request.effects, DaliEffects) else None

    @pipeline_def(  # type: ignore[untyped-decorator, unused-ignore]
        batch_size=request.largest_batch or _LARGEST_UNKNOWN_BATCH,
        num_threads=_options(request).threads or request.threads,
        device_id=request.device_index,
        prefetch_queue_depth=prefetch,
        enable_conditionals=effects is not None,
    )
    def define() -> Any:
        ndim = [1, 1, 1, 1, *((1, 1) if request.crops else ()), *((0, 0) if request.flips else ())]
        dtype = [types.UINT8, types.INT32, types.INT32, types.FLOAT, *(types.INT32,) * (len(ndim) - 4)]
        for _, numbers in effects.inputs if effects is not None else ():
            ndim.append(1 if numbers else 0)
            dtype.append(types.FLOAT if numbers else types.INT32)
        encoded, anchor, shape, size, *rest = fn.external_source(
            source=source, num_outputs=len(ndim), dtype=dtype, ndim=ndim, no_copy=not on_gpu
        )
        window = fn.decoders.image_slice(
            encoded,
            anchor,
            shape,
            device="mixed" if on_gpu else "cpu",
            axis_names="WH",
            normalized_anchor=False,
            normalized_shape=False,
            output_type=types.RGB,
            adjust_orientation=False,
            jpeg_fancy_upsampling=fidelity == "exact",  # the CPU's decoder always does it
            hw_decoder_load=_options(request).hw_decoder_load if on_gpu else None,
        )
        filter_ = getattr(types, FILTERS[request.interpolation])
        pixels = fn.resize(window, size=size, interp_type=filter_, antialias=True)
        if request.crops:  # outside of the image is black
            pixels = fn.slice(
                pixels, rest.pop(0), rest.pop(0), axis_names="WH", out_of_bounds_policy="pad", fill_values=0
            )
        if request.flips:
            pixels = fn.flip(pixels, horizontal=rest.pop(0), vertical=rest.pop(0))
        return effects.define(pixels, rest) if effects is not None else pixels

    pipeline = define()
    pipeline.build()
    _BUILT.add(pipeline)
    return pipeline


def _check_memory(error: RuntimeError, feed: BatchFeed, request: BatchRequest) -> None:
    """Raises BackendError if the GPU ran out of memory, which decoding the images one by one would not solve."""
    text = str(error).lower()
    if request.device_index is None or not any(sign in text for sign in _OUT_OF_MEMORY):
        return
    raise BackendError(
        f"DALI ran out of memory on cuda:{request.device_index} while decoding {feed.name} "
        f"({len(feed.encoded)} images); use a smaller batch_size, DaliOptions(prefetch=1), a lower "
        "DaliOptions(hw_decoder_load=...), or decode_device='cpu'; each loader that decodes there keeps its memory"
    ) from error
