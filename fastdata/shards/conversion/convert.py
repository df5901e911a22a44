"""Converts a source to shards: the same bytes for any number of workers, and after any number of interruptions.

The samples of a split are assigned to shards by their sizes in the source, before anything is written.  So a shard is a
function of its samples and of the options and can be made by any process.  Every finished shard leaves a note in the
folder `.conversion`, which identifies its samples.  When the conversion is run again, it makes only shards without a
note and shards whose samples have changed, because files were added to or removed from the source.  The manifest is
written last and the notes are removed, so a dataset with a manifest is complete.

    disk full        the unfinished shard is removed, the others are kept; free space and run it again
    kill -9          the file with a temporary name is overwritten by the next run
    store down       after some attempts the conversion ends; the next run goes on
    second run       is refused while the first one holds the lock
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastdata.errors import ConversionError, DatasetError, ShardError
from fastdata.jpeg_index.index_file import is_beside
from fastdata.shards.conversion.destination import Destination, fingerprint_of
from fastdata.shards.conversion.inputs import open_source
from fastdata.shards.conversion.job import KEPT, ConvertOptions, ShardDone, write_shard
from fastdata.shards.conversion.samples import Split
from fastdata.shards.engines import Engine, run_jobs
from fastdata.shards.format import MANIFEST_NAME, NO_LABEL, STATE_FOLDER, Manifest, ShardIndex, ShardInfo
from fastdata.shards.part_files import read_shard_file
from fastdata.shards.patterns import is_url, refuse_url
from fastdata.system.disk_space import space_errors
from fastdata.system.files import write_whole
from fastdata.terminal.words import counted

__all__ = ["ConvertOptions", "Summary", "convert"]


@dataclass
class Summary:
    """Summary of a conversion.

    Attributes:
        manifests: the manifest of each split.
        ignored: number of files in the source that were ignored because their names are not those of images, by split.
        unlabelled: number of samples without a label, by split.
        unpacked: number of JPEGs that were unpacked, by split; None if that was not asked for.
        was_finished: an earlier run had finished the conversion, so nothing was written.
    """

    manifests: dict[str, Manifest] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    unlabelled: dict[str, int] = field(default_factory=dict)
    unpacked: dict[str, int | None] = field(default_factory=dict)
    was_finished: bool = False

    def add(self, name: str, split: Split, manifest: Manifest, done: Sequence[ShardDone]) -> None:
        """Adds a split whose shards are finished."""
        self.manifests[name], self.ignored[name] = manifest, split.ignored
        unpacks = manifest.options["recoding"]["unpacked"]
        self.unpacked[name] = sum(each.unpacked for each in done) if unpacks else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, by split; the name of a dataset without splits is ""."""
        return {
            "was_finished": self.was_finished,
            "splits": {
                split: {
                    "images": manifest.samples,
                    "shards": len(manifest.shards),
                    "source_bytes": manifest.source["bytes"],
                    "shard_bytes": sum(shard.tar_bytes for shard in manifest.shards),
                    "skipped": [{"key": key, "reason": reason} for key, reason in manifest.skipped],
                    "ignored": self.ignored.get(split, 0),
                    "unlabelled": self.unlabelled.get(split, 0),
                    "unpacked": self.unpacked.get(split),
                }
                for split, manifest in self.manifests.items()
            },
        }

    def __str__(self) -> str:
        lines = ["converted before, by the same command; nothing was written"] if self.was_finished else []
        for split, manifest in self.manifests.items():
            before, after = manifest.source["bytes"], sum(shard.tar_bytes for shard in manifest.shards)
            lines.append(
                f"{split or 'dataset'}: {counted(manifest.samples, 'image')} in "
                f"{counted(len(manifest.shards), 'shard')}; "
                f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after; {len(manifest.skipped)} skipped"
            )
            if ignored := self.ignored.get(split):
                lines.append(f"  {counted(ignored, 'file')} without an image extension ignored")
            if (unpacked := self.unpacked.get(split)) is not None:
                kept = manifest.samples - unpacked
                lines.append(f"  {counted(unpacked, 'JPEG')} unpacked; {counted(kept, 'image')} stored as they are")
            if unlabelled := self.unlabelled.get(split):
                lines.append(
                    f"  {unlabelled} samples have no label (-1): no .cls beside the image, and no number as label, cls "
                    "or target in its .json"
                )
            lines += [f"  skipped {key}: {reason}" for key, reason in manifest.skipped]
        return "\n".join(lines)


