"""Checks converted datasets (`fastdata verify`)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from fastdata.errors import DatasetError, NotInStore, ShardError, StoreError
from fastdata.jpeg_index.index_file import index_beside, path_beside
from fastdata.limits import is_above_limit
from fastdata.loaders.unpacked import as_file
from fastdata.shards.engines import run_jobs
from fastdata.shards.format import (
    MANIFEST_NAME,
    NO_LABEL,
    Manifest,
    ShardIndex,
    ShardInfo,
    crc32c,
    file_crc32c,
)
from fastdata.shards.part_files import open_shard_file, read_shard_file, tar_size
from fastdata.shards.records import Ref, list_tar
from fastdata.shards.remote_files import RemoteFiles
from fastdata.shards.store import missing_manifest

__all__ = ["Fault", "read_manifest", "verify_folder"]


@dataclass(frozen=True)
class Fault:
    """A fault of a shard.

    Attributes:
        shard: path of the tar file.
        offset: byte in the tar file; None if the fault concerns the whole file.
        problem: the problem, with the expected and the found value.
        only_slows: the fault concerns an index without which images are still decoded, more slowly.
    """

    shard: str
    offset: int | None
    problem: str
    only_slows: bool = False

    def __str__(self) -> str:
        place = f" at byte {self.offset}" if self.offset is not None else ""
        return f"{self.shard}{place}: {self.problem}"


def verify_folder(
    folder: str | os.PathLike[str], *, decode: bool = False, workers: int = 1, manifest: Manifest | None = None
) -> Iterator[Fault]:
    """Checks the manifest, every index and every checksum, and that indices and tar files agree; yields the faults.

    Args:
        folder: one converted dataset, or its URL; shards in a store are downloaded one after the other.
        decode: also decode every image.
        workers: number of processes.
        manifest: the folder's; None reads it.

    Raises:
        DatasetError: there is no manifest.
        ShardError: the manifest cannot be read.
        StoreError: the store cannot be read.
    """
    manifest, place = manifest or read_manifest(folder), os.fspath(folder).rstrip("/")
    work = partial(_verify_shard, folder=place, tars=manifest.tars or place, decode=decode, classes=manifest.classes)
    for faults in run_jobs(work, manifest.shards, workers=workers):
        yield from faults


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Reads the manifest of a dataset in a folder, or at a URL.

    Raises:
        DatasetError: there is none.
        ShardError: it is damaged, or of another version.
        StoreError: the store cannot be read.
    """
    if "://" in os.fspath(folder):
        place = f"{os.fspath(folder).rstrip('/')}/{MANIFEST_NAME}"
        return RemoteFiles().read_checked(place, partial(Manifest.from_text, name=place))
    path = Path(folder) / MANIFEST_NAME
    if not path.exists():
        raise DatasetError(missing_manifest(Path(folder)))
    return Manifest.from_text(read_shard_file(path), str(path))


def _verify_shard(info: ShardInfo, *, folder: str, tars: str, decode: bool, classes: list[str] | None) -> list[Fault]:
    name = os.path.join(tars, info.name)
    try:
        with _at_hand(info, folder, tars) as (path, place):
            faults = _faults_of(path, place, info, decode=decode, classes=classes)
            return [replace(fault, shard=name, problem=fault.problem.replace(path, name)) for fault in faults]
    except StoreError as error:
        return [Fault(name, None, str(error))]


@contextmanager
def _at_hand(info: ShardInfo, folder: str, tars: str) -> Iterator[tuple[str, str]]:
    """Local paths of a shard's tar file and of its index, copied from a store if they are in one."""
    if "://" not in folder and "://" not in tars:
        yield os.path.join(tars, info.name), os.path.join(folder, info.index_name)
        return
    store = RemoteFiles()
    with tempfile.TemporaryDirectory(prefix="fastdata-verify-") as scratch:
        path, place = os.path.join(scratch, info.name), os.path.join(folder, info.index_name)
        store.copy_whole(f"{tars}/{info.name}", Path(path))
        if "://" in folder:
            place = os.path.join(scratch, info.index_name)
            Path(place).write_bytes(store.read(f"{folder}/{info.index_name}"))
            with suppress(NotInStore):
                store.copy_whole(index_beside(f"{tars}/{info.name}"), path_beside(path))
        yield path, place


def _faults_of(path: str, place: str, info: ShardInfo, *, decode: bool, classes: list[str] | None) -> list[Fault]:
    try:
        index, faults = _read_index(path, place, info)
        faults += [*_check_jpeg_indexes(path, index), *_compare_with_tar(path, index, classes)]
        faults += list(_check_images(path, index, decode=decode))
    except ShardError as error:
        return [Fault(path, error.offset, str(error).removeprefix(f"{path}: "))]
    except OSError as error:
        return [Fault(path, None, str(error))]
    return faults


