"""Makes the indexes of a folder's JPEGs; loaders/jpeg_index.py says what they are for and where they are kept."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import DatasetError
from fastdata.loaders.jpeg_index import (
    FolderIndex,
    Indexed,
    index_file,
    index_folder,
    is_below,
    name_in_index,
    writing_indexes,
)
from fastdata.loaders.resample import exact_core, options_for
from fastdata.system.files import try_lock

__all__ = ["Indexing", "StoredImage", "images_below", "make_index"]

_EXTENSIONS = (".jpg", ".jpeg", ".jpe")
# MCUs from one entry of an index to the next: fewer make windows a little cheaper, and indexes larger.
_STEP = 16
_AHEAD = 64  # images for each thread


class StoredImage(NamedTuple):
    """Where an encoded image lies.

    Attributes:
        path: of the file.
        offset: where the image begins in it.
        length: in bytes; -1 up to the end of the file.
    """

    path: str
    offset: int = 0
    length: int = -1


class _Made(NamedTuple):
    image: Indexed
    is_new: bool


@dataclass
class Indexing:
    """What making the indexes of a folder came to.

    Attributes:
        path: of the file that holds them.
        indexed: images whose index was made.
        kept: images that have not changed since theirs was made.
        without: images that are not decoded by an index: progressive, damaged, or of another format.
        unreadable: files that could not be read.
        index_bytes: of all indexes.
    """

    path: Path
    indexed: int = 0
    kept: int = 0
    without: int = 0
    unreadable: int = 0
    index_bytes: int = 0

    @property
    def images(self) -> int:
        """All that were looked at."""
        return self.indexed + self.kept + self.without + self.unreadable

    def count(self, made: _Made | None) -> None:
        """Counts one image; None for one that could not be read."""
        if made is None:
            self.unreadable += 1
        elif not made.image.stored:
            self.without += 1
        elif made.is_new:
            self.indexed += 1
        else:
            self.kept += 1
        self.index_bytes += len(made.image.stored) if made is not None else 0


def images_below(root: str | os.PathLike[str]) -> Iterator[StoredImage]:
    """The JPEGs below a folder, by their names, in sorted order; links to folders are followed."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(each for each in folders if not _leads_back(folder, each))
        for name in sorted(files):
            if name.lower().endswith(_EXTENSIONS):
                yield StoredImage(os.path.join(folder, name))


def _leads_back(folder: str, name: str) -> bool:
    """True for a link to a folder that it is in."""
    path = os.path.join(folder, name)
    return os.path.islink(path) and is_below(os.path.realpath(folder), os.path.realpath(path))


def make_index(
    root: str | os.PathLike[str],
    images: Iterable[StoredImage],
    *,
    to: str | os.PathLike[str] | None = None,
    threads: int = 1,
    on_image: Callable[[], object] = lambda: None,
) -> Indexing:
    """Makes the indexes of images below a folder, and writes them into one file, in the place of an earlier one.

    Args:
        root: the folder.
        images: the images.
        to: folder for that file; None for `index_folder()`.
        threads: that read and index.
        on_image: called after each image.

    Raises:
        DatasetError: there are no images, or another process is indexing the folder.
        NativeMissing: there is no native core, which makes and uses indexes.
        OSError: the file cannot be written.
    """
    exact_core()  # or says why it is missing
    whole = os.path.realpath(root)
    done = Indexing(index_file(whole, Path(to) if to is not None else index_folder()))
    maker = _Maker(os.fspath(root), done.path)
    with (
        _alone(done.path, whole),
        writing_indexes(done.path, whole) as add,
        ThreadPoolExecutor(max(1, threads), thread_name_prefix="fastdata-index") as pool,
    ):
        for made in _in_order(pool, maker.make, images, ahead=_AHEAD * max(1, threads)):
            on_image()
            done.count(made)
            if made is not None:
                add(made.image)
        if not done.images:
            accepted = " ".join(_EXTENSIONS)
            raise DatasetError(f"no JPEGs below {root}; expected shards, or files that end with {accepted}")
    return done


@contextmanager
def _alone(path: Path, root: str) -> Iterator[None]:
    """While no other process writes the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with try_lock(lock) as is_free:
        if not is_free:
            raise DatasetError(f"another process is indexing {root}; wait until it has finished")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _in_order(
    pool: ThreadPoolExecutor,
    work: Callable[[StoredImage], _Made | None],
    images: Iterable[StoredImage],
    *,
    ahead: int,
) -> Iterator[_Made | None]:
    """Results in the order of the images, some of which are worked on ahead."""
    waiting = iter(images)
    running: deque[Future[_Made | None]] = deque(pool.submit(work, image) for image in islice(waiting, ahead))
    while running:
        yield running.popleft().result()
        running.extend(pool.submit(work, image) for image in islice(waiting, 1))


class _Maker:
    """Makes the index of one image after the other, or takes that of an earlier run."""

    def __init__(self, root: str, earlier: Path) -> None:
        self._root, self._before = root, _opened(earlier)
        self._core, order = exact_core()
        self._options = options_for(order, "exact")

    def make(self, image: StoredImage) -> _Made | None:
        """None if the file cannot be read."""
        name = name_in_index(os.path.relpath(image.path, self._root), image.offset)
        before = self._before.find(name) if self._before is not None else None
        try:
            with open(image.path, "rb", buffering=0) as file:
                state = os.fstat(file.fileno())
                if before is not None and before.is_of(state):
                    return _Made(before, is_new=False)
                file.seek(image.offset)
                data = file.read(image.length)
        except OSError:
            return None
        stored = self._core.index_jpeg(data, step=_STEP, options=self._options)
        return _Made(Indexed(name, state.st_size, state.st_mtime_ns, stored or b""), is_new=True)


def _opened(path: Path) -> FolderIndex | None:
    """The indexes of an earlier run; None if there are none that are of use."""
    try:
        return FolderIndex(path)
    except (OSError, DatasetError):
        return None
