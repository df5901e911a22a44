"""Makes the indexes of a folder's JPEGs; jpeg_index/find.py describes their use and their place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fastdata import limits
from fastdata.errors import DatasetError
from fastdata.jpeg_index.find import index_folder, index_of_folder, is_below, named_folder
from fastdata.jpeg_index.folder_index import index_in, is_writable
from fastdata.jpeg_index.index_file import Indexed, IndexFile, name_in_folder, writing_indexes
from fastdata.limits import check_encoded_bytes
from fastdata.native import Options, PassOrder, load
from fastdata.system.files import open_file, try_lock
from fastdata.system.ordered_map import in_order

__all__ = ["Indexing", "JpegIndexer", "images_below", "make_index"]

_EXTENSIONS = (".jpg", ".jpeg", ".jpe")
# MCUs from one entry of an index to the next: fewer make windows a little cheaper, and indexes larger.
_STEP = 16


class _Made(NamedTuple):
    image: Indexed
    is_new: bool


@dataclass
class Indexing:
    """The result of indexing a folder.

    Attributes:
        path: path of the index file.
        indexed: images whose index was made.
        kept: images that have not changed since their index was made.
        without: images that cannot be decoded with an index: progressive, damaged, or of another format.
        unreadable: files that could not be read.
        index_bytes: size of all indexes.
    """

    path: Path
    indexed: int = 0
    kept: int = 0
    without: int = 0
    unreadable: int = 0
    index_bytes: int = 0

    @property
    def images(self) -> int:
        """Number of all images, whatever their result."""
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


def images_below(root: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the paths of the JPEGs below a folder, by their extensions, sorted; links to folders are followed."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(each for each in folders if not _leads_back(folder, each))
        for name in sorted(files):
            if name.lower().endswith(_EXTENSIONS):
                yield os.path.join(folder, name)


def _leads_back(folder: str, name: str) -> bool:
    """True for a link to a folder that contains the link."""
    path = os.path.join(folder, name)
    return os.path.islink(path) and is_below(os.path.realpath(folder), os.path.realpath(path))


def make_index(
    root: str | os.PathLike[str],
    paths: Iterable[str],
    *,
    to: str | os.PathLike[str] | None = None,
    threads: int = 1,
    on_image: Callable[[], object] = lambda: None,
) -> Indexing:
    """Makes the indexes of images below a folder, and writes them to one file, replacing an earlier one.

    Args:
        root: the folder.
        paths: the images.
        to: folder for that file; None for `root` itself, or `index_folder()` if `root` cannot be written or
            `$FASTDATA_INDEX_DIR` is set.
        threads: number of threads that read and index.
        on_image: called after each image.

    Raises:
        DatasetError: there are no images, or another process is indexing the folder.
        NativeMissing: there is no native core, which makes and uses indexes.
        OSError: the file cannot be written.
    """
    whole = os.path.realpath(root)
    done = Indexing(_place_for(whole, to))
    is_inside = done.path == index_in(whole)
    maker = _Maker(os.fspath(root), _earlier(whole, done.path))
    with _alone(done.path, whole), writing_indexes(done.path, "" if is_inside else whole) as add:
        for made in in_order(maker.make, paths, threads=threads, name="fastdata-index"):
            on_image()
            done.count(made)
            if made is not None:
                add(made.image)
        if not done.images:
            accepted = " ".join(_EXTENSIONS)
            raise DatasetError(f"no JPEGs below {root}; expected tar files, or files that end with {accepted}")
    return done


def _place_for(whole: str, to: str | os.PathLike[str] | None) -> Path:
    """Returns the path for the index of a folder."""
    if to is not None:
        return index_of_folder(whole, Path(to))
    if named_folder() is None and is_writable(whole):
        return index_in(whole)
    return index_of_folder(whole, index_folder())


def _earlier(whole: str, path: Path) -> IndexFile | None:
    """Opens the index of an earlier run: at this path, else in `index_folder()`; None if there is none."""
    found = _opened(path)
    if found is None and path == index_in(whole):
        with suppress(RuntimeError):  # no home
            found = _opened(index_of_folder(whole, index_folder()))
    return found


@contextmanager
def _alone(path: Path, root: str) -> Iterator[None]:
    """Locks an index file against other processes within a `with` block; raises DatasetError if it is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with try_lock(lock) as is_free:
        if not is_free:
            raise DatasetError(f"another process is indexing {root}; wait until it has finished")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


class JpegIndexer:
    """Makes the indexes of JPEGs, one after the other.

    Raises:
        NativeMissing: there is no native core, which makes and uses indexes.
    """

    def __init__(self) -> None:
        self._core = load()
        # The order of a resize's passes does not matter here: no pixel is computed.
        self._options = Options(pass_order=next(iter(PassOrder)), max_file_bytes=limits.MAX_ENCODED_BYTES)

    def make(self, image: bytes) -> bytes:
        """Returns the index; empty for an image without one: progressive, damaged, or of another format."""
        return self._core.index_jpeg(image, step=_STEP, options=self._options) or b""


class _Maker:
    """Makes the indexes of files, one after the other, or takes those of an earlier run."""

    def __init__(self, root: str, before: IndexFile | None) -> None:
        self._root, self._before, self._indexer = root, before, JpegIndexer()

    def make(self, path: str) -> _Made | None:
        """Returns a file's index; None if the file cannot be read."""
        name = name_in_folder(os.path.relpath(path, self._root))
        before = self._before.find(name) if self._before is not None else None
        try:
            with open_file(path, buffering=0) as file:
                state = os.fstat(file.fileno())
                if before is not None and before.is_of(state):
                    return _Made(before, is_new=False)
                check_encoded_bytes(state.st_size, path)
                data = file.read()
        except OSError:
            return None
        return _Made(Indexed(name, state.st_size, state.st_mtime_ns, self._indexer.make(data)), is_new=True)


def _opened(path: Path) -> IndexFile | None:
    """Opens the indexes of an earlier run; returns None if they are missing or cannot be used."""
    try:
        return IndexFile(path)
    except (OSError, DatasetError):
        return None
