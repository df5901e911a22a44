"""The destination during a conversion: its lock, a description of the job, and notes on finished shards."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fastdata.errors import ConversionError
from fastdata.jpeg_index.index_file import path_beside
from fastdata.shards.conversion.folders import SPLIT_NAMES
from fastdata.shards.conversion.job import ConvertOptions, ShardJob, finished_shard
from fastdata.shards.conversion.samples import Split
from fastdata.shards.conversion.shard_plan import plan_shards
from fastdata.shards.conversion.staging import staged
from fastdata.shards.format import MANIFEST_NAME, STATE_FOLDER, Manifest, crc32c, index_name
from fastdata.shards.part_files import read_shard_file
from fastdata.shards.records import Ref
from fastdata.system.files import read_file, remove_durably, try_lock, write_whole

__all__ = ["Destination", "fingerprint_of"]

_PATIENCE_S = 5.0  # for the processes of a conversion that was killed just now


class Destination:
    """Holds the destination's lock and plans the shards.

    Args:
        folder: the destination.
        source: the source, as the user named it.
        options: options of the conversion.
        splits: the splits of the source.
        overwrite: remove an earlier conversion first.
        resume: fail unless there is an unfinished conversion.

    Raises:
        ConversionError: the folder holds something else, or another process is converting into it.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        options: ConvertOptions,
        splits: dict[str, Split],
        *,
        overwrite: bool,
        resume: bool,
    ) -> None:
        self._folder, self._state, self._options = folder, folder / STATE_FOLDER, options
        self._job = {
            "place": os.path.abspath(source) if all(map(_is_on_disk, splits.values())) else source,
            "sources": {name: fingerprint_of(source, split) for name, split in splits.items()},
            "options": options.bytes_decided_by(),
        }
        self._overwrite, self._resume, self._splits = overwrite, resume, splits
        self._stack = ExitStack()

    def __enter__(self) -> Destination:
        if self._resume and not (self._state / "job.json").exists():
            raise ConversionError(f"there is no unfinished conversion to resume in {self._folder}; leave out --resume")
        self._folder.mkdir(parents=True, exist_ok=True)
        job = self._state / "job.json"
        others = [entry.name for entry in os.scandir(self._folder) if not entry.name.startswith(STATE_FOLDER)]
        if not job.exists() and others and not self._overwrite:
            what = "a converted dataset" if _is_dataset(self._folder) else f"{len(others)} other files and folders"
            raise ConversionError(
                f"{self._folder} already holds {what}; choose another destination, or use --overwrite to replace an "
                "earlier conversion in it"
            )
        self._state.mkdir(exist_ok=True)
        with ExitStack() as stack:
            if not stack.enter_context(try_lock(self._state / "lock", patience_s=_PATIENCE_S)):
                raise ConversionError(
                    f"another process is converting into {self._folder}, or was until now; wait for it, or choose "
                    "another destination"
                )
            if self._overwrite and not (job.exists() and _is_same(_read_job(job), self._job)):
                _remove_conversion(self._folder, {*SPLIT_NAMES, *self._splits})
            self._check_may_continue(job)
            write_whole(job, json.dumps(self._job, indent=1).encode())
            self._stack = stack.pop_all()  # the lock is held until the end
        return self

    def _check_may_continue(self, job: Path) -> None:
        """Refuses to continue another conversion; files may have been added to the source or removed from it."""
        if not job.exists():
            return
        begun = _read_job(job)
        if not _is_same(begun, self._job) and not _is_same_place(begun, self._job):
            raise ConversionError(
                f"{self._folder} holds an unfinished conversion of another source or with other options "
                f"({_differences(begun, self._job)}); use the same source and options again, or --overwrite to start "
                "anew"
            )

    def jobs(self, name: str, split: Split) -> Iterator[ShardJob]:
        """Yields the shards of a split as jobs, planned one after the other if the source is a stream."""
        notes = self._state / (name or "_")
        notes.mkdir(parents=True, exist_ok=True)
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        stays = split.refs is not None or self._options.shuffle_seed is not None
        for number, refs in enumerate(self._planned(name, split, notes)):
            shard = _shard_name(number)
            stage = None if stays else refs[0].path
            note = str(notes / f"{shard}.json")
            yield ShardJob(str(self._folder / name), shard, refs, self._options, note, stage)

    def _planned(self, name: str, split: Split, notes: Path) -> Iterable[list[Ref]]:
        """The samples of each shard; those of a stream that is shuffled must all be there before the first."""

        def finished(number: int) -> int | None:
            shard = _shard_name(number)
            place, note = str(self._folder / name), notes / f"{shard}.json"
            done = finished_shard(place, shard, note, on_error=self._options.on_error)
            return done.listing if done is not None else None

        if split.refs is not None:
            return plan_shards(split.refs, self._options)
        if self._options.shuffle_seed is None:
            return staged(split, notes, self._options, finished)
        whole = [ref for shard in staged(split, notes, self._options, lambda _: None) for ref in shard]
        return plan_shards(whole, self._options)

    def remove_others(self, name: str, shards: Iterable[str]) -> None:
        """Removes shards that an earlier plan had in addition, because files were removed from the source since."""
        notes, kept = self._state / (name or "_"), {f"{shard}.json" for shard in shards}
        for note in sorted(notes.glob("shard-*.tar.json")):
            if note.name not in kept:
                _remove_shards(self._folder / name, [note.name.removesuffix(".json")])
                note.unlink()

    def finish(self) -> None:
        """Removes the notes: the dataset is complete."""
        done = self._folder / f"{STATE_FOLDER}-done-{os.getpid()}"
        os.rename(self._state, done)  # at once, so that nobody finds half of it
        shutil.rmtree(done)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _shard_name(number: int) -> str:
    return f"shard-{number:06}.tar"


