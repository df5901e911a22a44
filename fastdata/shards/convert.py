"""Converts a source to shards: the same bytes for any number of workers, and after any number of interruptions.

The samples of a split are cut into shards by their sizes in the source, before anything is written, so a shard is a
function of its samples and of the options and can be made anywhere.  Every finished shard leaves a note in the folder
`.conversion`; whoever runs the conversion again makes only what has none.  The manifest is written last and the notes
are removed, so a dataset with a manifest is whole.

    out of disk      the shard under way is removed, the others stay; run it again with more room
    kill -9          a file under a temporary name is written over by the next run
    another run      is refused while the first holds the lock
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import ConversionError, OptionError
from fastdata.shards.engines import run_jobs
from fastdata.shards.format import MANIFEST_NAME, Manifest, ShardInfo, crc32c, index_name
from fastdata.shards.inputs import SPLIT_NAMES, Ref, Split, open_source, read_file
from fastdata.shards.recode import Recoding
from fastdata.shards.tar import BLOCK, END_OF_ARCHIVE, padding
from fastdata.shards.writer import ShardWriter, remove_durably, write_whole

__all__ = ["ConvertOptions", "Summary", "convert", "plan_shards", "write_shard"]

STATE_FOLDER = ".conversion"
ON_ERROR = ("raise", "skip")

_SAMPLE_OVERHEAD = 3 * BLOCK  # two headers and a label


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """How to convert.

    Attributes:
        shard_bytes: a shard is closed before it would hold more of the source than this.
        shuffle_seed: draws the order in which samples are written; None keeps the source's.
        recoding: what is done to every image.
        on_error: what an unreadable image does: "raise", or "skip", which notes it in the manifest.
    """

    shard_bytes: int = 256 << 20
    shuffle_seed: int | None = None
    recoding: Recoding = field(default_factory=Recoding)
    on_error: str = "raise"

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise OptionError(f"shard_bytes={self.shard_bytes} is not above 0")
        if self.on_error not in ON_ERROR:
            raise OptionError(f"on_error={self.on_error!r} is not accepted; use one of {', '.join(ON_ERROR)}")

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides the bytes, as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class ShardJob:
    """One shard to be made.

    Attributes:
        folder: where it goes.
        name: its file name.
        refs: its samples.
        options: how.
        note: the file that says it is done.
    """

    folder: str
    name: str
    refs: list[Ref]
    options: ConvertOptions
    note: str


@dataclass(frozen=True)
class ShardDone:
    """What became of a shard: how the manifest knows it, of which samples, what was read, what was left out."""

    info: ShardInfo
    listing: int
    source_samples: int
    source_bytes: int
    skipped: list[tuple[str, str]]

    def to_text(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ShardDone:
        """Reads what `to_text` wrote."""
        content = json.loads(text)
        skipped = [(key, reason) for key, reason in content["skipped"]]
        return cls(
            ShardInfo(**content["info"]),
            content["listing"],
            content["source_samples"],
            content["source_bytes"],
            skipped,
        )


@dataclass
class Summary:
    """What a conversion did.

    Attributes:
        manifests: by split.
        ignored: files of the source that are no images by their names, by split.
    """

    manifests: dict[str, Manifest] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        for split, manifest in self.manifests.items():
            before, after = manifest.source["bytes"], sum(shard.tar_bytes for shard in manifest.shards)
            lines.append(
                f"{split or 'dataset'}: {manifest.samples} images in {len(manifest.shards)} shards; "
                f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after; {len(manifest.skipped)} skipped"
            )
            if ignored := self.ignored.get(split):
                lines.append(f"  {ignored} files with other names than images were left out")
            lines += [f"  skipped {key}: {reason}" for key, reason in manifest.skipped]
        return "\n".join(lines)


def convert(
    source: str,
    destination: str | os.PathLike[str],
    options: ConvertOptions,
    *,
    workers: int = 1,
    engine: str = "processes",
    overwrite: bool = False,
    resume: bool = False,
    columns: tuple[str | None, str | None] = (None, None),
    progress: Callable[[ShardDone], object] | None = None,
    planned: Callable[[int | None], object] | None = None,
) -> Summary:
    """Converts a source to shards with indices and a manifest.

    Args:
        source: see `inputs.open_source`.
        destination: a folder; splits become folders inside.
        options: what decides the bytes.
        workers: processes that make shards.
        engine: "processes" of this machine, or "ray", whose workers must see the same files.
        overwrite: remove what was converted into `destination` before.
        resume: insist on continuing an unfinished conversion; without it one of the same source and options is
            continued, too, and anything else is an error.
        columns: Parquet's columns of images and labels.
        progress: called with each `ShardDone`.
        planned: called before each split with its number of images, None for a stream.

    Raises:
        ConversionError: `destination` holds something else, the disk is full, or an image is unreadable.
        DatasetError: the source has nothing to convert.
    """
    folder = Path(destination)
    _check_apart(source, folder)
    for left in folder.glob(f"{STATE_FOLDER}-done-*"):  # a run was killed while it removed its notes
        shutil.rmtree(left, ignore_errors=True)
    splits = open_source(source, image_column=columns[0], label_column=columns[1])
    if not overwrite and (finished := _finished_before(folder, source, splits, options)) is not None:
        return finished
    summary = Summary()
    with _Workplace(folder, source, options, splits, overwrite=overwrite, resume=resume) as workplace:
        for name, split in splits.items():
            target = folder / name
            target.mkdir(parents=True, exist_ok=True)
            if planned is not None:
                planned(len(split.refs) if split.refs is not None else None)
            jobs = workplace.jobs(name, split)
            with _space_errors(folder):
                shards = run_jobs(write_shard, jobs, workers=workers, engine=engine)
                done = list(_reported(shards, progress))
            summary.ignored[name] = split.ignored
            summary.manifests[name] = _manifest(source, split, options, done)
        for name, manifest in summary.manifests.items():
            write_whole(folder / name / MANIFEST_NAME, manifest.to_text().encode())
        workplace.finish()
    return summary


def _check_apart(source: str, folder: Path) -> None:
    """Shards inside of their source would be found there the next time, and replacing a destination its own source."""
    if not os.path.isdir(source):
        return
    here, there = folder.resolve(), Path(source).resolve()
    if here.is_relative_to(there) or there.is_relative_to(here):
        raise ConversionError(f"{folder} and the source {source} lie inside of each other; choose another destination")


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
            "fingerprint": _fingerprint(source, split),
        },
    )


# ---- one shard


def write_shard(job: ShardJob) -> ShardDone:
    """Makes one shard, unless its note says that it is there.

    Raises:
        ConversionError: an image is unreadable, or the disk is full.
    """
    finished = _finished(job)
    if finished is not None:
        return finished
    skipped: list[tuple[str, str]] = []
    source_bytes = 0
    with _space_errors(job.folder):
        with ShardWriter(Path(job.folder), job.name) as writer, _Ranges() as ranges:
            for ref in job.refs:
                try:
                    data = ranges.read(ref)
                    source_bytes += len(data)
                    image = job.options.recoding.apply(data)
                except Exception as error:
                    if job.options.on_error == "raise":
                        raise ConversionError(
                            f"{ref.path} ({ref.key}) cannot be converted: {_in_words(error)}; repair or remove it, or "
                            "skip such files with --on-error skip"
                        ) from error
                    skipped.append((ref.key, _in_words(error)))
                    continue
                writer.add(ref.key, image.extension, image.data, ref.label, image.width, image.height)
            done = ShardDone(writer.finish(), _listing(job.refs), len(job.refs), source_bytes, skipped)
        write_whole(Path(job.note), done.to_text().encode())
    return done


@contextlib.contextmanager
def _space_errors(folder: str | Path) -> Iterator[None]:
    """Says what to do when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConversionError(
            f"no space left in {folder}; the shards before it are whole: make room and run the same command again, "
            "which continues"
        ) from error


