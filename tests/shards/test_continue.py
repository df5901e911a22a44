"""A conversion that ended early goes on: finished shards stay, also where a file has gone or errors are skipped now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from folders import SHARD_BYTES, changed_copy, tree

from fastdata import ShardDataset
from fastdata.errors import ConversionError
from fastdata.shards.conversion.convert import ConvertOptions, convert

RAISE = ConvertOptions(shard_bytes=SHARD_BYTES)
SKIP = ConvertOptions(shard_bytes=SHARD_BYTES, on_error="skip")
BAD = "bear/09.jpg"


@pytest.fixture
def source(folder: Path, tmp_path: Path) -> Path:
    """A folder of which one file in the middle is no image."""
    return changed_copy(folder, tmp_path / "source", {BAD: b"no image at all"})


def places(folder: Path) -> dict[str, int]:
    """Which files the finished shards are: a file that was written again is another one."""
    found = {path.name: path.stat().st_ino for path in folder.glob("*.tar")}
    assert found
    return found


def begin(source: Path, out: Path, workers: int = 1) -> dict[str, int]:
    with pytest.raises(ConversionError, match=r"bear/09\.jpg .*--on-error skip, and run the command again to continue"):
        convert(str(source), out, RAISE, workers=workers)
    return places(out)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_shards_stay_when_errors_are_skipped_from_now_on(source: Path, tmp_path: Path, workers: int) -> None:
    before = begin(source, tmp_path / "out", workers)
    convert(str(source), tmp_path / "out", SKIP, workers=workers)
    assert before.items() <= places(tmp_path / "out").items()
    convert(str(source), tmp_path / "whole", SKIP)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("gone", [BAD, "apple/02.jpg"])
def test_shards_before_a_file_that_was_removed_stay(source: Path, tmp_path: Path, workers: int, gone: str) -> None:
    before = begin(source, tmp_path / "out", workers)
    for name in {BAD, gone}:
        os.remove(source / name)
    convert(str(source), tmp_path / "out", RAISE, workers=workers, resume=True)
    after = places(tmp_path / "out")
    if gone == BAD:
        assert before.items() <= after.items()
    convert(str(source), tmp_path / "whole", RAISE)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_shards_that_are_no_longer_planned_go(source: Path, tmp_path: Path) -> None:
    begin(source, tmp_path / "out")
    for path in [*source.glob("bear/*"), *source.glob("cup/*")]:
        if path.name > "01.jpg":
            path.unlink()
    convert(str(source), tmp_path / "out", RAISE)
    convert(str(source), tmp_path / "whole", RAISE)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_a_shard_of_which_images_were_skipped_is_not_taken_for_a_whole_one(source: Path, tmp_path: Path) -> None:
    begun = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastdata.shards.conversion.convert.write_whole", _no_space)
        with pytest.raises(RuntimeError, match="killed"):
            convert(str(source), begun, SKIP)
    with pytest.raises(ConversionError, match=r"bear/09\.jpg .*cannot be converted"):
        convert(str(source), begun, RAISE)
    convert(str(source), begun, SKIP)
    assert len(ShardDataset(begun)) == 38


def _no_space(*_: object) -> None:
    raise RuntimeError("killed before the manifest")


def test_another_source_is_still_refused(source: Path, folder: Path, tmp_path: Path) -> None:
    begin(source, tmp_path / "out")
    with pytest.raises(ConversionError, match=r"unfinished conversion of another source.*place was '.*source', now"):
        convert(str(folder), tmp_path / "out", RAISE)
    with pytest.raises(ConversionError, match=r"options\.shard_bytes was 60000, now 1000000"):
        convert(str(source), tmp_path / "out", ConvertOptions(shard_bytes=10**6))