def fingerprint_of(source: str, split: Split) -> int:
    """Identifies the data of a source; a function without a fingerprint is identified by its name."""
    return split.fingerprint if split.fingerprint is not None else crc32c(source.encode())


def _is_on_disk(split: Split) -> bool:
    return split.fingerprint is not None and not split.is_remote


def _is_dataset(folder: Path) -> bool:
    return any(folder.glob(MANIFEST_NAME)) or any(folder.glob(f"*/{MANIFEST_NAME}"))


def _remove_conversion(folder: Path, splits: Iterable[str]) -> None:
    """Removes what a conversion has made here, by its manifests and notes, and nothing else."""
    for place in sorted({folder, *(folder / name for name in splits)}):
        manifest = place / MANIFEST_NAME
        if not manifest.exists():
            continue
        shards = Manifest.from_text(read_shard_file(manifest), str(manifest)).shards
        remove_durably(manifest)  # first: with it, the dataset would claim to be whole
        _remove_shards(place, [shard.name for shard in shards])
    for note in (folder / STATE_FOLDER).glob("**/shard-*.tar.json"):
        split = note.parent.name
        _remove_shards(folder if split == "_" else folder / split, [note.name.removesuffix(".json")])
    for entry in (folder / STATE_FOLDER).iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != "lock":
            entry.unlink()


def _remove_shards(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        for path in (folder / name, folder / index_name(name), path_beside(folder / name)):
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.partial").unlink(missing_ok=True)


def _read_job(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_file(path))
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {}


def _is_same(begun: dict[str, Any], now: dict[str, Any]) -> bool:
    """True if two jobs have the same samples, wherever they lie now, and the same options."""
    return all(begun.get(entry) == now[entry] for entry in ("sources", "options"))


def _is_same_place(begun: dict[str, Any], now: dict[str, Any]) -> bool:
    """True if two jobs have the same options, splits and place; the samples may differ, as each shard lists its own."""
    same = all(begun.get(entry) == now[entry] for entry in ("place", "options"))
    return same and set(begun.get("sources", ())) == set(now["sources"])


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Describes the entries in which two jobs differ, in words."""
    old, new = (dict(_entries(job)) for job in (before, now))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} was {old.get(name)!r}, now {new.get(name)!r}" for name in names)


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _entries(inner, f"{name}.{key}" if name else key)
