"""The `fastdata` commands for shards: convert, verify, index, inspect."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.errors import DatasetError, OptionError, ShardError
from fastdata.loaders.make_index import images_below, make_index
from fastdata.shards.conversion.convert import convert, local_folder
from fastdata.shards.conversion.inputs import open_source
from fastdata.shards.conversion.job import ON_ERROR, ConvertOptions, ShardJob, write_shard
from fastdata.shards.conversion.progress import ConversionProgress
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.conversion.restore import check_empty, restore_folder
from fastdata.shards.conversion.shard_plan import plan_shards
from fastdata.shards.engines import ENGINES
from fastdata.shards.format import MANIFEST_NAME, Manifest
from fastdata.shards.records import Ref
from fastdata.shards.store import missing_manifest
from fastdata.shards.verify import Fault, index_folder, verify_folder
from fastdata.system.cpus import auto_threads, parse_workers
from fastdata.terminal.flags import argument
from fastdata.terminal.progress import Progress
from fastdata.terminal.words import counted

__all__ = ["add_commands"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRIED_IN_DRY_RUN = 64
_SHEET_IMAGES = 40


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
    verify.add_argument("dataset", type=Path, help="a folder written by fastdata convert")
    verify.add_argument("--decode", action="store_true", help="also decode every image")
    _add_workers(verify)
    verify.set_defaults(run=_verify)

    index = commands.add_parser(
        "index",
        help="index the JPEGs of a folder or of shards, so that windows of them are decoded cheaper",
        description=_INDEX,
    )
    index.add_argument("dataset", type=Path, help="a folder of images, or of tar files that follow WebDataset's naming")
    index.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="where to keep the index of a folder; set FASTDATA_INDEX_DIR to it for programs that load it (default: "
        "$XDG_CACHE_HOME/fastdata/indexes, where they look)",
    )
    _add_workers(index)
    index.add_argument(
        "--force",
        action="store_true",
        help="replace the index even if the tar file no longer has the checksum in its index",
    )
    index.set_defaults(run=_index)

    _add_restore(commands)

    inspect = commands.add_parser("inspect", help="show what is in a dataset; --sheet draws some of its images")
    inspect.add_argument("dataset", type=Path, help="a folder written by fastdata convert")
    inspect.add_argument(
        "--sheet",
        type=Path,
        metavar="PNG",
        help="draw a contact sheet of some images into this file (with several splits: NAME-SPLIT.png for each)",
    )
    inspect.set_defaults(run=_inspect)


def _add_restore(commands: Any) -> None:
    restore = commands.add_parser(
        "restore",
        help="write the images of a dataset into files again, with the bytes that they had, named by their keys "
        "(.JPEG becomes .jpg)",
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

The images are not changed, and neither are the pixels.  The index of a folder is kept in a cache folder, where loaders
find it by the path of an image.  Images that have changed since are decoded as before; run the command again to index
them, which keeps the others' indexes.  Tar files get theirs beside them, with index files for their samples and a
manifest, as fastdata convert writes them."""

_CONVERT = """Converts images to shards: tar files with WebDataset's naming, each with an index, and one manifest.

SOURCE  one of: a folder with one folder of images per class; a folder with train/ and val/ of such folders, which
        become two datasets; tar files (a folder, one file, or a pattern like "a-{000..009}.tar"), whose captions and
        other parts are kept; Parquet files with encoded images and labels, or a folder of them as Hugging Face lays it
        out; or module:function, a Python function that yields (key, bytes, label) with integer labels
DEST    a local folder; copy it to a remote store when the conversion is complete.  The result is the same for any
        number of workers.  Run the same command again to continue an interrupted conversion.

Re-encoded images keep EXIF orientation and ICC profile and lose other metadata; raw pixels have no metadata."""

_SHUFFLE = """write samples in a random order drawn from this seed; samples from Parquet files and functions, which can
only be read in order, are all copied beside the shards first, which needs disk space for the data twice"""


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
    parser.add_argument("--image-column", help="name of the Parquet column with encoded images")
    parser.add_argument("--label-column", help="name of the Parquet column with labels")
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
        _estimate(given.source, options, columns, given.workers)
        return
    progress = ConversionProgress()
    if destination.is_file():
        raise OptionError(f"DEST {destination} is a file; name a folder")
    if given.classes is not None and not given.classes.is_file():
        raise OptionError(f"--classes {given.classes}: there is no such file")
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
            progress=progress.add,
            planned=progress.plan,
        )
    finally:
        progress.close()
    print(summary)
    if given.verify:
        for split in summary.manifests:
            _print_faults(destination / split, decode=True, workers=given.workers)


