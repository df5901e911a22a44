"""`fastdata inspect`: what is in a dataset of shards, and some of its images."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from fastdata.cli.folders import add_dataset, datasets_in
from fastdata.shards.verify import read_manifest
from fastdata.terminal.words import counted

__all__ = ["add_inspect"]

_SHEET_IMAGES = 40


def add_inspect(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    inspect = commands.add_parser("inspect", help="show what is in a dataset; --sheet draws some of its images")
    add_dataset(inspect)
    inspect.add_argument(
        "--sheet",
        type=Path,
        metavar="PNG",
        help="draw a contact sheet of some images into this file (with several splits: NAME-SPLIT.png for each)",
    )
    inspect.set_defaults(run=_inspect)


def _inspect(given: argparse.Namespace) -> None:
    folders = datasets_in(given.dataset)
    for folder in folders:
        _describe(folder)
        if given.sheet is None:
            print("  (--sheet PNG draws a contact sheet)")
            continue
        sheet = given.sheet if len(folders) == 1 else given.sheet.with_stem(f"{given.sheet.stem}-{Path(folder).name}")
        _write_sheet(folder, sheet)
        print(f"  contact sheet: {sheet}")


def _describe(folder: Path | str) -> None:
    from fastdata.shards.dataset import ShardDataset

    manifest = read_manifest(folder)
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
    if members := Counter(name for sample in dataset.members() for name in sample):
        print(f"  beside the images: {', '.join(f'{name} ({count})' for name, count in members.items())}")
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


def _write_sheet(folder: Path | str, sheet: Path) -> None:
    from fastdata.loaders.pillow_files import write_sheet
    from fastdata.shards.dataset import ShardDataset

    dataset = ShardDataset(folder)
    step = max(1, len(dataset) // _SHEET_IMAGES)
    shown = range(0, len(dataset), step)[:_SHEET_IMAGES]
    labels, names = dataset.labels.tolist(), dataset.classes or []
    named = [names[labels[index]] if 0 <= labels[index] < len(names) else str(labels[index]) for index in shown]
    write_sheet([(dataset.read_encoded(index), name) for index, name in zip(shown, named, strict=True)], sheet)
