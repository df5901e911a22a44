"""Converted datasets that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdata.shards.convert import ConvertOptions, convert

SHARD_BYTES = 60_000  # the test folder becomes several shards


@pytest.fixture(scope="session")
def converted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test folder as shards."""
    target = tmp_path_factory.mktemp("shards") / "set"
    convert(str(folder), target, ConvertOptions(shard_bytes=SHARD_BYTES))
    return target


@pytest.fixture
def own(converted: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    import shutil

    shutil.copytree(converted, tmp_path / "own")
    return tmp_path / "own"