def convert(
    source: str,
    destination: str | os.PathLike[str],
    options: ConvertOptions,
    *,
    workers: int = 1,
    engine: Engine = "processes",
    overwrite: bool = False,
    resume: bool = False,
    classes: list[str] | None = None,
    left_out: Collection[str] = (),
    progress: Callable[[ShardDone], object] | None = None,
    planned: Callable[[int | None], object] = lambda _: None,
) -> Summary:
    """Converts a source to shards with indices and a manifest.

    Args:
        source: see `inputs.open_source`.
        destination: a local folder; splits become folders inside.
        options: options of the conversion.
        workers: number of worker processes.
        engine: "processes" on this machine, or "ray", whose workers must have access to the same files.
        overwrite: remove an earlier conversion from `destination` first.
        resume: fail unless there is an unfinished conversion to continue.  Without it, an unfinished conversion of the
            same source with the same options is continued as well, and anything else in `destination` is an error.
        classes: class names by number, for sources without class names.
        left_out: paths of images in a folder that are not converted.
        progress: called with each finished shard (`ShardDone`).
        planned: called before each split with its number of images, or None for a stream.

    Raises:
        ConversionError: `destination` holds something else, the disk is full, or an image is unreadable.
        DatasetError: the source has nothing to convert.
        OptionError: `destination` is a URL.
        StoreError: the store that the source is in cannot be read.
    """
    refuse_url(destination)
    folder = Path(destination)
    _check_apart(source, os.fspath(destination))
    _remove_leftovers(folder)
    splits = open_source(source, classes=classes, left_out=left_out)
    _check_samples(splits, options)
    splits = _with_classes(splits, classes) if classes is not None else splits
    if not overwrite and (finished := _finished_before(folder, splits, options)) is not None:
        return replace(finished, was_finished=True)
    summary = Summary()
    held = Destination(folder, source, options, splits, overwrite=overwrite, resume=resume)
    with space_errors(folder, KEPT), held as place:
        for name, split in splits.items():
            planned(len(split.refs) if split.refs is not None else None)
            shards = run_jobs(write_shard, place.jobs(name, split), workers=workers, engine=engine)
            if not (done := list(_reported(shards, progress))):
                raise DatasetError(f"{source} has no samples{f' for {name}' if name else ''}; check the source")
            place.remove_others(name, [each.info.name for each in done])
            summary.add(name, split, _manifest(source, split, options, done), done)
            summary.unlabelled[name] = _unlabelled(folder / name, summary.manifests[name])
        for name, manifest in summary.manifests.items():
            write_whole(folder / name / MANIFEST_NAME, manifest.to_text().encode())
        place.finish()
    return summary


def _remove_leftovers(folder: Path) -> None:
    """Removes the notes of a run that was killed while it removed them."""
    for left in folder.glob(f"{STATE_FOLDER}-done-*"):
        shutil.rmtree(left, ignore_errors=True)


def _check_apart(source: str, destination: str) -> None:
    """Shards inside of their source would be found there the next time, and replacing a destination its own source."""
    here, there = _folder_of(destination), _folder_of(source)
    is_folder = os.path.isdir(source) or (is_url(source) and not source.endswith(".tar"))
    if here == there or (is_folder and (here.startswith(f"{there}/") or there.startswith(f"{here}/"))):
        raise ConversionError(
            f"the destination {destination} and the source {source} must not lie inside of each other; choose another "
            "destination"
        )


def _folder_of(name: str) -> str:
    """The folder that a path or URL names, or in which the files are that it names."""
    name = name.removeprefix("file://")
    if name.endswith(".tar"):
        name = name.rpartition("/")[0]
    return name.rstrip("/") if is_url(name) else os.path.realpath(name).replace(os.sep, "/")


def _with_classes(splits: dict[str, Split], classes: list[str]) -> dict[str, Split]:
    """The source's splits, with the names of classes that are given."""
    if any(split.classes not in (None, classes) for split in splits.values()):
        raise ConversionError("the source has its own class names, but others are given (--classes); leave them out")
    return {name: replace(split, classes=classes) for name, split in splits.items()}


def _reported(finished: Iterable[ShardDone], progress: Callable[[ShardDone], object] | None) -> Iterator[ShardDone]:
    for done in finished:
        if progress is not None:
            progress(done)
        yield done


def _manifest(source: str, split: Split, options: ConvertOptions, done: Sequence[ShardDone]) -> Manifest:
    done = sorted(done, key=lambda each: each.info.name)
    return Manifest(
        classes=split.classes,
        shards=[each.info for each in done],
        options=options.to_dict(),
        skipped=[entry for each in done for entry in each.skipped],
        source={
            "samples": sum(each.source_samples for each in done),
            "bytes": sum(each.source_bytes for each in done),
            "fingerprint": fingerprint_of(source, split),
        },
    )


def _check_samples(splits: dict[str, Split], options: ConvertOptions) -> None:
    """Raises ConversionError for the first listed sample that the source cannot make, unless such are to be skipped."""
    if options.on_error == "skip":
        return
    problems = (ref.problem for split in splits.values() for ref in split.refs or () if ref.problem)
    if (problem := next(problems, None)) is not None:
        raise ConversionError(f"{problem}; repair or remove it, or skip such samples with --on-error skip")


def _finished_before(folder: Path, splits: dict[str, Split], options: ConvertOptions) -> Summary | None:
    """Summary of an earlier run of this conversion; None if it is not whole or the source has no fingerprint."""
    if (folder / STATE_FOLDER).exists():
        return None
    summary = Summary()
    for name, split in splits.items():
        manifest = _whole_manifest(folder / name) if split.fingerprint is not None else None
        if manifest is None or manifest.options != options.to_dict():
            return None
        if manifest.source["fingerprint"] != split.fingerprint or manifest.classes != split.classes:
            return None
        summary.manifests[name] = manifest
        summary.unlabelled[name] = _unlabelled(folder / name, manifest)
    return summary


def _whole_manifest(folder: Path) -> Manifest | None:
    """The manifest of a split that is there with all its shards."""
    path = folder / MANIFEST_NAME
    if not path.exists():
        return None
    manifest = Manifest.from_text(read_shard_file(path), str(path))
    return manifest if all(_is_there(folder, shard) for shard in manifest.shards) else None


def _unlabelled(folder: Path, manifest: Manifest) -> int:
    """Number of samples without a label, by the shards' indices."""
    indexes = (ShardIndex.from_bytes(read_shard_file(folder / each.index_name), each.name) for each in manifest.shards)
    return sum(int((index.records["label"] == NO_LABEL).sum()) for index in indexes)


def _is_there(folder: Path, shard: ShardInfo) -> bool:
    path = folder / shard.name
    try:
        index = ShardIndex.from_bytes(read_shard_file(folder / shard.index_name), shard.index_name)
        return path.stat().st_size == shard.tar_bytes and is_beside(path, index.jpeg_bytes)
    except (FileNotFoundError, ShardError):
        return False
