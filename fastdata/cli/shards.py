"""The commands about shards: convert, verify, index, inspect."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.errors import DatasetError, OptionError, ShardError
from fastdata.shards.conversion.convert import convert, local_folder
from fastdata.shards.conversion.inputs import open_source
from fastdata.shards.conversion.job import ON_ERROR, ConvertOptions, ShardJob, write_shard
from fastdata.shards.conversion.progress import ConversionProgress
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.conversion.shard_plan import plan_shards
from fastdata.shards.engines import ENGINES
from fastdata.shards.format import MANIFEST_NAME, Manifest
from fastdata.shards.records import Ref
from fastdata.shards.store import missing_manifest
from fastdata.shards.verify import index_folder, verify_folder
from fastdata.system.cpus import auto_threads, parse_workers
from fastdata.terminal.flags import argument

__all__ = ["add_commands"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRIED_IN_DRY_RUN = 64
_SHEET_IMAGES = 40


def add_commands(commands: Any) -> None:
    """Adds the commands to an argparse collection of them."""
    convert_parser = commands.add_parser(
        "convert",
        help="write an image folder, tar or Parquet files as shards",
        description=_CONVERT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_convert_arguments(convert_parser)
    convert_parser.set_defaults(run=_convert, when_interrupted="; the same command continues")

    verify = commands.add_parser("verify", help="check every index, checksum and, if asked, image of a dataset")
    verify.add_argument("dataset", type=Path, help="a folder that convert made")
    verify.add_argument("--decode", action="store_true", help="decode every image, too")
    _add_workers(verify)
    verify.set_defaults(run=_verify)

    index = commands.add_parser("index", help="make indices and a manifest for tar files that have none")
    index.add_argument("dataset", type=Path, help="a folder of tar files in WebDataset's naming")
    _add_workers(index)
    index.add_argument("--force", action="store_true", help="also where a tar file is not what its index says it was")
    index.set_defaults(run=_index)

    inspect = commands.add_parser("inspect", help="say what is in a dataset, and draw some of its images if asked")
    inspect.add_argument("dataset", type=Path, help="a folder that convert made")
    inspect.add_argument(
        "--sheet",
        type=Path,
        metavar="PNG",
        help="draw a contact sheet into this file; of several splits, one for each, with its name at the end",
    )
    inspect.set_defaults(run=_inspect)


_CONVERT = """Writes images as shards: tar files in WebDataset's naming, each with an index, and one manifest.

SOURCE  a folder of class folders; one of train/ and val/ with class folders, which become two datasets; tar files
        (a folder, one file, or a pattern like "a-{000..009}.tar"), of which captions and the like are kept, too;
        Parquet files with encoded images and labels, also the folder of a dataset as hubs lay it out; or
        module:function, which yields (key, bytes, label), the label an integer
DEST    a local folder, to be copied to a store when it is whole; the result is the same for any number of workers.  A
        conversion that was interrupted in any way is continued by the same command.

