"""A disk that is full, or a limit on the size of files, while a run writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from places import HELPERS
from small_disks import small_disk
from small_training import data, options, plain_model
from warm_python import run_python

from fastdata.errors import TrainError
from fastdata.train import fit

PROGRAM = """
import resource, sys
from small_training import data, options, plain_model
from fastdata.errors import TrainError
from fastdata.train import fit
from fastdata.train.checkpoint_files import load_checkpoint

folder, limit = sys.argv[1], int(sys.argv[2])
fit(plain_model(), data(), options=options(output_dir=folder, keep=2))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    fit(plain_model(), data(), options=options(output_dir=folder, keep=2, resume="auto", epochs=2))
except TrainError as error:
    print("TrainError:", error)
"""


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "checkpoint" in path.name)


@pytest.mark.parametrize("limit", [2_000, 5_000, 9_000])  # bytes, of a checkpoint of more than 10,000
def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path, limit: int) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = run_python(["-c", PROGRAM, tmp_path, str(limit)], env=environment)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()[-1]
    assert told.startswith(f"TrainError: {tmp_path}/checkpoint-00000010.pt cannot be written: File too large; ")
    assert "MB are free there, so a limit on the size of files applies (ulimit -f)" in told
    assert checkpoints(tmp_path) == ["checkpoint-00000005.pt"]


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    with small_disk(disk := tmp_path / "small", "256k"):
        (disk / "other").write_bytes(bytes(150_000))
        with pytest.raises(
            TrainError, match=r"checkpoint-\d+\.pt cannot be written: No space left on device; "
        ) as raised:
            fit(plain_model(), data(), options=options(output_dir=str(disk), save_every=1, keep=9))
        for part in (
            "MB are free there.",
            "Free space, keep fewer checkpoints (keep, --keep) or use another output_dir",
        ):
            assert part in str(raised.value)
        kept = checkpoints(disk)
        assert kept
        (disk / "other").unlink()
        again = fit(plain_model(), data(), options=options(output_dir=str(disk), keep=1, resume="auto"))
        assert len(again.losses) == 5

    def test_the_log_on_a_full_disk_is_named(disk: Path) -> None:
        with pytest.raises(OSError, match="No space"):
            (disk / "other").write_bytes(bytes(400_000))
        with pytest.raises(TrainError, match=r"log\.csv cannot be written: No space left on device; .*Free space"):
            fit(plain_model(), data(), options=options(output_dir=str(disk), print_freq=1))

    @pytest.mark.filterwarnings("ignore:resuming .* with other options")
    @pytest.mark.parametrize("cut", [1, 2, 20, 60])
    def test_a_row_of_the_log_that_was_cut_short_is_left_out(tmp_path: Path, cut: int) -> None:
        fit(plain_model(), data(), options=options(output_dir=str(tmp_path), print_freq=1))
        log = tmp_path / "log.csv"
        whole = log.read_text().splitlines()
        log.write_bytes(log.read_bytes()[:-cut])
        fit(plain_model(), data(), options=options(output_dir=str(tmp_path), print_freq=1, resume="auto", epochs=2))
        rows = log.read_text().splitlines()
        kept = [row for row in whole if row in rows]
        assert rows[: len(kept)] == kept
        assert len(kept) in (len(whole) - 1, len(whole) - 2)
        assert {row.count(",") for row in rows} == {whole[0].count(",")}
        assert len({row.partition(",")[0] for row in rows}) == len(rows)
