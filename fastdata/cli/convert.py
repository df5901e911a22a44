"""`fastdata convert`: converts images to shards, or estimates what that takes."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastdata.cli.output import add_output, add_workers, tell, wants_text
from fastdata.cli.problems import add_options, left_out_of, summary_of
from fastdata.cli.verify import check_datasets
from fastdata.errors import OptionError
from fastdata.shards.conversion.convert import convert
from fastdata.shards.conversion.inputs import open_source
from fastdata.shards.conversion.job import ON_ERROR, ConvertOptions, ShardDone, ShardJob, write_shard
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.conversion.samples import Split
from fastdata.shards.conversion.shard_plan import plan_shards
from fastdata.shards.engines import ENGINES
from fastdata.shards.records import Ref
from fastdata.terminal.progress import Progress
from fastdata.terminal.words import counted

__all__ = ["ConversionProgress", "add_convert"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRIED_IN_DRY_RUN = 64

_CONVERT = """Converts images to shards: tar files with WebDataset's naming, each with an index, and one manifest.

SOURCE  one of: a folder with one folder of images per class; a folder with train/ and val/ of such folders, which
        become two datasets; tar files (a folder, one file, or a pattern like "a-{000..009}.tar"), whose captions and
        other fields are kept; the URL of one of these in a store that fsspec knows.  For anything else (annotations,
        tables, Hugging Face datasets): --from module:function, a Python function that yields dictionaries of fields
        ("__key__", "jpg", "cls", "json", ...), or (key, bytes, label) with integer labels; see examples/convert_*.py
DEST    a local folder.  The result is the same for any number of workers.  Run the same command again to continue an
        interrupted conversion.

Re-encoded images keep EXIF orientation and ICC profile and lose other metadata; raw pixels have no metadata."""

_SHUFFLE = """write samples in a random order drawn from this seed; samples of functions and stores, which can
only be read in order, are all copied beside the shards first, which needs disk space for the data twice"""


def add_convert(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "convert",
        help="convert an image folder, tar files, or what a Python function yields to shards",
        description=_CONVERT,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", help="what to convert")
    parser.add_argument("destination", metavar="DEST", help="local folder for the shards")
    parser.add_argument("--from", dest="function", metavar="MODULE:FUNCTION", help="a function that yields the samples")
    parser.add_argument(
        "--shard-size", type=_size, default=256 << 20, help="bytes of source data per shard, such as 256M (the default)"
    )
    parser.add_argument("--shuffle-seed", type=int, help=_SHUFFLE)
    _add_recoding(parser)
    parser.add_argument(
        "--on-error",
        choices=ON_ERROR,
        default="raise",
        help="what to do with an image that cannot be read or decoded: raise ends the conversion, skip leaves it out "
        "and lists it (default: %(default)s)",
    )
    add_options(parser, on_error=None)
    parser.add_argument(
        "--classes",
        type=Path,
        help="a text file with one class name per line, class 0 first: the numbers for labels that are class names "
        "(default: the names that occur, in sorted order)",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default="processes", help="how to run the conversion (default: %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier conversion in DEST")
    parser.add_argument(
        "--resume", action="store_true", help="only continue an interrupted conversion; fail if there is none"
    )
    parser.add_argument("--verify", action="store_true", help="read and decode everything again at the end")
    parser.add_argument("--dry-run", action="store_true", help="only estimate the size and the time")
    add_workers(parser)
    add_output(parser)
    parser.set_defaults(run=_convert, when_interrupted="; run the same command again to continue")


def _add_recoding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-side", type=int, help="shrink images whose longer side exceeds this many pixels")
    parser.add_argument("--min-side", type=int, help="shrink images whose shorter side exceeds this many pixels")
    parser.add_argument(
        "--quality",
        type=int,
        help="JPEG quality of re-encoded images, 1 to 100 (90); if given, every image is re-encoded",
    )
    parser.add_argument(
        "--lossless",
        action="store_true",
        help="repack JPEGs where this makes them smaller (baseline, optimised Huffman tables); every repacked image is "
        "checked to have the same pixels",
    )
    parser.add_argument(
        "--raw",
        type=int,
        metavar="SIZE",
        help="store raw pixels instead of JPEG, after shrinking the longer side to SIZE",
    )
    parser.add_argument(
        "--unpacked",
        action="store_true",
        help="store JPEGs (as they are, or as the options above make them) with open coefficients: about 1.2 times the "
        "bytes, decoded by the native backend in half the time; only fastdata reads them, fastdata restore makes the "
        "same files of them again; damaged and unusual JPEGs and other formats stay as they are",
    )


def _size(text: str) -> int:
    """Bytes, with an optional K, M, G or T (powers of 1024), for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 256M, 1G or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _options(given: argparse.Namespace) -> ConvertOptions:
    recoding = Recoding(
        max_side=given.max_side,
        min_side=given.min_side,
        quality=given.quality,
        lossless=given.lossless,
        raw=given.raw,
        unpacked=given.unpacked,
    )
    return ConvertOptions(
        shard_bytes=given.shard_size, shuffle_seed=given.shuffle_seed, recoding=recoding, on_error=given.on_error
    )