Images that are written anew keep EXIF orientation and ICC profile, and lose other metadata; raw pixels have none."""

_SHUFFLE = """write samples in a random order, drawn by this number; of Parquet files and functions, whose samples come
one after the other, all are put down beside the shards first, which needs twice the disk"""


def _add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="what to convert")
    parser.add_argument("destination", metavar="DEST", help="a local folder, where to")
    parser.add_argument("--shard-size", type=_size, default=256 << 20, help="bytes per shard, like 256M (the default)")
    parser.add_argument("--shuffle-seed", type=int, help=_SHUFFLE)
    parser.add_argument("--max-side", type=int, help="shrink images whose longer side is longer than so many pixels")
    parser.add_argument("--min-side", type=int, help="shrink images whose shorter side is longer than so many pixels")
    parser.add_argument("--quality", type=int, help="of JPEGs written anew, 1 to 100 (90); alone: write all anew")
    parser.add_argument(
        "--lossless",
        action="store_true",
        help="repack JPEGs that become smaller by it: baseline, Huffman tables of their own, markers to skip by; the "
        "same pixels, which is checked for each",
    )
    parser.add_argument("--raw", type=int, metavar="SIZE", help="store pixels, of images shrunk to this longer side")
    parser.add_argument(
        "--on-error",
        choices=ON_ERROR,
        default="raise",
        help="what an unreadable image does (raise); of images that are kept as they are only headers are read, and "
        "--verify decodes them all",
    )
    parser.add_argument("--image-column", help="Parquet: the column of encoded images")
    parser.add_argument("--label-column", help="Parquet: the column of labels")
    parser.add_argument(
        "--classes",
        type=Path,
        help="a text file with the name of class 0, class 1, ... on a line each; labels that are names get these "
        "numbers (else names are numbered in sorted order)",
    )
    parser.add_argument("--engine", choices=ENGINES, default="processes", help="who works (%(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace what was converted into DEST before")
    parser.add_argument("--resume", action="store_true", help="only continue; an error if there is nothing to continue")
    parser.add_argument("--verify", action="store_true", help="read everything back and decode it when done")
    parser.add_argument("--dry-run", action="store_true", help="only estimate size and time")
    _add_workers(parser)


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=argument(partial(parse_workers, least=1)),
        default=auto_threads(),
        help="processes (default: one per CPU)",
    )


def _size(text: str) -> int:
    """Bytes, with an optional K, M, G or T (powers of 1024), for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 256M, 1G or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _options(given: argparse.Namespace) -> ConvertOptions:
    recoding = Recoding(
        max_side=given.max_side,
        min_side=given.min_side,
        quality=given.quality,
        lossless=given.lossless,
        raw=given.raw,
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
            print(f"{name or 'dataset'}: a stream, whose length nobody knows before it has been read")
            if options.shuffle_seed is not None:
                print(
                    "  to be shuffled, all of it is put down beside the shards first: have twice its size on the disk"
                )
            continue
        step = max(1, len(split.refs) // _TRIED_IN_DRY_RUN)
        tried: list[Ref] = split.refs[::step]
        total, part = (sum(ref.size for ref in refs) for refs in (split.refs, tried))
        with tempfile.TemporaryDirectory() as scratch:
            began = time.monotonic()
            job = ShardJob(scratch, "dry-run.tar", tried, replace(options, on_error="skip"), f"{scratch}/note")
            done = write_shard(job)
            seconds = time.monotonic() - began
        scale = total / max(part, 1)
        print(
            f"{name or 'dataset'}: {len(split.refs)} images, {total / 1e6:.1f} MB → about "
            f"{done.info.tar_bytes * scale / 1e6:.1f} MB in {len(plan_shards(split.refs, options))} shards, about "
            f"{seconds * scale / max(workers, 1):.0f} s with {workers} workers (from {len(tried)} images"
            f"{f', {len(done.skipped)} of them unreadable' if done.skipped else ''})"
        )


def _verify(given: argparse.Namespace) -> None:
    _print_faults(given.dataset, decode=given.decode, workers=given.workers)


def _print_faults(dataset: Path, *, decode: bool, workers: int) -> None:
    folders = _datasets_in(dataset)
    count = 0
    for folder in folders:
        for fault in verify_folder(folder, decode=decode, workers=workers):
            print(fault)
            count += 1
    if count:
        advice = "copy or convert these shards again; what was damaged at the source has to be mended or left out there"
        raise ShardError(str(dataset), f"{_count(count, 'fault')}, listed above; {advice}")
    print(f"{dataset}: no faults")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _datasets_in(path: Path) -> list[Path]:
    """The dataset in a folder, or those of its splits."""
    splits = sorted(found.parent for found in path.glob(f"*/{MANIFEST_NAME}"))
    return splits if splits and not (path / MANIFEST_NAME).exists() else [path]


def _index(given: argparse.Namespace) -> None:
    manifest = index_folder(given.dataset, workers=given.workers, force=given.force)
    print(f"{given.dataset}: {_count(manifest.samples, 'image')} in {_count(len(manifest.shards), 'shard')}")


def _inspect(given: argparse.Namespace) -> None:
    folders = _datasets_in(given.dataset)
    for folder in folders:
        _describe(folder)
        if given.sheet is None:
            print("  --sheet PNG draws a contact sheet of its images")
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
    print(f"{folder}: {len(dataset)} images in {len(manifest.shards)} shards, {size / 1e6:.1f} MB")
    print(
        f"  width {widths.min()} to {widths.max()} px, height {heights.min()} to {heights.max()} px; "
        f"{len(manifest.skipped)} were skipped when it was converted"
    )
    names = dataset.classes or []
    counts = {label: int((dataset.labels == label).sum()) for label in sorted(set(dataset.labels.tolist()))}
    print(f"  {len(counts)} classes, of {min(counts.values())} to {max(counts.values())} images")
    for label, count in list(counts.items())[:10]:
        print(f"    {label:5} {names[label] if 0 <= label < len(names) else '':30} {count}")
    if len(counts) > 10:
        print(f"    … and {len(counts) - 10} more")
    chosen = {name: value for name, value in manifest.options.items() if value not in (None, False)}
    print(f"  converted with {chosen}")


def _write_sheet(folder: Path, sheet: Path) -> None:
    from fastdata.loaders import pillow
    from fastdata.shards.dataset import ShardDataset

    dataset = ShardDataset(folder)
    step = max(1, len(dataset) // _SHEET_IMAGES)
    shown = range(0, len(dataset), step)[:_SHEET_IMAGES]
    pillow.write_sheet([dataset.read_encoded(index) for index in shown], sheet)
