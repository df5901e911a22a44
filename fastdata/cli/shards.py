"""The `fastdata` commands for shards: convert, verify, index, inspect."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.cli.folders import datasets_in
from fastdata.cli.inspect import add_inspect
from fastdata.cli.output import add_output, tell, wants_text
from fastdata.cli.problems import add_options, left_out_of, summary_of
from fastdata.errors import DatasetError, OptionError, ShardError
from fastdata.jpeg_index.make import images_below, make_index
from fastdata.shards.conversion.convert import convert, local_folder
from fastdata.shards.conversion.fields import parse_fields
from fastdata.shards.conversion.inputs import open_source
from fastdata.shards.conversion.job import ON_ERROR, ConvertOptions, ShardJob, write_shard
from fastdata.shards.conversion.progress import ConversionProgress
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.conversion.restore import check_empty, restore_folder
from fastdata.shards.conversion.samples import Split
from fastdata.shards.conversion.shard_plan import plan_shards
from fastdata.shards.engines import ENGINES
from fastdata.shards.make_index import index_elsewhere, index_folder
from fastdata.shards.records import Ref
from fastdata.shards.verify import Fault, verify_folder
from fastdata.system.cpus import auto_threads, parse_workers
from fastdata.terminal.flags import argument
from fastdata.terminal.progress import Progress
from fastdata.terminal.words import counted

__all__ = ["add_commands"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRIED_IN_DRY_RUN = 64


def add_commands(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    convert_parser = commands.add_parser(
        "convert",
        help="convert an image folder, tar or Parquet files to shards",
        description=_CONVERT,
    )
    _add_convert_arguments(convert_parser)
    convert_parser.set_defaults(run=_convert, when_interrupted="; run the same command again to continue")

    verify = commands.add_parser(
        "verify", help="check every index and checksum of a dataset, and every image with --decode"
    )
    verify.add_argument(
        "dataset", help="a folder written by fastdata convert, or its URL (with splits: of one of them)"
    )
    verify.add_argument("--decode", action="store_true", help="also decode every image")
    _add_workers(verify)
    add_output(verify)
    verify.set_defaults(run=_verify)

    index = commands.add_parser(
        "index",
        help="index the JPEGs of a folder or of shards, so that windows of them are decoded cheaper",
        description=_INDEX,
    )
    index.add_argument(
        "dataset",
        help="a folder of images, or of tar files that follow WebDataset's naming; with --to also a pattern of tar "
        "files, or their URLs",
    )
    index.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="where to keep the index.  Of tar files, which then stay as they are, also read-only or remote ones: the "
        "folder that ShardDataset opens.  Of a folder of images: set FASTDATA_INDEX_DIR to it for programs that load "
        "it (default: the folder itself, or $XDG_CACHE_HOME/fastdata/indexes for a read-only one; both are searched)",
    )
    _add_workers(index)
    add_output(index)
    index.add_argument(
        "--force",
        action="store_true",
        help="replace the index even if the tar file no longer has the checksum in its index",
    )
    add_options(index, on_error="skip")
    index.set_defaults(run=_index)

    _add_restore(commands)

    add_inspect(commands)


def _add_restore(commands: Any) -> None:
    restore = commands.add_parser(
        "restore",
        help="write the images of a dataset into files again, with the bytes and the names that they had; images that "
        "were stored in another format, and those of shards of earlier versions, are named by their keys",
    )
    restore.add_argument("dataset", type=Path, help="a folder written by fastdata convert")
    restore.add_argument("destination", type=Path, metavar="DEST", help="a folder that is empty or does not exist")
    restore.add_argument("--resume", action="store_true", help="go on in a DEST that has files of an earlier run")
    restore.add_argument(
        "--on-error", choices=ON_ERROR, default="raise", help="skip: list damaged images and go on with the others"
    )
    _add_workers(restore)
    restore.set_defaults(run=_restore, when_interrupted="; run the same command with --resume to continue")


_INDEX = """Writes where the rows of every JPEG begin in its data, by which crops are decoded without what is around.

The images are not changed, and neither are the pixels.  The index of a folder is one hidden file in it, by names
relative to the folder: it stays right where the folder is copied, moved or mounted.  For a folder that is read-only it
is kept in a cache folder.  Images that have changed since are decoded as before; run the command again to index them,
which keeps the others' indexes.  Tar files get theirs beside them, with index files for their samples and a
manifest, as fastdata convert writes them."""

_CONVERT = """Converts images to shards: tar files with WebDataset's naming, each with an index, and one manifest.