def _estimate(source: str, options: ConvertOptions, columns: tuple[str | None, str | None], workers: int) -> None:
    """Converts a few images of each split into a temporary folder and multiplies."""
    for name, split in open_source(source, image_column=columns[0], label_column=columns[1]).items():
        if split.refs is None:
            print(f"{name or 'dataset'}: a stream, whose length is unknown until it has been read")
            if options.shuffle_seed is not None:
                print("  --shuffle-seed copies all of it beside the shards first: have twice its size free on the disk")
            continue
        step = max(1, len(split.refs) // _TRIED_IN_DRY_RUN)
        tried: list[Ref] = split.refs[::step]
        total, part = (sum(ref.size for ref in refs) for refs in (split.refs, tried))
        with tempfile.TemporaryDirectory() as scratch:
            began = time.monotonic()
            job = ShardJob(scratch, "dry-run.tar", tried, replace(options, on_error="skip"), f"{scratch}/note")
            done = write_shard(job)
            seconds = time.monotonic() - began
        scale, shards = total / max(part, 1), counted(len(plan_shards(split.refs, options)), "shard")
        print(
            f"{name or 'dataset'}: {counted(len(split.refs), 'image')}, {total / 1e6:.1f} MB → about "
            f"{done.info.tar_bytes * scale / 1e6:.1f} MB in {shards}, about "
            f"{seconds * scale / max(workers, 1):.0f} s with {counted(workers, 'worker')} "
            f"(from {counted(len(tried), 'image')}"
            f"{f', {len(done.skipped)} of them unreadable' if done.skipped else ''})"
        )


def _verify(given: argparse.Namespace) -> None:
    _print_faults(given.dataset, decode=given.decode, workers=given.workers)


def _print_faults(dataset: Path, *, decode: bool, workers: int) -> None:
    folders = _datasets_in(dataset)
    faults: list[Fault] = []
    for folder in folders:
        for fault in verify_folder(folder, decode=decode, workers=workers):
            print(fault)
            faults.append(fault)
    if faults:
        advice = "copy or convert these shards again; repair or remove files that are damaged in the source"
        if all(fault.only_slows for fault in faults):
            advice = f"the images are whole; make indexes again: fastdata index {dataset}"
        raise ShardError(str(dataset), f"{counted(len(faults), 'fault')}, listed above; {advice}")
    print(f"{dataset}: no faults")


def _datasets_in(path: Path) -> list[Path]:
    """The dataset in a folder, or those of its splits."""
    splits = sorted(found.parent for found in path.glob(f"*/{MANIFEST_NAME}"))
    return splits if splits and not (path / MANIFEST_NAME).exists() else [path]


def _index(given: argparse.Namespace) -> None:
    folder = given.dataset
    if not folder.is_dir():
        raise DatasetError(f"{folder} is a file; name a folder" if folder.exists() else f"no such folder: {folder}")
    if any(folder.glob("*.tar")):
        if given.to is not None:
            raise OptionError(f"--to is for folders of images; indexes of tar files are kept beside them, in {folder}")
        manifest = index_folder(folder, workers=given.workers, force=given.force)
        print(f"{folder}: {counted(manifest.samples, 'image')} in {counted(len(manifest.shards), 'shard')}")
        return
    with closing(Progress(None, unit="image", what="indexed")) as shown:
        done = make_index(folder, images_below(folder), to=given.to, threads=given.workers, on_image=shown.update)
    print(
        f"{counted(done.indexed, 'JPEG')} indexed, {done.kept} unchanged, {done.without} without an index "
        f"(progressive, damaged or another format), {done.unreadable} unreadable"
    )
    print(f"{done.path}: {done.index_bytes / 1e6:.1f} MB")


def _restore(given: argparse.Namespace) -> None:
    from fastdata.shards.dataset import ShardDataset

    datasets = {folder.name: ShardDataset(folder) for folder in _datasets_in(given.dataset)}
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


def _inspect(given: argparse.Namespace) -> None:
    folders = _datasets_in(given.dataset)
    for folder in folders:
        _describe(folder)
        if given.sheet is None:
            print("  (--sheet PNG draws a contact sheet)")
            continue
        sheet = given.sheet if len(folders) == 1 else given.sheet.with_stem(f"{given.sheet.stem}-{folder.name}")
        _write_sheet(folder, sheet)
        print(f"  contact sheet: {sheet}")


def _describe(folder: Path) -> None:
    if not (folder / MANIFEST_NAME).exists():
        raise DatasetError(missing_manifest(folder))
    from fastdata.shards.dataset import ShardDataset

    manifest = Manifest.from_text((folder / MANIFEST_NAME).read_bytes(), str(folder))
    dataset = ShardDataset(folder)
    widths, heights = dataset.sizes_px.T
    size = sum(shard.tar_bytes for shard in manifest.shards)
    print(
        f"{folder}: {counted(len(dataset), 'image')} in {counted(len(manifest.shards), 'shard')}, {size / 1e6:.1f} MB"
    )
    print(
        f"  width {widths.min()} to {widths.max()} px, height {heights.min()} to {heights.max()} px; "
        f"{counted(len(manifest.skipped), 'image')} skipped in the conversion"
    )
    names = dataset.classes or []
    counts = {label: int((dataset.labels == label).sum()) for label in sorted(set(dataset.labels.tolist()))}
    print(f"  {counted(len(counts), 'class')}, with {min(counts.values())} to {max(counts.values())} images each")
    for label, count in list(counts.items())[:10]:
        print(f"    {label:5} {names[label] if 0 <= label < len(names) else '':30} {count}")
    if len(counts) > 10:
        print(f"    … and {len(counts) - 10} more")
    options = {**manifest.options, **manifest.options.get("recoding", {}), "recoding": None}
    chosen = [f"{name}={value}" for name, value in options.items() if value not in (None, False)]
    print(f"  converted with {', '.join(chosen)}" if chosen else "  made by fastdata index")


def _write_sheet(folder: Path, sheet: Path) -> None:
    from fastdata.loaders import pillow
    from fastdata.shards.dataset import ShardDataset

    dataset = ShardDataset(folder)
    step = max(1, len(dataset) // _SHEET_IMAGES)
    shown = range(0, len(dataset), step)[:_SHEET_IMAGES]
    labels, names = dataset.labels.tolist(), dataset.classes or []
    named = [names[labels[index]] if 0 <= labels[index] < len(names) else str(labels[index]) for index in shown]
    pillow.write_sheet([(dataset.read_encoded(index), name) for index, name in zip(shown, named, strict=True)], sheet)
