"""`fastdata verify`: checks datasets of shards, and shows faults as they are found."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastdata.cli.folders import add_dataset, datasets_in
from fastdata.cli.output import add_output, add_workers, tell
from fastdata.errors import ShardError
from fastdata.shards.verify import Fault, read_manifest, verify_folder
from fastdata.terminal.words import counted

__all__ = ["add_verify", "check_datasets"]


def add_verify(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    verify = commands.add_parser(
        "verify", help="check every index and checksum of a dataset, and every image with --decode"
    )
    add_dataset(verify)
    verify.add_argument("--decode", action="store_true", help="also decode every image")
    add_workers(verify)
    add_output(verify)
    verify.set_defaults(run=_verify)


def _verify(given: argparse.Namespace) -> None:
    check_datasets(given, given.dataset, datasets_in(given.dataset), decode=given.decode, document={})


def check_datasets(
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
    images = 0
    for folder in folders:
        manifest = read_manifest(folder)
        images += manifest.samples
        for fault in verify_folder(folder, decode=decode, workers=given.workers, manifest=manifest):
            if not given.json:
                print(fault, file=sys.stderr if given.quiet else sys.stdout)
            faults.append(fault)
    document = {**document, "dataset": str(dataset), "faults": [asdict(fault) for fault in faults]}
    document |= {"images": images, "decoded": decode}
    if given.json or not faults:
        how = "all of them decoded" if decode else "by checksums only; --decode decodes them, too"
        tell(given, f"{dataset}: no faults in {counted(images, 'image')}, {how}", document)
    if faults:
        advice = "copy or convert these shards again; repair or remove files that are damaged in the source"
        if all(fault.only_slows for fault in faults):
            advice = f"the images are whole; make indexes again: fastdata index {dataset}"
        listed = "in the document" if given.json else "listed above"
        raise ShardError(str(dataset), f"{counted(len(faults), 'fault')}, {listed}; {advice}")
