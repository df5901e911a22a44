"""Samples whose images are files at URLs, read by threads and given in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from fastdata.errors import NotInStore
from fastdata.shards.conversion.samples import Streamed
from fastdata.shards.format import NO_LABEL
from fastdata.shards.records import Ref
from fastdata.shards.remote_files import RemoteFiles
from fastdata.system.ordered_map import in_order

__all__ = ["streamed"]

_THREADS, _AHEAD = 16, 4  # and images that each of them may be ahead


def streamed(refs: Sequence[Ref]) -> Callable[[], Iterator[Streamed]]:
    """The stream of a split: one sample for each of these, whose `path` is a URL and whose parts are at hand.

    An image that is not in the store is a sample with a problem.
    """

    def stream() -> Iterator[Streamed]:
        store = RemoteFiles()
        return in_order(partial(_read, store), refs, threads=_THREADS, name="fastdata-read", ahead=_AHEAD)

    return stream


def _read(store: RemoteFiles, ref: Ref) -> Streamed:
    missing = next((part for part in ref.parts if part.data is None), None)
    problem = ref.problem or (f"{missing.path} has no field {missing.extension!r}" if missing is not None else "")
    if not problem and "::" in ref.path:
        problem = f"{ref.path} cannot be read: fsspec takes :: for other stores"
    if not problem:
        try:
            parts = tuple((part.extension, part.data or b"") for part in ref.parts)
            return Streamed(ref.key, store.read(ref.path), ref.label, ref.source_path, parts, where=ref.path)
        except NotInStore as error:
            problem = f"{ref.path} is gone: {error}"
    return Streamed(ref.key, b"", NO_LABEL, problem=problem)