def _in_words(error: Exception) -> str:
    """What went wrong, the same in every run: no addresses of objects, no paths."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    return "not an image that Pillow can identify" if text.startswith("cannot identify image file") else text


def _finished(job: ShardJob) -> ShardDone | None:
    folder = Path(job.folder)
    try:
        done = ShardDone.from_text(Path(job.note).read_text())
        whole = (folder / job.name).stat().st_size == done.info.tar_bytes
        index = (folder / index_name(job.name)).read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    same = done.listing == _listing(job.refs) and crc32c(index) == done.info.index_crc32c
    return done if whole and same else None


def _listing(refs: Iterable[Ref]) -> int:
    """A checksum of which samples these are."""
    lines = "\n".join(f"{ref.key}\t{ref.label}\t{ref.size}" for ref in refs)
    return crc32c(lines.encode("utf-8", "backslashreplace"))


class _Ranges:
    """Reads samples, keeping the file of the latest one open."""

    def __init__(self) -> None:
        self._path, self._file = "", -1

    def read(self, ref: Ref) -> bytes:
        data = read_file(ref.path) if ref.offset == 0 else self._read_part(ref)  # 0: a file of its own
        if len(data) != ref.size:
            raise ConversionError(f"it had {ref.size} bytes when it was listed and has {len(data)} now")
        return data

    def _read_part(self, ref: Ref) -> bytes:
        if ref.path != self._path:
            self.close()
            self._path, self._file = ref.path, os.open(ref.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        os.lseek(self._file, ref.offset, os.SEEK_SET)
        data = b""
        while len(data) < ref.size and (more := os.read(self._file, ref.size - len(data))):
            data += more
        return data

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> _Ranges:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- the plan


def plan_shards(refs: Sequence[Ref], options: ConvertOptions) -> list[list[Ref]]:
    """The samples of each shard, in order."""
    order: Iterable[int] = range(len(refs))
    if options.shuffle_seed is not None:
        order = _permutation(len(refs), options.shuffle_seed)
    shards: list[list[Ref]] = []
    room = 0
    for position in order:
        ref = refs[position]
        size = _stored_bytes(ref.size)
        if not shards or size > room:
            shards.append([])
            room = options.shard_bytes - len(END_OF_ARCHIVE)
        shards[-1].append(ref)
        room -= size
    return shards


def _stored_bytes(size: int) -> int:
    return size + padding(size) + _SAMPLE_OVERHEAD


def _permutation(count: int, seed: int) -> list[int]:
    """A random order that is the same everywhere: samples sorted by words of a counter-based generator."""
    from fastdata.views import Key, philox4x32

    words = philox4x32((np.arange(count), 0, 0, 0), Key(seed=seed, epoch=0).words())
    order: list[int] = np.argsort(words[0] << np.uint64(32) | words[1], kind="stable").tolist()
    return order


class _Workplace:
    """The destination while it is worked on: its lock, what is being converted, notes on finished shards."""

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
        fingerprints = {name: _fingerprint(source, split) for name, split in splits.items()}
        self._content = json.dumps({"sources": fingerprints, "options": options.to_dict()}, indent=1)
        self._overwrite, self._resume = overwrite, resume
        self._lock: Any = None

    def __enter__(self) -> _Workplace:
        if self._resume and not (self._state / "job.json").exists():
            raise ConversionError(f"there is no unfinished conversion to resume in {self._folder}")
        self._folder.mkdir(parents=True, exist_ok=True)
        job = self._state / "job.json"
        others = [entry.name for entry in os.scandir(self._folder) if not entry.name.startswith(STATE_FOLDER)]
        if not job.exists() and others and not self._overwrite:
            what = "a converted dataset" if _is_dataset(self._folder) else f"{len(others)} other files and folders"
            raise ConversionError(
                f"{self._folder} already holds {what}; choose another destination, or --overwrite to replace what was "
                "converted into it"
            )
        self._state.mkdir(exist_ok=True)
        self._lock = _locked(self._state / "lock")
        try:
            if self._overwrite and not (job.exists() and job.read_text() == self._content):
                _remove_conversion(self._folder)
            self._check_same_job()
        except BaseException:
            self._lock.close()
            raise
        return self

    def _check_same_job(self) -> None:
        job = self._state / "job.json"
        if job.exists() and job.read_text() != self._content:
            raise ConversionError(
                f"{self._folder} holds an unfinished conversion of another source or with other options:\n"
                f"{job.read_text()}\nnow asked for:\n{self._content}\nrepeat it as it was begun, or --overwrite it"
            )
        write_whole(job, self._content.encode())

    def jobs(self, name: str, split: Split) -> Iterator[ShardJob]:
        """The shards of a split, planned one after the other where the source is a stream."""
        notes = self._state / (name or "_")
        notes.mkdir(parents=True, exist_ok=True)
        if split.refs is not None:
            shards: Iterable[list[Ref]] = plan_shards(split.refs, self._options)
        elif self._options.shuffle_seed is None:
            shards = _staged(split, notes, self._options)
        else:
            unshuffled = replace(self._options, shuffle_seed=None)
            shards = plan_shards([ref for shard in _staged(split, notes, unshuffled) for ref in shard], self._options)
        for number, refs in enumerate(shards):
            shard = f"shard-{number:06}.tar"
            yield ShardJob(str(self._folder / name), shard, refs, self._options, str(notes / f"{shard}.json"))

    def finish(self) -> None:
        """Removes the notes: the dataset is whole."""
        done = self._folder / f"{STATE_FOLDER}-done-{os.getpid()}"
        os.rename(self._state, done)  # at once, so that nobody finds half of it
        shutil.rmtree(done)

    def __exit__(self, *_: object) -> None:
        self._lock.close()


def _staged(split: Split, folder: Path, options: ConvertOptions) -> Iterator[list[Ref]]:
    """Puts a stream down in files of a shard's size, from which workers read; yields each when it is full."""
    assert split.stream is not None
    refs: list[Ref] = []
    room, number = 0, 0
    stage: Any = None
    try:
        for key, data, label in split.stream():
            size = _stored_bytes(len(data))
            if stage is None or size > room:
                if stage is not None:
                    stage.close()
                    yield refs
                path = folder / f"stage-{number:06}.bin"
                stage, refs, room = open(path, "wb"), [], options.shard_bytes - len(END_OF_ARCHIVE)  # noqa: SIM115
                stage.write(b"\0")  # an offset of 0 means a file of its own
                number += 1
            refs.append(Ref(key, label, str(path), stage.tell(), len(data)))
            stage.write(data)
            room -= size
        if stage is not None:
            stage.close()
            yield refs
    finally:
        if stage is not None:
            stage.close()