def _read_index(path: str, place: str, info: ShardInfo) -> tuple[ShardIndex, list[Fault]]:
    data = read_shard_file(place)
    index = ShardIndex.from_bytes(data, place)
    size, crc = tar_size(path), file_crc32c(path)
    pairs = [
        ("checksum of the index", f"{info.index_crc32c:08x}", f"{crc32c(data):08x}"),
        ("samples in the index", info.samples, len(index)),
        ("bytes in the tar file", info.tar_bytes, size),
        ("bytes in the tar file according to the index", info.tar_bytes, index.tar_bytes),
        ("checksum of the tar file", f"{info.tar_crc32c:08x}", f"{crc:08x}"),
    ]
    return index, [
        Fault(path, None, f"{what}: expected {expected}, found {found}")
        for what, expected, found in pairs
        if expected != found
    ]


def _check_jpeg_indexes(path: str, index: ShardIndex) -> Iterator[Fault]:
    beside = path_beside(path)
    if not index.jpeg_bytes:
        return
    try:
        found = beside.stat().st_size, file_crc32c(beside)
    except FileNotFoundError:
        yield Fault(path, None, f"{beside.name} is missing", only_slows=True)
        return
    if found != (index.jpeg_bytes, index.jpeg_crc32c):
        expected = f"{index.jpeg_bytes} bytes, checksum {index.jpeg_crc32c:08x}"
        problem = f"{beside.name}: expected {expected}, found {found[0]} bytes, checksum {found[1]:08x}"
        yield Fault(path, None, problem, only_slows=True)


def _compare_with_tar(path: str, index: ShardIndex, classes: list[str] | None) -> list[Fault]:
    faults = []
    refs = list_tar(path, classes)
    if len(refs) != len(index):
        return [Fault(path, None, f"images in the tar file: expected {len(index)}, found {len(refs)}")]
    for row, ref in enumerate(refs):
        record = index.records[row]
        expected = index.key(row), int(record["label"]), int(record["offset"]), int(record["size"])
        label = NO_LABEL if record["label"] == NO_LABEL else ref.label  # what JSON calls a label need not be one
        found = ref.key, label, ref.offset, ref.size
        if expected != found:
            faults.append(Fault(path, ref.offset, f"key, label, offset, size: expected {expected}, found {found}"))
        if (problem := _other_members(index, row, ref)) is not None:
            faults.append(Fault(path, ref.offset, f"{ref.key}: {problem}"))
        if classes and not NO_LABEL <= ref.label < len(classes):
            faults.append(Fault(path, ref.offset, f"label {ref.label} is out of range for {len(classes)} classes"))
    return faults


def _other_members(index: ShardIndex, row: int, ref: Ref) -> str | None:
    """How other members of a sample differ from the index; None if they do not.  Older indexes do not list them."""
    if not len(index.parts):
        return None
    listed = index.parts.of_row(row)
    expected = [(index.parts.fields[part["field"]], int(part["offset"]), int(part["size"])) for part in listed]
    found = [(part.extension, part.offset, part.size) for part in ref.parts]
    return None if expected == found else f"other members: expected {expected}, found {found}"


def _check_images(path: str, index: ShardIndex, *, decode: bool) -> Iterator[Fault]:
    with open_shard_file(path) as file:
        for row, record in enumerate(index.records):
            offset, size, expected = int(record["offset"]), int(record["size"]), int(record["crc32c"])
            if is_above_limit(size):
                too_large = f"{index.key(row)} has {size} bytes, more than fastdata.limits.MAX_ENCODED_BYTES"
                yield Fault(path, offset, too_large)
                continue
            file.seek(offset)
            data = file.read(size)
            if crc32c(data) != expected:
                yield Fault(
                    path, offset, f"checksum of {index.key(row)}: expected {expected:08x}, found {crc32c(data):08x}"
                )
            elif decode and (problem := _problem_in(data, int(record["width"]), int(record["height"]))):
                yield Fault(path, offset, f"{index.key(row)}: {problem}")
            yield from _check_parts(path, file, index, row)


def _check_parts(path: str, file: IO[bytes], index: ShardIndex, row: int) -> Iterator[Fault]:
    for part in index.parts.of_row(row):
        name = f"{index.key(row)}.{index.parts.fields[part['field']]}"
        if is_above_limit(int(part["size"])):
            yield Fault(path, int(part["offset"]), f"{name} has {part['size']} bytes, more than MAX_ENCODED_BYTES")
            continue
        file.seek(int(part["offset"]))
        if (found := crc32c(file.read(int(part["size"])))) != int(part["crc32c"]):
            expected = f"{part['crc32c']:08x}"
            yield Fault(path, int(part["offset"]), f"checksum of {name}: expected {expected}, found {found:08x}")


def _problem_in(data: bytes, width: int, height: int) -> str | None:
    from fastdata.loaders import pillow

    try:
        size = pillow.open_rgb(as_file(data)).size
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise many kinds
        return f"cannot be decoded: {type(error).__name__}: {error}"
    return None if size == (width, height) else f"size: expected {width} × {height}, found {size[0]} × {size[1]}"
