"""Checkpoints whose bytes have changed: refused by name before anything is loaded, and passed over by resume="auto"."""

from __future__ import annotations

import random
import resource
import signal
import warnings
from pathlib import Path

import pytest
import torch
from small_training import data, options, plain_model

from fastdata import TrainError
from fastdata.train import fit
from fastdata.train.checkpoint_files import DamagedCheckpoint, load_checkpoint, write_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with three checkpoints."""
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path), save_every=1, keep=3))
    return tmp_path


def flip(path: Path, byte: int, bit: int) -> None:
    found = bytearray(path.read_bytes())
    found[byte] ^= 1 << bit
    path.write_bytes(found)


def test_torch_reads_a_checkpoint_as_any_other_file(run: Path) -> None:
    path = max(run.glob("*.pt"))
    assert torch.load(path, weights_only=True)["training"].keys() == load_checkpoint(path)["training"].keys()


def test_a_flipped_bit_anywhere_is_found(run: Path) -> None:
    path = max(run.glob("*.pt"))
    whole, draws = path.read_bytes(), random.Random(34)
    places = [*range(len(whole) - 110, len(whole)), *(draws.randrange(len(whole)) for _ in range(150))]
    for byte in places:
        flip(path, byte, draws.randrange(8))
        with pytest.raises(DamagedCheckpoint, match=path.name):
            load_checkpoint(path)
        path.write_bytes(whole)
    load_checkpoint(path)


def test_a_checkpoint_that_is_cut_anywhere_is_found(run: Path) -> None:
    path = max(run.glob("*.pt"))
    whole, draws = path.read_bytes(), random.Random(35)
    for size in (0, 1, len(whole) - 64, len(whole) - 1, *(draws.randrange(len(whole)) for _ in range(30))):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedCheckpoint, match=path.name):
            load_checkpoint(path)


def test_auto_sets_a_damaged_one_aside_and_goes_on_from_the_newest_intact_one(run: Path) -> None:
    whole = fit(plain_model(), data(), options=options(output_dir=str(run), resume="auto", save_every=1, keep=3))
    *_, middle, latest = sorted(run.glob("*.pt"))
    flip(latest, 3000, 2)
    with pytest.warns(UserWarning, match=rf"{latest.name} is damaged.* set aside as {latest.name}\.damaged"):
        again = fit(plain_model(), data(), options=options(output_dir=str(run), resume="auto", save_every=1, keep=3))
    assert again.losses == whole.losses
    assert latest.with_name(f"{latest.name}.damaged").exists()
    assert latest.exists()  # written anew
    assert middle.exists()


def test_if_all_are_damaged_nothing_begins_anew_without_a_word(run: Path) -> None:
    names = [path.name for path in run.glob("*.pt")]
    for path in run.glob("*.pt"):
        flip(path, 2000, 1)
    with pytest.raises(TrainError, match=r"every checkpoint in .* is damaged") as raised:
        fit(plain_model(), data(), options=options(output_dir=str(run), resume="auto"))
    assert all(name in str(raised.value) for name in names)
    assert sorted(path.name for path in run.glob("*.pt")) == sorted(names)


def test_one_of_an_earlier_version_is_loaded_with_a_warning(run: Path) -> None:
    path = max(run.glob("*.pt"))
    state = load_checkpoint(path)
    torch.save({**state, "version": 3}, path)
    with pytest.warns(UserWarning, match="earlier version of fastdata, without a checksum"):
        assert load_checkpoint(path).keys() == state.keys()


def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-1.pt"
    write_checkpoint(path, {"version": 4, "of": "before"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else writing too much ends the process
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        with pytest.raises(TrainError, match=r"checkpoint-1\.pt cannot be written \(.*MB are free there; make room"):
            write_checkpoint(path, {"version": 4, "weights": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_checkpoint(path)["of"] == "before"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
