"""Makes the indexes and the manifest of tar files (`fastdata index`), beside them or in another place."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from fastdata.errors import DatasetError, NotInStore, ShardError, StoreError
from fastdata.shards.engines import run_jobs
from fastdata.shards.format import MANIFEST_NAME, Manifest, ShardIndex, ShardInfo, crc32c, file_crc32c, index_name
from fastdata.shards.part_files import check_part, open_shard_file, read_shard_file
from fastdata.shards.patterns import expand_braces, refuse_compressed
from fastdata.shards.records import list_tar
from fastdata.shards.remote_files import RemoteFiles
from fastdata.shards.store import is_unfinished, missing_manifest
from fastdata.shards.writer import IndexBuilder
from fastdata.system.files import write_whole
from fastdata.views.header import parse_header

__all__ = ["index_elsewhere", "index_folder"]

_Made = TypeVar("_Made", Manifest, ShardIndex)


def index_folder(folder: str | os.PathLike[str], *, workers: int = 1, force: bool = False) -> Manifest:
    """Makes the indices and the manifest for the tar files in a folder, from the tar files alone.

    Class names are taken over from an existing manifest.

    Args:
        folder: the folder with the tar files.
        workers: number of processes.
        force: replace an index even if its tar file has changed since the index was written.

    Raises:
        DatasetError: there are no tar files, or they belong to an unfinished conversion.
        ConversionError: a label is a class name that is not known.
        ShardError: a tar file is damaged, or does not have the checksum in its index.
    """
    if is_unfinished(Path(folder)):
        raise DatasetError(missing_manifest(Path(folder)))
    names = sorted(path.name for path in Path(folder).glob("*.tar"))
    if not names:
        raise DatasetError(f"no tar files in {folder}")
    old = _old(str(Path(folder) / MANIFEST_NAME), Manifest.from_text)
    classes = old.classes if old is not None else None
    work = partial(_index_tar, folder=str(folder), force=force, classes=classes)
    done = run_jobs(work, names, workers=workers)
    shards = sorted(done, key=lambda info: info.name)
    manifest = Manifest(
        classes=classes,
        shards=shards,
        options=old.options if old is not None else {},
        skipped=old.skipped if old is not None else [],
        source=old.source if old is not None else {},
    )
    write_whole(Path(folder) / MANIFEST_NAME, manifest.to_text().encode())
    return manifest


def index_elsewhere(tars: str, folder: str | os.PathLike[str], *, workers: int = 1) -> Manifest:
    """Indexes tar files that stay where they are, which may be read-only or remote: a dataset of them in a folder.

    Nothing is written beside the tar files.  A remote one is downloaded, and removed again when it has been indexed.

    Args:
        tars: a folder, a tar file, a pattern of them, or a URL of one of these ("s3://bucket/data-{000000..000099}.tar").
        folder: where indexes and manifest are written; `ShardDataset` opens it.  With indexes that are there already,
            of tar files of the same names, nothing is lost: those are made again.
        workers: number of processes.

    Raises:
        DatasetError: there are no tar files, they are compressed, or they do not lie in one place.
        ConversionError: a label is a class name that is not known.
        ShardError: a tar file is damaged.
        StoreError: a remote one cannot be read.
    """
    paths = _tars(tars)
    places = {path.rpartition("/")[0] for path in paths}
    if len(places) > 1:
        raise DatasetError(f"{tars} names tar files in {len(places)} places; index those of each place by themselves")
    Path(folder).mkdir(parents=True, exist_ok=True)
    old, beside = _old(str(Path(folder) / MANIFEST_NAME), Manifest.from_text), None
    place = next(iter(places))
    with suppress(StoreError):  # one that does not tell whether there is a manifest
        store = RemoteFiles() if "://" in place else None
        beside = _old(f"{place}/{MANIFEST_NAME}", Manifest.from_text, store)
    classes = next((known.classes for known in (old, beside) if known is not None and known.classes), None)
    done = run_jobs(partial(_index_one, folder=str(folder), classes=classes), paths, workers=workers)
    shards = sorted(done, key=lambda info: info.name)
    manifest = Manifest(classes=classes, shards=shards, tars=place)
    write_whole(Path(folder) / MANIFEST_NAME, manifest.to_text().encode())
    return manifest


def _old(place: str, parse: Callable[[bytes, str], _Made], store: RemoteFiles | None = None) -> _Made | None:
    """Reads what was made before at a path, or at a URL in a store; None if it is missing, or damaged itself."""
    try:
        return parse(read_shard_file(place) if store is None else store.read(place), place)
    except (FileNotFoundError, NotInStore, ShardError):
        return None


def _tars(given: str) -> list[str]:
    """Paths or URLs of tar files, absolute."""
    if "://" in given:
        paths = expand_braces(given)
        refuse_compressed(paths)
        if len(paths) == 1 and not given.endswith(".tar"):
            found = RemoteFiles().matching(f"{given.rstrip('/')}/*.tar*")
            refuse_compressed(found)
            paths = [path for path in found if path.endswith(".tar")]
        if not paths or not all(path.endswith(".tar") for path in paths):
            raise DatasetError(
                f"no tar files at {given}; name a folder with some, or write their names, with {{000000..000099}} for "
                "many"
            )
        return paths
    found = sorted(glob.glob(f"{glob.escape(given)}/*.tar*")) if os.path.isdir(given) else []
    found = found or sorted({path for one in expand_braces(given) for path in glob.glob(one)})
    refuse_compressed(found)
    tars = [os.path.abspath(path) for path in found if path.endswith(".tar")]
    if not tars:
        raise DatasetError(f"no tar files in {given}")
    return [path.replace(os.sep, "/") for path in tars]


def _index_one(path: str, *, folder: str, classes: Sequence[str] | None) -> ShardInfo:
    """Indexes a tar file into a folder."""
    name = path.rpartition("/")[2]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".index-") as scratch:
        local = path
        if "://" in path:
            local = os.path.join(scratch, name)
            RemoteFiles().copy_whole(path, Path(local))
        builder = _collected(local, list(classes) if classes is not None else None)
        tar_bytes, tar_crc = os.path.getsize(local), file_crc32c(local)
    return builder.write_idx(Path(folder, name), tar_bytes, tar_crc, (0, 0))


def _index_tar(name: str, *, folder: str, force: bool, classes: list[str] | None) -> ShardInfo:
    path = os.path.join(folder, name)
    builder = _collected(path, classes)
    tar_bytes, tar_crc = os.path.getsize(path), file_crc32c(path)
    if not force:
        _refuse_changed(path, _old(index_name(path), ShardIndex.from_bytes), tar_crc)
    return builder.write_idx(Path(path), tar_bytes, tar_crc, builder.write_jpegindex(Path(path), tar_bytes))


def _collected(path: str, classes: list[str] | None) -> IndexBuilder:
    """Collects the contents of the index of a tar file."""
    builder, known = IndexBuilder(), _known_paths(path)
    with open_shard_file(path) as file:
        for ref in list_tar(path, classes):
            check_part(ref.size, path, what=f"the image {ref.key} at byte {ref.offset}")
            file.seek(ref.offset)
            data = file.read(ref.size)
            width, height = _size_of(data)
            source_path = known.get((ref.key, ref.offset, crc32c(data)), "")
            builder.add(ref.key, ref.label, ref.offset, data, width, height, source_path)
            for part in ref.parts:
                check_part(part.size, path, what=f"{part.extension} of {ref.key} at byte {part.offset}")
                file.seek(part.offset)
                builder.add_part(part.extension, part.offset, file.read(part.size))
    return builder


def _known_paths(path: str) -> dict[tuple[str, int, int], str]:
    """Paths in the source that the index has, which a tar file does not say, by key, offset and checksum."""
    if (old := _old(index_name(path), ShardIndex.from_bytes)) is None:
        return {}
    rows = zip(
        map(old.key, range(len(old))), old.records["offset"].tolist(), old.records["crc32c"].tolist(), strict=True
    )
    return dict(zip(rows, old.source_paths(), strict=True))


def _refuse_changed(name: str, old: ShardIndex | None, found: int) -> None:
    """Raises ShardError for another checksum than in the old index: a new one would make damage official."""
    if old is not None and found != old.tar_crc32c:
        raise ShardError(
            name,
            "tar file does not have the checksum in its index (see fastdata verify; copy the file again, or accept it "
            "as it is with --force)",
            expected=f"checksum {old.tar_crc32c:08x}",
            found=f"{found:08x}",
        )


def _size_of(data: bytes) -> tuple[int, int]:
    """Width and height, or zeros for an image that cannot be opened; reading it will give the reason."""
    header = parse_header(data)
    if header is not None:
        return header.width, header.height
    from fastdata.loaders import pillow

    try:
        return pillow.size_of(data)
    except Exception:  # noqa: BLE001 - Pillow's plugins raise many kinds
        return 0, 0
