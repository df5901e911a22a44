"""Checkpoints with a flipped bit, cut short, or from before there were checksums."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import data, options, plain_model

from fastdata.errors import TrainError
from fastdata.train import fit
from fastdata.train.__main__ import main
from fastdata.train.checkpoint_files import load_checkpoint, newest_intact, save_checkpoint

PLACES = 150


def trained(folder: Path, **more: Any) -> Any:
    return fit(plain_model(), data(), options=options(output_dir=str(folder), save_every=1, keep=3, **more))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def flip(path: Path, place: int, bit: int = 0) -> None:
    changed = bytearray(path.read_bytes())
    changed[place] ^= 1 << bit
    path.write_bytes(changed)


def damaged_forms(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Every bit of 150 bytes and of the end, and truncations, all drawn from a seed."""
    drawn = random.Random(34)
    size = len(good)
    for place in [*drawn.sample(range(size), PLACES), *range(size - 110, size)]:
        for bit in range(8):
            changed = bytearray(good)
            changed[place] ^= 1 << bit
            yield f"bit {bit} of byte {place}", bytes(changed)
    for length in [*drawn.sample(range(size), PLACES), *range(size - 110, size), 0]:
        yield f"cut to {length}", good[:length]
    yield "a byte more", good + b"\0"


def test_every_damaged_form_is_refused_by_name_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path)
    path = max(tmp_path.glob("*.pt"))
    good, loads, load = path.read_bytes(), [], torch.load
    monkeypatch.setattr(torch, "load", lambda *given, **more: (loads.append(given), load(*given, **more))[1])
    for what, changed in damaged_forms(good):
        path.write_bytes(changed)
        with pytest.raises(TrainError, match=rf"{path.name} cannot be read as a checkpoint: it is damaged"):
            pytest.fail(f"{what}: loaded {load_checkpoint(path)['version']}")
    assert loads == []
    path.write_bytes(good)
    assert load_checkpoint(path)["training"]["counts"]["updates"] == 5


def test_a_checkpoint_is_readable_by_torch_alone(tmp_path: Path) -> None:
    trained(tmp_path)
    path = max(tmp_path.glob("*.pt"))
    for mmap in (False, True):
        theirs = torch.load(path, weights_only=True, mmap=mmap)["training"]["model"]
        ours = load_checkpoint(path)["training"]["model"]
        assert all(torch.equal(theirs[name], ours[name]) for name in ours)


def test_large_and_small_parts_are_summed_alike(tmp_path: Path) -> None:
    state = {"version": 3, "large": torch.arange(2_000_000), "small": [torch.arange(n) for n in range(5)]}
    save_checkpoint(tmp_path / "a.pt", state)
    assert torch.equal(load_checkpoint(tmp_path / "a.pt")["large"], state["large"])


def test_auto_sets_damaged_ones_aside_and_continues_from_the_one_before(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", epochs=2).losses
    trained(tmp_path / "run", epochs=1)
    for name in ("checkpoint-00000005.pt", "checkpoint-00000004.pt"):
        flip(tmp_path / "run" / name, 3000)
    with pytest.warns(UserWarning, match="epochs was 1, now 2"), pytest.warns(UserWarning, match="is damaged") as said:
        again = trained(tmp_path / "run", epochs=2, resume="auto")
    told = "\n".join(str(each.message) for each in said)
    for number in (4, 5):
        name = f"checkpoint-0000000{number}.pt"
        assert f"{name} is damaged (its bytes do not have the SHA-256 that it holds) and was renamed to " in told
        assert f"{name}.damaged; resuming checkpoint-00000003.pt instead" in told
        assert (tmp_path / "run" / f"{name}.damaged").exists()
    assert again.losses == whole


def test_one_that_cannot_be_read_at_this_moment_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "run", epochs=1)
    before = names(tmp_path / "run")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("file read failed")

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(TrainError, match=r"00000005\.pt cannot be loaded, .*no damage.*: file read failed; try again"):
        newest_intact((tmp_path / "run").glob("*.pt"))
    assert names(tmp_path / "run") == before


def test_a_second_damaged_one_of_the_same_name_does_not_replace_the_first(tmp_path: Path) -> None:
    trained(tmp_path)
    for _ in range(2):
        flip(max(tmp_path.glob("*.pt")), 3000)
        with pytest.warns(UserWarning, match="is damaged"):
            trained(tmp_path, resume="auto")
    assert names(tmp_path)[-3:] == [f"checkpoint-00000005.pt{end}" for end in ("", ".damaged", ".damaged1")]


def test_if_all_are_damaged_all_are_named_and_none_is_moved(tmp_path: Path) -> None:
    trained(tmp_path)
    before = names(tmp_path)
    assert len(before) == 3
    for name in before:
        flip(tmp_path / name, 3000)
    with pytest.raises(TrainError, match=r"all checkpoints in .* are damaged: ") as raised:
        trained(tmp_path, resume="auto")
    assert all(name in str(raised.value) for name in before)
    assert names(tmp_path) == before


def test_a_damaged_one_that_is_named_is_refused_and_left(tmp_path: Path) -> None:
    trained(tmp_path)
    path = tmp_path / "checkpoint-00000004.pt"
    flip(path, 3000, bit=7)
    with pytest.raises(TrainError, match=r"00000004\.pt cannot be read as a checkpoint: it is damaged"):
        trained(tmp_path / "again", resume=str(path))
    assert path.exists()


def test_one_without_a_checksum_is_loaded_with_a_warning(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", epochs=2).losses
    trained(tmp_path / "run")
    path = tmp_path / "run" / "checkpoint-00000005.pt"
    torch.save(torch.load(path, weights_only=True), path)  # as an earlier version wrote it
    with (
        pytest.warns(match="epochs was 1, now 2"),
        pytest.warns(match=r"00000005\.pt has no checksum, since an earlier version"),
    ):
        assert trained(tmp_path / "run", epochs=2, resume="auto").losses == whole


def test_the_command_names_a_damaged_one_that_it_should_validate(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    path = max(tmp_path.glob("*.pt"))
    flip(path, 3000)
    flags = ["--data-path", str(folder), "--model", "small", "--device", "cpu", "--workers", "1"]
    assert main([*flags, "--test-only", str(path)]) == 1
    assert f"TrainError: {path} cannot be read as a checkpoint: it is damaged" in capsys.readouterr().err