class ConversionProgress(Progress):
    """Shows on stderr how many images are converted, with images/s, MB/s and the time left."""

    def __init__(self, **options: Any) -> None:
        super().__init__(None, unit="image", what="converted", **options)
        self._bytes = 0

    def add(self, done: ShardDone) -> None:
        """Counts the images of a finished shard."""
        self._bytes += done.source_bytes
        seconds = max(self._clock() - self._began, 1e-9)
        self.update(f"{self._bytes / 1e6 / seconds:.0f} MB/s", steps=done.source_samples)


def _convert(given: argparse.Namespace) -> None:
    options, source = _options(given), _source(given)
    destination: str = given.destination
    if given.dry_run:
        _estimate(source, given, options)
        return
    progress = ConversionProgress(hidden=given.quiet)
    if Path(destination).is_file():
        raise OptionError(f"DEST {destination} is a file; name a folder")
    if given.classes is not None and not given.classes.is_file():
        raise OptionError(f"--classes {given.classes}: there is no such file")
    problems = left_out_of(Path(source), given)
    try:
        summary = convert(
            source,
            destination,
            options,
            workers=given.workers,
            engine=given.engine,
            overwrite=given.overwrite,
            resume=given.resume,
            classes=given.classes.read_text().splitlines() if given.classes is not None else None,
            left_out={problem.path for problem in problems},
            progress=progress.add,
            planned=lambda images: progress.expect(images) if images is not None else None,
        )
    finally:
        progress.close()
    told = "\n".join([str(summary), *([summary_of(problems)] if problems else [])])
    document = {"destination": destination, **summary.to_dict(), "left_out": [each.path for each in problems]}
    if not given.verify:
        tell(given, told, document)
        return
    if wants_text(given):
        print(told)
    places = [f"{destination.rstrip('/')}/{split}" if split else destination for split in summary.manifests]
    check_datasets(given, destination, places, decode=True, document=document)


def _source(given: argparse.Namespace) -> str:
    """The function or the place that is to be converted."""
    if (given.function is None) == (given.source is None):
        raise OptionError("name either SOURCE or --from MODULE:FUNCTION")
    if given.function is not None and ":" not in given.function:
        raise OptionError(f"--from {given.function} is not like module:function")
    source: str = given.function or given.source
    return source


def _estimate(source: str, given: argparse.Namespace, options: ConvertOptions) -> None:
    """Converts a few images of each split into a temporary folder and multiplies."""
    splits: dict[str, Any] = {}
    for name, split in open_source(source).items():
        splits[name] = _estimate_split(split, options, given.workers) if split.refs is not None else None
        if wants_text(given):
            print(_estimate_in_words(name, splits[name], options, given.workers))
    if given.json:
        tell(given, "", {"splits": splits, "workers": given.workers})


def _estimate_split(split: Split, options: ConvertOptions, workers: int) -> dict[str, Any]:
    """Estimates a conversion from some of the images, as plain values."""
    assert split.refs is not None
    step = max(1, len(split.refs) // _TRIED_IN_DRY_RUN)
    tried: list[Ref] = split.refs[::step]
    total, part = (sum(ref.size for ref in refs) for refs in (split.refs, tried))
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        job = ShardJob(scratch, "dry-run.tar", tried, replace(options, on_error="skip"), f"{scratch}/note")
        done = write_shard(job)
        seconds = time.monotonic() - began
    scale = total / max(part, 1)
    return {
        "images": len(split.refs),
        "source_bytes": total,
        "shard_bytes": round(done.info.tar_bytes * scale),
        "shards": len(plan_shards(split.refs, options)),
        "seconds": seconds * scale / max(workers, 1),
        "tried": len(tried),
        "unreadable": len(done.skipped),
    }


def _estimate_in_words(name: str, found: dict[str, Any] | None, options: ConvertOptions, workers: int) -> str:
    if found is None:
        told = f"{name or 'dataset'}: a stream, whose length is unknown until it has been read"
        if options.shuffle_seed is not None:
            told += "\n  --shuffle-seed copies all of it beside the shards first: have twice its size free on the disk"
        return told
    unreadable = f", {found['unreadable']} of them unreadable" if found["unreadable"] else ""
    return (
        f"{name or 'dataset'}: {counted(found['images'], 'image')}, {found['source_bytes'] / 1e6:.1f} MB → about "
        f"{found['shard_bytes'] / 1e6:.1f} MB in {counted(found['shards'], 'shard')}, about "
        f"{found['seconds']:.0f} s with {counted(workers, 'worker')} "
        f"(from {counted(found['tried'], 'image')}{unreadable})"
    )