def _fingerprint(source: str, split: Split) -> int:
    """Tells one source from another: a checksum of its listing, or what a stream says of itself."""
    if split.refs is not None:
        return _listing(split.refs)
    return split.fingerprint if split.fingerprint is not None else crc32c(source.encode())


def _finished_before(folder: Path, source: str, splits: dict[str, Split], options: ConvertOptions) -> Summary | None:
    """What this very conversion has already made, if it is whole and the source can be told from another."""
    if (folder / STATE_FOLDER).exists():
        return None
    summary = Summary()
    for name, split in splits.items():
        path = folder / name / MANIFEST_NAME
        if not path.exists() or (split.refs is None and split.fingerprint is None):
            return None
        manifest = Manifest.from_text(path.read_bytes(), str(path))
        same = manifest.options == options.to_dict() and manifest.source["fingerprint"] == _fingerprint(source, split)
        if not same or not all(_is_there(folder / name, shard) for shard in manifest.shards):
            return None
        summary.manifests[name] = manifest
    return summary


def _is_there(folder: Path, shard: ShardInfo) -> bool:
    try:
        size = (folder / shard.name).stat().st_size
    except FileNotFoundError:
        return False
    return size == shard.tar_bytes and (folder / shard.index_name).exists()


def _is_dataset(folder: Path) -> bool:
    return any(folder.glob(MANIFEST_NAME)) or any(folder.glob(f"*/{MANIFEST_NAME}"))


def _remove_conversion(folder: Path) -> None:
    """Removes what a conversion has made here, by its manifests and notes, and nothing else."""
    for place in (folder, *(folder / name for name in SPLIT_NAMES)):
        manifest = place / MANIFEST_NAME
        if not manifest.exists():
            continue
        shards = Manifest.from_text(manifest.read_bytes(), str(manifest)).shards
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
        for path in (folder / name, folder / index_name(name), folder / f".{name}.partial"):
            path.unlink(missing_ok=True)


def _locked(path: Path) -> Any:
    """An open file that nobody else holds; the system lets go of it when a process dies."""
    file = open(path, "w")  # noqa: SIM115 - held until the conversion ends
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows refuses to open a file twice for writing where it matters
        pass
    except OSError as error:
        file.close()
        raise ConversionError(f"{path.parent.parent} is being converted by another process") from error
    return file