SOURCE  one of: a folder with one folder of images per class; a folder with train/ and val/ of such folders, which
        become two datasets; any folder of images, with --fields or --annotations; tar files (a folder, one file, or a
        pattern like "a-{000..009}.tar", also URLs), whose captions and other fields are kept; a .csv, .tsv or .jsonl
        table with the paths of images; Parquet files with encoded images, or a folder of them as Hugging Face lays it
        out or saves it; or module:function, a Python function that yields (key, bytes, label) with integer labels, or
        dictionaries of fields ("__key__", "jpg", "cls", "json", ...)
DEST    a local folder; copy it to a remote store when the conversion is complete.  The result is the same for any
        number of workers.  Run the same command again to continue an interrupted conversion.

Re-encoded images keep EXIF orientation and ICC profile and lose other metadata; raw pixels have no metadata."""

_SHUFFLE = """write samples in a random order drawn from this seed; samples from Parquet files and functions, which can
only be read in order, are all copied beside the shards first, which needs disk space for the data twice"""


_FIELDS = """what to store beside image and class, by the extension that it gets: txt, json, mask.png.  PLACE is a
column of a table ("json=*": all columns but the image's), or a folder with a file per image; by default the column of
that name, or the file beside the image: 1.mask.png for 1.jpg"""

_ANNOTATIONS = """annotations of a folder of images, stored as json: one or more COCO files (instances, captions, ...),
or a folder of Pascal VOC XML files; images without annotations are left out"""


def _add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="what to convert")
    parser.add_argument("destination", metavar="DEST", help="local folder for the shards")
    parser.add_argument(
        "--shard-size", type=_size, default=256 << 20, help="bytes of source data per shard, such as 256M (the default)"
    )
    parser.add_argument("--shuffle-seed", type=int, help=_SHUFFLE)
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
    parser.add_argument(
        "--on-error",
        choices=ON_ERROR,
        default="raise",
        help="what to do with an unreadable image (default: raise); images that are stored unchanged are not decoded, "
        "only their headers are read: use --verify to decode them all",
    )
    add_options(parser, on_error=None)
    parser.add_argument("--image-column", help="column of a table with encoded images, or with their paths")
    parser.add_argument("--label-column", help="column of a table with labels")
    parser.add_argument("--fields", nargs="+", default=[], metavar="NAME[=PLACE]", help=_FIELDS)
    parser.add_argument("--annotations", nargs="+", default=[], metavar="PATH", help=_ANNOTATIONS)
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
    _add_workers(parser)
    add_output(parser)


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=argument(partial(parse_workers, least=1)),
        default=auto_threads(),
        help="number of worker processes (default: one per usable CPU)",
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


def _convert(given: argparse.Namespace) -> None:
    options, columns = _options(given), (given.image_column, given.label_column)
    destination = local_folder(given.destination)
    if given.dry_run:
        _estimate(given, options, columns)
        return
    progress = ConversionProgress(hidden=given.quiet)
    if destination.is_file():
        raise OptionError(f"DEST {destination} is a file; name a folder")
    if given.classes is not None and not given.classes.is_file():
        raise OptionError(f"--classes {given.classes}: there is no such file")
    problems = left_out_of(Path(given.source), given)
    try:
        summary = convert(
            given.source,
            destination,
            options,
            workers=given.workers,
            engine=given.engine,
            overwrite=given.overwrite,
            resume=given.resume,
            columns=columns,
            classes=given.classes.read_text().splitlines() if given.classes is not None else None,
            left_out={problem.path for problem in problems},
            fields=parse_fields(given.fields),
            annotations=given.annotations,
            progress=progress.add,
            planned=progress.plan,
        )
    finally:
        progress.close()
    told = "\n".join([str(summary), *([summary_of(problems)] if problems else [])])
    document = {"destination": str(destination), **summary.to_dict(), "left_out": [each.path for each in problems]}
    if not given.verify:
        tell(given, told, document)
        return
    if wants_text(given):
        print(told)
    _check(given, destination, [destination / split for split in summary.manifests], decode=True, document=document)


def _estimate(given: argparse.Namespace, options: ConvertOptions, columns: tuple[str | None, str | None]) -> None:
    """Converts a few images of each split into a temporary folder and multiplies."""
    splits: dict[str, Any] = {}
    found = open_source(
        given.source,
        image_column=columns[0],
        label_column=columns[1],
        fields=parse_fields(given.fields),
        annotations=given.annotations,
    )
    for name, split in found.items():
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


def _verify(given: argparse.Namespace) -> None:
    folders: Sequence[str | Path] = [given.dataset] if "://" in given.dataset else datasets_in(Path(given.dataset))
    _check(given, given.dataset, folders, decode=given.decode, document={})


def _check(
    given: argparse.Namespace,
    dataset: str | Path,
    folders: Sequence[str | Path],
    *,
    decode: bool,
    document: dict[str, Any],
) -> None:
    """Verifies folders of shards, and adds the faults to the document.

    Raises:
        ShardError: there are some.
    """
    faults: list[Fault] = []
    for folder in folders:
        for fault in verify_folder(folder, decode=decode, workers=given.workers):
            if not given.json:
                print(fault, file=sys.stderr if given.quiet else sys.stdout)
            faults.append(fault)
    document = {**document, "dataset": str(dataset), "faults": [asdict(fault) for fault in faults]}
    if given.json or not faults:
        tell(given, f"{dataset}: no faults", document)
    if faults:
        advice = "copy or convert these shards again; repair or remove files that are damaged in the source"
        if all(fault.only_slows for fault in faults):
            advice = f"the images are whole; make indexes again: fastdata index {dataset}"
        listed = "in the document" if given.json else "listed above"
        raise ShardError(str(dataset), f"{counted(len(faults), 'fault')}, {listed}; {advice}")


def _index(given: argparse.Namespace) -> None:
    folder = Path(given.dataset)
    if given.to is not None and (not folder.is_dir() or any(folder.glob("*.tar*"))):
        manifest = index_elsewhere(given.dataset, given.to, workers=given.workers)
        told = f"{given.to}: {counted(manifest.samples, 'image')} in {counted(len(manifest.shards), 'shard')}"
        tell(given, told, {"dataset": str(given.to), "images": manifest.samples, "shards": len(manifest.shards)})
        return
    if not folder.is_dir():
        raise DatasetError(f"{folder} is a file; name a folder" if folder.exists() else f"no such folder: {folder}")
    if any(folder.glob("*.tar")):
        manifest = index_folder(folder, workers=given.workers, force=given.force)
        images, shards = manifest.samples, len(manifest.shards)
        told = f"{folder}: {counted(images, 'image')} in {counted(shards, 'shard')}"
        tell(given, told, {"dataset": str(folder), "images": images, "shards": shards})
        return
    problems = left_out_of(folder, given)
    left_out = {problem.path for problem in problems}
    paths = (path for path in images_below(folder) if path not in left_out)
    with closing(Progress(None, unit="image", what="indexed", hidden=given.quiet)) as shown:
        done = make_index(folder, paths, to=given.to, threads=given.workers, on_image=shown.update)
    told = (
        f"{counted(done.indexed, 'JPEG')} indexed, {done.kept} unchanged, {done.without} without an index "
        f"(progressive, damaged or another format), {done.unreadable} unreadable\n"
        f"{done.path}: {done.index_bytes / 1e6:.1f} MB"
    )
    told += f"\n{summary_of(problems)}" if problems else ""
    document = {"dataset": str(folder), **asdict(done), "path": str(done.path), "left_out": sorted(left_out)}
    tell(given, told, document)


def _restore(given: argparse.Namespace) -> None:
    from fastdata.shards.dataset import ShardDataset

    datasets = {folder.name: ShardDataset(folder) for folder in datasets_in(given.dataset)}
    if not given.resume:
        check_empty(given.destination)
    count, damaged = 0, []
    with closing(Progress(sum(map(len, datasets.values())), unit="image", what="restored")) as shown:
        for name, dataset in datasets.items():
            done = restore_folder(
                dataset,
                given.destination if len(datasets) == 1 else given.destination / name,
                threads=given.workers,
                resume=given.resume,
                on_error=given.on_error,
                on_image=shown.update,
            )
            count += done.files
            damaged += done.damaged
    for line in damaged:
        print(f"skipped {line}")
    print(f"{given.destination}: {counted(count, 'file')}")
