"""Finds the shards that a path, pattern, URL, or list of them stands for."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from fastdata.errors import DatasetError
from fastdata.shards.format import MANIFEST_NAME, Manifest
from fastdata.shards.part_files import read_shard_file
from fastdata.shards.patterns import expand_braces, refuse_compressed
from fastdata.shards.remote import RemoteShards
from fastdata.shards.store import LocalShards, Shards, missing_manifest

__all__ = ["open_shards"]


def open_shards(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int,
) -> Shards:
    """Finds the shards that a path, pattern, URL, or list of them stands for.

    Raises:
        DatasetError: there are no shards, or they have different classes.
    """
    given = [os.fspath(path)] if isinstance(path, str | os.PathLike) else [os.fspath(each) for each in path]
    if not given:
        raise DatasetError("an empty list of shards was given; name at least one folder or tar file")
    if any("://" in each for each in given):
        return RemoteShards(given, cache_dir, cache_bytes)
    refuse_compressed(given)
    manifests = {each: _local_manifest(Path(each)) for each in given if os.path.isdir(each)}
    if len(given) == 1 and (manifest := manifests.get(given[0])) is not None and manifest.tars is not None:
        return _indexed_elsewhere(Path(given[0]), manifest, cache_dir, cache_bytes)
    if elsewhere := [each for each, manifest in manifests.items() if manifest.tars is not None]:
        raise DatasetError(f"{elsewhere[0]} has the indexes of tar files elsewhere; open it as a dataset of its own")
    paths: list[Path] = []
    for each in given:
        paths += _matching(each) if each not in manifests else [Path(each) / s.name for s in manifests[each].shards]
    if not paths:
        raise DatasetError(f"no shards in {given[0]}")
    beside = {folder: _manifest_in(folder) for folder in {path.parent for path in paths}}
    first = next(iter(manifests.values())) if manifests else beside[paths[0].parent]
    classes = first.classes if first is not None else None
    for folder, manifest in manifests.items():
        if manifest.classes != classes:
            raise DatasetError(
                f"{folder} has other classes than the shards before it, so their labels would not agree; open them as "
                "separate datasets"
            )
    named = {folder / s.name: s.index_crc32c for folder, m in beside.items() if m is not None for s in m.shards}
    return LocalShards(paths, classes, [named.get(path) for path in paths])


def _indexed_elsewhere(
    folder: Path, manifest: Manifest, cache_dir: str | os.PathLike[str] | None, cache_bytes: int
) -> Shards:
    """Tar files whose indexes and manifest lie in another folder."""
    tars = [f"{manifest.tars}/{shard.name}" for shard in manifest.shards]
    indexes = {tar: str(folder / shard.index_name) for tar, shard in zip(tars, manifest.shards, strict=True)}
    if "://" in str(manifest.tars):
        remote = RemoteShards(tars, cache_dir, cache_bytes, indexes=indexes)
        remote.classes = manifest.classes
        return remote
    crcs = [shard.index_crc32c for shard in manifest.shards]
    indexes = {str(Path(tar)): index for tar, index in indexes.items()}
    return LocalShards([Path(tar) for tar in tars], manifest.classes, crcs, indexes)


def _matching(given: str) -> list[Path]:
    found = [Path(path) for one in expand_braces(given) for path in (sorted(glob.glob(one)) or [one])]
    missing = [str(path) for path in found if not path.exists()]
    if missing:
        raise DatasetError(
            f"no such folder or shard: {', '.join(missing[:3])}{' and others' if len(missing) > 3 else ''}"
        )
    return found


def _local_manifest(folder: Path) -> Manifest:
    if (manifest := _manifest_in(folder)) is not None:
        return manifest
    splits = sorted(found.parent.name for found in folder.glob(f"*/{MANIFEST_NAME}"))
    if splits:
        raise DatasetError(f"{folder} contains the splits {', '.join(splits)}; name one of them: {folder / splits[0]}")
    raise DatasetError(missing_manifest(folder))


def _manifest_in(folder: Path) -> Manifest | None:
    path = folder / MANIFEST_NAME
    return Manifest.from_text(read_shard_file(path), str(path)) if path.exists() else None
