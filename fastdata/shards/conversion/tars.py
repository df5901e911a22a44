"""Tar files with WebDataset's naming as a source: images with their labels and other parts."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fastdata.errors import ConversionError, DatasetError
from fastdata.shards.conversion.recode import UNPACKED
from fastdata.shards.conversion.samples import Keys, SourcePaths, Split, Streamed
from fastdata.shards.format import MANIFEST_NAME, ShardIndex
from fastdata.shards.labels import checked_class, class_numbers, classes_for
from fastdata.shards.part_files import read_shard_file
from fastdata.shards.records import Ref, TarSample, listing, tar_samples
from fastdata.shards.remote_files import RemoteFiles
from fastdata.shards.store import read_range

__all__ = ["remote_tars", "tar_splits"]

_MOST_MEMBER_BYTES = 1 << 30  # a sample is held in memory while it is copied


def tar_splits(paths: Sequence[str], classes: list[str] | None) -> dict[str, Split]:
    """The splits of tar files: one dataset, or one for each folder with tar files.

    Raises:
        ConversionError: labels mix names and numbers, a sample is too large, or two folders have the same name.
        DatasetError: there are no images.
        ShardError: a tar file or its index is damaged.
    """
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        by_folder.setdefault(os.path.dirname(os.path.abspath(path)), []).append(path)
    names = {folder: os.path.basename(folder) if len(by_folder) > 1 else "" for folder in by_folder}
    if len(set(names.values())) < len(names):
        raise ConversionError(
            f"several folders with the same name contain tar files: {', '.join(by_folder)}; convert each separately"
        )
    ignored = dict.fromkeys(by_folder, 0)
    found: dict[str, list[TarSample]] = {}
    for folder, inside in by_folder.items():
        every = [sample for path in inside for sample in tar_samples(path)]
        found[folder] = [sample for sample in every if isinstance(sample, TarSample)]
        ignored[folder] = sum(sample for sample in every if isinstance(sample, int))
    occurring = classes_for(((each.label, each.where) for split in found.values() for each in split), classes)
    return {
        names[folder]: replace(
            _split(samples, by_folder[folder], _classes_beside(by_folder[folder][0]) or occurring),
            ignored=ignored[folder],
        )
        for folder, samples in found.items()
    }


def _split(samples: Sequence[TarSample], paths: Sequence[str], classes: list[str] | None) -> Split:
    if not samples:
        raise DatasetError(f"no images in {paths[0]}{' and others' if len(paths) > 1 else ''}")
    keys, source_paths, refs, numbers = Keys(), SourcePaths(), [], class_numbers(classes)
    for sample in samples:
        for size in (sample.ref.size, *(part.size for part in sample.ref.parts)):
            if size > _MOST_MEMBER_BYTES:
                raise ConversionError(
                    f"{sample.where} has a part of {size} bytes; at most {_MOST_MEMBER_BYTES} are accepted, since a "
                    "sample is held in memory while it is copied: store such a file outside of the tar file"
                )
        label = checked_class(sample.label, numbers, sample.where)
        refs.append(sample.ref._replace(key=keys.unique(sample.ref.key), label=label))
    refs = [
        ref._replace(source_path=source_paths.unique(ref.source_path)) for ref in _with_what_indexes_say(refs, paths)
    ]
    return Split(classes=classes, refs=refs, fingerprint=listing(ref._replace(crc32c=None) for ref in refs))


def _with_what_indexes_say(refs: Sequence[Ref], paths: Sequence[str]) -> list[Ref]:
    """Adds the checksums in the indexes of the tar files, so that no damage is converted unnoticed, and source paths.

    An unpacked JPEG whose path in its own source is not known has none: it would be that of another format.
    """
    known: dict[tuple[str, int], tuple[int, str]] = {}
    for path in paths:
        if (index := ShardIndex.beside(path)) is not None:
            columns = index.records["offset"].tolist(), index.records["crc32c"].tolist(), index.source_paths()
            known.update({(path, offset): (crc, name) for offset, crc, name in zip(*columns, strict=True)})
    made = []
    for ref in refs:
        crc, name = known.get((ref.path, ref.offset), (None, ""))
        own = "" if ref.source_path.lower().endswith(f".{UNPACKED}") else ref.source_path
        made.append(ref._replace(crc32c=crc, source_path=name or own))
    return made


def remote_tars(urls: Sequence[str], classes: list[str] | None) -> Split:
    """Tar files in a store as a stream: each is downloaded, read and removed again.

    Args:
        urls: the tar files.
        classes: class names by number, for labels that are names; which ones occur is not known before all are read.
    """

    def stream() -> Iterator[Streamed]:
        keys, source_paths, numbers, store = Keys(), SourcePaths(), class_numbers(classes), RemoteFiles()
        for url in urls:
            with tempfile.TemporaryDirectory(prefix="fastdata-convert-") as scratch:
                local = Path(scratch, url.rpartition("/")[2])
                store.copy_whole(url, local)
                for sample in tar_samples(str(local)):
                    if isinstance(sample, TarSample):
                        made = _read_whole(local, sample, numbers, f"{url}: {sample.ref.key}")
                        path = source_paths.unique(sample.ref.source_path)
                        yield made._replace(key=keys.unique(made.key), source_path=path)

    return Split(classes=classes, stream=stream)


def _read_whole(tar: Path, sample: TarSample, numbers: dict[str, int], where: str) -> Streamed:
    """A sample with the bytes of its image and of its other parts."""
    ref, label = sample.ref, checked_class(sample.label, numbers, where)
    parts = [(part.extension, read_range(str(tar), part.offset, part.size)) for part in ref.parts]
    return Streamed(ref.key, read_range(str(tar), ref.offset, ref.size), label, parts=tuple(parts))


def _classes_beside(path: str) -> list[str] | None:
    try:
        classes = json.loads(read_shard_file(Path(path).with_name(MANIFEST_NAME))).get("classes")
    except (OSError, ValueError, AttributeError):
        return None
    return classes if isinstance(classes, list) else None
