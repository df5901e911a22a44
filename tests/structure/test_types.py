"""What a type checker says of programs that use the package: mistakes are refused, and nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from places import ROOT

from fastdata import DataLoader
from fastdata.dataloader.results import LoaderStats

_PROGRAM = """
from typing import Any
import torch
from torch.utils.data import Dataset
from fastdata import DataLoader
from fastdata.dataloader.results import LoaderStats
from fastdata.loaders import Backend, available_backends, check_backend_name, register_backend

class Own(Dataset[tuple[torch.Tensor, int]]):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3), index

def use(ds: Own, mine: type[Backend], text: str) -> None:
    loader = DataLoader(ds, 4, backend="native")
    DataLoader(ds, backend=register_backend(mine))
    DataLoader(ds, backend=check_backend_name(text))
    DataLoader(ds, backend=available_backends()[0])
    DataLoader(ds, backend="nativ")  # refused
    DataLoader(ds, backend=text)  # refused
    DataLoader(ds, backend=None)  # refused
    DataLoader(ds, fidelity="exactly")  # refused
    DataLoader(ds, on_error="ignore")  # refused
    DataLoader(ds, workers="fibres")  # refused
    DataLoader(ds, augment_on="gpu")  # refused
    DataLoader(ds, decode_device="gpu")  # refused
    for images, labels in loader:
        images.float().mean()
    batches = iter(loader)
    first: tuple[torch.Tensor, torch.Tensor] = next(batches)
    length: int = len(batches)
    batches.reset()  # refused
    stats: LoaderStats = loader.stats()
    waited: float = stats["wait_s"] + stats["stage_s"]["decode"]
    who: str = loader.stats()["backend"]  # refused
    loader.stats()["wait"]  # refused
    index, where, why = stats["quarantine"][0]
    theirs: torch.utils.data.DataLoader[tuple[torch.Tensor, int]] = loader
"""


@pytest.mark.slow
def test_mypy_refuses_the_mistakes_of_a_program_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed: pip install mypy")
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    caches = ["--cache-dir", str(ROOT / "build" / "mypy-of-a-program")]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--follow-imports", "silent", *caches]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    refused = {int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)}
    meant = {number for number, line in enumerate(_PROGRAM.splitlines(), 1) if line.endswith("# refused")}
    assert refused == meant, done.stdout


def test_the_entries_of_stats_are_those_that_the_type_names() -> None:
    assert set(DataLoader([1]).stats()) == set(get_type_hints(LoaderStats))  # type: ignore[arg-type]
