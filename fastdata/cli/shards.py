"""The `fastdata` commands for shards: convert, verify, index, restore, inspect."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastdata.cli.convert import add_convert
from fastdata.cli.folders import add_dataset, datasets_in
from fastdata.cli.inspect import add_inspect
from fastdata.cli.output import add_output, add_workers, tell
from fastdata.cli.problems import add_options, left_out_of, summary_of
from fastdata.cli.verify import add_verify
from fastdata.errors import DatasetError, OptionError
from fastdata.jpeg_index.make import images_below, make_index
from fastdata.shards.conversion.job import ON_ERROR
from fastdata.shards.make_index import index_elsewhere, index_folder
from fastdata.terminal.progress import Progress
from fastdata.terminal.words import counted

__all__ = ["add_commands"]


def add_commands(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    add_convert(commands)
    add_verify(commands)
    _add_index(commands)
    _add_restore(commands)
    add_inspect(commands)


def _add_index(commands: Any) -> None:
    index = commands.add_parser(
        "index",
        help="index the JPEGs of a folder or of shards, so that windows of them are decoded cheaper",
        description=_INDEX,
    )
    index.add_argument(
        "dataset",
        help="a folder of images, or of tar files that follow WebDataset's naming; with --to also a pattern of tar "
        "files, or the URL of such tar files or of their folder",
    )
    index.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="where to keep the index.  Of tar files, which then stay as they are, also read-only or remote ones: the "
        "folder that ShardDataset opens.  Of a folder of images: set FASTDATA_INDEX_DIR to it for programs that load "
        "it (default: the folder itself, or $XDG_CACHE_HOME/fastdata/indexes for a read-only one; both are searched)",
    )
    add_workers(index)
    add_output(index)
    index.add_argument(
        "--force",
        action="store_true",
        help="replace the index even if the tar file no longer has the checksum in its index",
    )
    add_options(index, on_error="skip")
    index.set_defaults(run=_index)


def _add_restore(commands: Any) -> None:
    restore = commands.add_parser(
        "restore",
        help="write the images of a dataset into files again, with the bytes and the names that they had; images that "
        "were stored in another format, and those of shards of earlier versions, are named by their keys",
    )
    add_dataset(restore)
    restore.add_argument("destination", type=Path, metavar="DEST", help="a folder that is empty or does not exist")
    restore.add_argument("--resume", action="store_true", help="go on in a DEST that has files of an earlier run")
    restore.add_argument(
        "--on-error", choices=ON_ERROR, default="raise", help="skip: list damaged images and go on with the others"
    )
    add_workers(restore)
    restore.set_defaults(run=_restore, when_interrupted="; run the same command with --resume to continue")


_INDEX = """Writes where the rows of every JPEG begin in its data, by which crops are decoded without what is around.

The images are not changed, and neither are the pixels.  The index of a folder is one hidden file in it, by names
relative to the folder: it stays right where the folder is copied, moved or mounted.  For a folder that is read-only it
is kept in a cache folder.  Images that have changed since are decoded as before; run the command again to index them,
which keeps the others' indexes.  Tar files get theirs beside them, with index files for their samples and a
manifest, as fastdata convert writes them."""


def _index(given: argparse.Namespace) -> None:
    folder = Path(given.dataset)
    place: str | Path = folder
    if given.to is None and "://" in given.dataset:
        raise OptionError(
            f"{given.dataset} is a URL, and nothing is written to stores; name a local folder for its index with --to, "
            "which ShardDataset opens"
        )
    if given.to is not None and (not folder.is_dir() or any(folder.glob("*.tar*"))):
        place, manifest = given.to, index_elsewhere(given.dataset, given.to, workers=given.workers)
    elif not folder.is_dir():
        raise DatasetError(f"{folder} is a file; name a folder" if folder.exists() else f"no such folder: {folder}")
    elif any(folder.glob("*.tar")):
        manifest = index_folder(folder, workers=given.workers, force=given.force)
    else:
        _index_images(given, folder)
        return
    images, shards = manifest.samples, len(manifest.shards)
    told = f"{place}: {counted(images, 'image')} in {counted(shards, 'shard')}"
    tell(given, told, {"dataset": str(place), "images": images, "shards": shards})


def _index_images(given: argparse.Namespace, folder: Path) -> None:
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
    from fastdata.shards.conversion.restore import check_empty, restore_folder
    from fastdata.shards.dataset import ShardDataset

    datasets = {Path(folder).name: ShardDataset(folder) for folder in datasets_in(given.dataset)}
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
