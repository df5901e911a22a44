"""`python -m fastdata.train` and its loaders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
from PIL import Image
from small_training import SMALL_FLAGS

from fastdata import DatasetError, OptionError
from fastdata.cli.main import main as index_shards
from fastdata.train.__main__ import main, parser
from fastdata.train.data import DataOptions, _side, make_loaders
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import Ranks


def result(output: Path) -> dict[str, Any]:
    return json.loads((output / "result.json").read_text())  # type: ignore[no-any-return]


def loaders(path: Path, ranks: Ranks | None = None, **more: Any) -> Any:
    data = DataOptions(**{"data_path": str(path), "workers": "1", "train_crop_size": 32, **more})
    return make_loaders(data, TrainOptions(batch_size=8, device="cpu", epochs=9), ranks or Ranks())


@pytest.mark.slow
def test_the_backends_give_the_same_losses_to_the_last_bit(folder: Path, tmp_path: Path) -> None:
    losses = {}
    for backend in ("pil", "turbojpeg", "native"):
        more = ["--data-backend", backend, "--output-dir", str(tmp_path / backend), "--auto-augment", "trivial"]
        assert main(["--data-path", str(folder), *SMALL_FLAGS, *more]) == 0
        losses[backend] = result(tmp_path / backend)["losses"]
    assert losses["pil"] == losses["turbojpeg"] == losses["native"]


@pytest.mark.slow
def test_shards_give_the_losses_of_the_folder(folder: Path, converted: Path, tmp_path: Path) -> None:
    losses = []
    for source in (folder, converted):
        output = tmp_path / source.name
        assert main(["--data-path", str(source), *SMALL_FLAGS, "--output-dir", str(output)]) == 0
        losses.append(result(output)["losses"])
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    """Tints are told apart after a few passes; the sample dataset takes minutes (see docs/performance.md)."""
    for label, tint in enumerate(((1.0, 0.5, 0.5), (0.5, 1.0, 0.5), (0.5, 0.5, 1.0))):
        (tmp_path / "tints" / str(label)).mkdir(parents=True)
        for number in range(30):
            pixels = (images.picture(80, 60, seed=100 * label + number) * np.array(tint)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "tints" / str(label) / f"{number}.jpg")
    flags = ["--data-path", str(tmp_path / "tints"), *SMALL_FLAGS, "--output-dir", str(tmp_path / "out")]
    flags += ["--epochs", "15", "--opt", "adamw", "--lr", "0.004", "--lr-scheduler", "onecycle", "--min-scale", "0.5"]
    assert main(flags) == 0
    assert max(entry["val_accuracy"] for entry in result(tmp_path / "out")["epochs"]) >= 0.95


def test_a_checkpoint_is_validated_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--data-path", str(folder), *SMALL_FLAGS, "--model-ema", "0.5"]
    assert main([*flags, "--output-dir", str(tmp_path)]) == 0
    entry = result(tmp_path)["epochs"][-1]
    capsys.readouterr()
    assert main([*flags, "--test-only", str(next(tmp_path.glob("*.pt")))]) == 0
    told = eval(capsys.readouterr().out)  # a dict as Python prints it
    assert told == {name: entry[name] for name in ("val_loss", "val_accuracy")}


@pytest.mark.slow
def test_checks_and_searches_by_flag(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--data-path", str(folder), *SMALL_FLAGS]
    assert main([*flags, "--check"]) == 0
    assert "has 3 outputs, not a multiple of 8" in capsys.readouterr().out
    assert main([*flags, "--pad-classes", "--remove-biases", "--check"]) == 0
    told = capsys.readouterr().out
    assert "biases removed: none" in told
    assert "nothing found" in told
    assert main([*flags, "--find-lr", "--output-dir", str(tmp_path)]) == 0
    assert "suggested peak learning rate" in capsys.readouterr().out
    assert main([*flags, "--find-batch-size"]) == 1
    assert "OptionError: --find-batch-size needs a CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "OptionError: --data-path is not given"),
        (["--data-path", "nowhere"], "DatasetError: nowhere is neither an image folder nor a folder of shards"),
        (["--data-path", ".", "--amp", "fp16", "--device", "cpu"], "OptionError: --amp fp16 needs a CUDA device"),
        (["--data-path", ".", "--opt", "lars", "--betas", "0.9", "0.99"], "OptionError: --betas "),
        (["--data-path", ".", "--workers", "many"], "OptionError: --workers many"),
        (["--data-path", ".", "--min-scale", "2"], "OptionError: --min-scale 2.0"),
        (["--data-path", ".", "--smallest-crop", "300"], "OptionError: --smallest-crop 300 must not exceed"),
        (["--data-path", ".", "--val-crop-size", "300"], "OptionError: --val-crop-size 300 must not exceed"),
    ],
)
def test_mistakes_are_explained_in_a_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 1
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert told.count("\n") == 1


def test_every_option_is_a_flag() -> None:
    told = parser().format_help()
    for name in (*TrainOptions.__dataclass_fields__, *DataOptions.__dataclass_fields__):
        assert f"--{name.replace('_', '-')}" in told


def test_a_fifth_is_held_out_where_there_is_no_val_folder(folder: Path) -> None:
    made = loaders(folder)
    train, val = made.train(0).dataset, made.val.dataset
    assert (len(train), len(val)) == (33, 6)
    assert set(train.indices).isdisjoint(val.indices)
    assert made.classes == ["apple", "bear", "cup"]


def test_train_and_val_folders_are_used(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "set" / "train")
    with pytest.raises(DatasetError, match="but no val folder"):
        loaders(tmp_path / "set")
    shutil.copytree(folder, tmp_path / "set" / "val")
    made = loaders(tmp_path / "set")
    assert (len(made.train(0).dataset), len(made.val.dataset)) == (39, 39)
    shutil.rmtree(tmp_path / "set" / "val" / "bear")
    with pytest.raises(DatasetError, match="different classes: bear"):
        loaders(tmp_path / "set")
    (tmp_path / "few" / "a").mkdir(parents=True)
    shutil.copy(folder / "cup" / "00.jpg", tmp_path / "few" / "a")
    with pytest.raises(DatasetError, match="has fewer than 5 images in every class"):
        loaders(tmp_path / "few")


def test_crops_grow_and_the_order_goes_on(folder: Path) -> None:
    data = DataOptions(data_path=str(folder), train_crop_size=128, smallest_crop=64)
    sides = [_side(data, epoch, 9) for epoch in range(9)]
    assert sides == [64, 80, 80, 96, 112, 112, 128, 128, 128]
    made = loaders(folder, train_crop_size=64, smallest_crop=32)
    sizes = set()
    for epoch in range(9):
        loader = made.train(epoch)
        loader.set_epoch(epoch)
        sizes.add(next(iter(loader))[0].shape[-1])
    assert sizes == {32, 48, 64}
    for small, full in ((100, 180), (20, 40), (90, 100), (5, 40)):
        grown = [_side(DataOptions(smallest_crop=small, train_crop_size=full), epoch, 6) for epoch in range(6)]
        assert grown == sorted(grown)
        assert (grown[0], grown[-1]) == (small if small > 16 * round(small / 16) else 16 * round(small / 16), full)
    assert {_side(DataOptions(train_crop_size=128), epoch, 9) for epoch in range(9)} == {128}


def test_ranks_share_the_samples(folder: Path) -> None:
    shares = [list(loaders(folder, Ranks(rank=rank, world_size=2)).train(0).sampler) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(33))


def test_the_data_options_reject_what_cannot_be(folder: Path) -> None:
    with pytest.raises(OptionError, match="data_path"):
        loaders(Path(), data_path="")
    assert torch.is_tensor(next(iter(loaders(folder, random_erase=0.5, auto_augment="jitter").train(0)))[0])


def test_images_left_out_are_counted_and_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder, tmp_path / "set")
    for name in sorted((tmp_path / "set" / "bear").iterdir())[:2]:
        name.write_bytes(b"no image")
    flags = ["--data-path", str(tmp_path / "set"), *SMALL_FLAGS, "--epochs", "2", "--output-dir", str(tmp_path / "out")]
    assert main([*flags, "--on-error", "skip"]) == 0
    told = capsys.readouterr().out
    assert told.count("2 damaged images skipped or replaced: ") == 2
    assert told.count(str(tmp_path / "set" / "bear")) == 4
    assert [entry["failures"] for entry in result(tmp_path / "out")["epochs"]] == [2, 2]


def test_shards_behind_an_address_are_trained_on(converted: Path, tmp_path: Path) -> None:
    """They have no train inside, which the store has to say first."""
    assert main(["--data-path", f"file://{converted}", *SMALL_FLAGS]) == 0
    flags = ["--data-path", f"file://{tmp_path}/none", *SMALL_FLAGS]
    assert main(flags) == 1


def test_shards_without_names_of_classes_have_numbers(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "manifest.json").unlink()
    assert index_shards(["index", str(own), "--workers", "1"]) == 0
    assert main(["--data-path", str(own), *SMALL_FLAGS]) == 0


def test_a_checkpoint_of_another_model_is_told_by_its_first_difference(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--data-path", str(folder), *SMALL_FLAGS, "--output-dir", str(tmp_path)]
    assert main(flags) == 0
    assert main([*flags, "--pad-classes", "--resume", "auto"]) == 1
    told = capsys.readouterr().err
    assert "checkpoint-00000005.pt: the checkpoint was saved with another model: the checkpoint has " in told
    assert "use the model and the data that it was trained with" in told
