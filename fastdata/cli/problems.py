"""Finds the images of a folder that cannot be used, before a command begins its work."""

from __future__ import annotations

import argparse
import os
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import DatasetError, in_words
from fastdata.limits import is_above_limit
from fastdata.shards.conversion.folders import FOLDER_EXTENSIONS, files_below
from fastdata.system.files import open_file
from fastdata.system.ordered_map import in_order
from fastdata.terminal.words import counted

__all__ = ["CHECKS", "Problem", "add_options", "left_out_of", "problems_in", "summary_of"]

CHECKS = ("none", "header", "decode")
_MOST_LISTED = 20
_HEAD_BYTES = 32
_THREADS = 8  # most of the time is spent waiting for files

_SUPPORTED = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"BM", b"GIF8", b"II*\0", b"MM\0*", *(b"P%d" % n for n in range(1, 7)))
# Formats by their first bytes, or (from byte 4 on) by the brand of an ISO media file.
_OTHERS = (
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (b"II+\0", "BigTIFF"),
    (b"MM\0+", "BigTIFF"),
    (b"8BPS", "Photoshop"),
    (b"%PDF", "PDF"),
    (b"<svg", "SVG"),
    (b"<?xml", "XML or SVG"),
    (b"<html", "HTML"),
    (b"<!DOCTYPE", "HTML"),
    (b"version https://git-lfs", "Git LFS pointer"),
)
_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF", b"msf1": "HEIF", b"avif": "AVIF", b"avis": "AVIF"}


class Problem(NamedTuple):
    """An image that cannot be used: its path, the kind of problem, and details."""

    path: str
    kind: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}{f' ({self.details})' if self.details else ''}"


def add_options(parser: argparse.ArgumentParser, *, on_error: str | None) -> None:
    """Adds --check, and --on-error with this default unless the command has one of its own (None)."""
    if on_error is not None:
        parser.add_argument(
            "--on-error",
            choices=("raise", "skip"),
            default=on_error,
            help="what to do if a folder has images that cannot be used: raise lists them and ends before the work "
            "begins, skip leaves them out and says at the end how many (default: %(default)s)",
        )
    parser.add_argument(
        "--check",
        choices=CHECKS,
        default="header",
        help="how to look for such images in a folder: header finds broken links, empty and unreadable files and other "
        "formats; decode finds damaged images, too, and takes as long as an epoch (default: %(default)s)",
    )


def left_out_of(folder: Path, given: argparse.Namespace) -> list[Problem]:
    """The images of a folder to leave out.

    Raises:
        DatasetError: there are some, and the command is to raise; the message lists them.
    """
    if given.check == "none" or not folder.is_dir():
        return []
    found = problems_in(folder, decode=given.check == "decode")
    if found and given.on_error == "raise":
        listed = "".join(f"\n  {problem}" for problem in found[:_MOST_LISTED])
        more = f"\n  … and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
        raise DatasetError(
            f"{counted(len(found), 'file')} in {folder} cannot be used:{listed}{more}\n"
            "repair or remove them, or leave them out with --on-error skip"
        )
    return found


def problems_in(folder: Path, *, decode: bool = False) -> list[Problem]:
    """The images below a folder that cannot be used, in the order of their paths."""
    paths = (path for path in files_below(str(folder)) if path.lower().endswith(FOLDER_EXTENSIONS))
    checked = in_order(lambda path: _problem_of(path, decode=decode), paths, threads=_THREADS, name="fastdata-check")
    return [problem for problem in checked if problem is not None]


def summary_of(problems: Sequence[Problem]) -> str:
    """Describes the number of files that were left out, by kind."""
    kinds = ", ".join(f"{count} × {kind}" for kind, count in Counter(each.kind for each in problems).most_common())
    return f"left out {counted(len(problems), 'file')}: {kinds}"


def _problem_of(path: str, *, decode: bool) -> Problem | None:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return Problem(path, "not a regular file")
        if decode and is_above_limit(status.st_size):
            return Problem(path, "too large", f"{status.st_size} bytes; see fastdata.limits.MAX_ENCODED_BYTES")
        with open_file(path) as file:
            head = file.read(_HEAD_BYTES)
            rest = file.read() if decode else b""
    except FileNotFoundError:
        return Problem(path, "broken symbolic link", f"to {os.readlink(path)}" if os.path.islink(path) else "")
    except OSError as error:
        return Problem(path, "unreadable", error.strerror or "")
    if not head:
        return Problem(path, "empty file")
    if (kind := _other_format(head)) is not None:
        return Problem(path, kind)
    return _decoding_problem(path, head + rest) if decode else None


def _other_format(head: bytes) -> str | None:
    """The format of a file that cannot be used, in words; None for one that can."""
    if head.startswith(_SUPPORTED) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return None
    name = next((name for magic, name in _OTHERS if head.lstrip().startswith(magic) or head.startswith(magic)), None)
    if name is None and head[4:8] == b"ftyp":
        name = _BRANDS.get(head[8:12])
    return f"unsupported format {name}" if name is not None else "not an image"


def _decoding_problem(path: str, data: bytes) -> Problem | None:
    from fastdata.loaders import pillow

    try:
        pillow.open_rgb(data)
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise many kinds
        return Problem(path, "damaged image", in_words(error))
    return None
