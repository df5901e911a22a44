"""Samples whose images are files at URLs, read by threads and given in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from urllib.parse import urlsplit

from fastdata.errors import NotInStore, StoreError
from fastdata.shards.conversion.samples import Streamed
from fastdata.shards.format import NO_LABEL
from fastdata.shards.records import Ref
from fastdata.shards.remote_files import RemoteFiles
from fastdata.system.ordered_map import in_order

__all__ = ["streamed"]

_THREADS, _AHEAD = 16, 4  # and images that each of them may be ahead
_MOST_FAILING = 64  # one after the other; then it is rather the network


def streamed(refs: Sequence[Ref], at: str) -> Callable[[], Iterator[Streamed]]:
    """The stream of a split: one sample for each of these, whose `path` is a URL and whose parts are at hand.

    An image that is not in its store is a sample with a problem.  So is one whose server or bucket, another one than
    that of `at`, does not answer, since tables list what has been gone for years.  If that of `at` does not answer, or
    none of many in succession, StoreError is raised.

    Args:
        refs: the samples.
        at: the URL of the folder or table that lists them.
    """

    def stream() -> Iterator[Streamed]:
        failing, own = 0, "://".join(urlsplit(at)[:2])
        samples = in_order(
            partial(_read, RemoteFiles(), f"{own}/"), refs, threads=_THREADS, name="fastdata-read", ahead=_AHEAD
        )
        for sample, error in samples:
            failing = failing + 1 if error is not None else 0
            if error is not None and failing == _MOST_FAILING:
                raise error
            yield sample

    return stream


def _read(store: RemoteFiles, own: str, ref: Ref) -> tuple[Streamed, StoreError | None]:
    """A sample, and the error of a store that does not answer; the URLs of one whose errors count begin with `own`."""
    missing = next((part for part in ref.parts if part.data is None), None)
    problem = ref.problem or (f"{missing.path} has no field {missing.extension!r}" if missing is not None else "")
    if not problem and "::" in ref.path:
        problem = f"{ref.path} cannot be read: fsspec takes :: for other stores"
    silent: StoreError | None = None
    if not problem:
        try:
            parts = tuple((part.extension, part.data or b"") for part in ref.parts)
            return Streamed(ref.key, store.read(ref.path), ref.label, ref.source_path, parts, where=ref.path), None
        except NotInStore as error:
            problem = f"{ref.path} is gone: {error}"
        except StoreError as error:
            if ref.path.startswith(own):
                raise
            problem, silent = f"{ref.path} cannot be read: {error}", error
    return Streamed(ref.key, b"", NO_LABEL, problem=problem), silent
