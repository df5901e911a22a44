"""A full disk, by a limit of file sizes: the file, the free space and what to do are said; nothing is half written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from fastdata.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def limited(size_bytes: int, *arguments: object) -> str:
    command = [sys.executable, "-c", _LIMITED, str(size_bytes), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_restore(converted: Path, tmp_path: Path, workers: int) -> None:
    told = limited(1000, "restore", converted, tmp_path / "to", "--workers", workers)
    assert f"{tmp_path / 'to'}/" in told
    assert ".jpg could not be written: the file would be larger than allowed" in told
    assert "MB are free there; free some space and go on with --resume" in told
    assert not [path for path in (tmp_path / "to").rglob("*") if path.is_file() and path.stat().st_size <= 1000]


def test_convert(folder: Path, tmp_path: Path) -> None:
    told = limited(5000, "convert", folder, tmp_path / "to", "--workers", 1)
    assert f"{tmp_path / 'to'} could not be written: " in told
    assert "finished shards are kept: free some space and run the same command again" in told
    assert not list((tmp_path / "to").rglob("*.partial"))
    assert not list((tmp_path / "to").rglob("*.tar"))


def test_index(own: Path, tmp_path: Path) -> None:
    told = limited(100, "index", own)
    assert f"{own}/" in told
    assert "free some space and run the command again" in told
    assert not list(own.glob(".*.partial"))
