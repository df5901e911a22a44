"""What a source is, is never guessed wrongly: stray files and folders, odd names, files that change."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import images
import psutil
import pytest
from folders import SHARD_BYTES, flip
from places import CONVERT

from fastdata import DatasetError, ImageFolder, ShardDataset, ShardError
from fastdata.cli.main import main
from fastdata.errors import ConversionError
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.verify import verify_folder

OPTIONS = ConvertOptions()


@pytest.fixture
def source(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def splits(folder: Path, tmp_path: Path) -> Path:
    for name in ("train", "val"):
        shutil.copytree(folder, tmp_path / "splits" / name)
    return tmp_path / "splits"


@pytest.mark.parametrize("place", ["stray.tar", "train/stray.tar"])
def test_a_stray_tar_file_does_not_replace_the_images(source: Path, tmp_path: Path, place: str) -> None:
    (source / place).parent.mkdir(exist_ok=True)
    (source / place).write_bytes(b"")
    with pytest.raises(ConversionError, match=r"contains both folders of images and .*stray\.tar; name the files"):
        convert(str(source), tmp_path / "out", OPTIONS)


def test_a_tar_file_beside_the_images_of_a_class_is_left_out(source: Path, tmp_path: Path) -> None:
    (source / "apple" / "more.tar").write_bytes(b"")
    summary = convert(str(source), tmp_path / "out", OPTIONS)
    assert summary.manifests[""].samples == 39
    assert "1 file without an image extension ignored" in str(summary)


@pytest.mark.parametrize("name", [".git", "__MACOSX"])
def test_hidden_folders_mean_nothing(source: Path, splits: Path, tmp_path: Path, name: str) -> None:
    for root in (source, splits):
        (root / name).mkdir()
    assert convert(str(source), tmp_path / "a", OPTIONS).manifests[""].classes == ["apple", "bear", "cup"]
    assert set(convert(str(splits), tmp_path / "b", OPTIONS).manifests) == {"train", "val"}


def test_folders_beside_splits_are_an_error(splits: Path, tmp_path: Path) -> None:
    (splits / "devkit").mkdir()
    with pytest.raises(ConversionError, match="contains train, val beside devkit, so it is unclear"):
        convert(str(splits), tmp_path / "out", OPTIONS)


def test_one_folder_too_high_is_an_error(splits: Path, tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    splits.rename(tmp_path / "up" / "imagenet")
    with pytest.raises(ConversionError, match=r"imagenet contains train, val: did you mean to convert .*imagenet\?"):
        convert(str(tmp_path / "up"), tmp_path / "out", OPTIONS)


def test_an_empty_class_is_an_error(source: Path, tmp_path: Path) -> None:
    (source / "dog").mkdir()
    with pytest.raises(DatasetError, match=r"no images in .*dog; accepted"):
        convert(str(source), tmp_path / "out", OPTIONS)


def test_source_and_destination_lie_apart(source: Path, converted: Path, own: Path) -> None:
    before = sorted(own.iterdir())
    for a, b in ((source, source / "apple" / "out"), (own, own), (own, own.parent), (own / "..", own)):
        with pytest.raises(ConversionError, match="must not lie inside of each other"):
            convert(str(a), b, OPTIONS, overwrite=True)
    assert sorted(own.iterdir()) == before


def test_overwriting_touches_nobody_elses_dataset(folder: Path, tmp_path: Path) -> None:
    for name in ("imagenet", "coco"):
        convert(str(folder), tmp_path / "home" / name, OPTIONS)
    convert(str(folder), tmp_path / "home", OPTIONS, overwrite=True)
    for name in ("", "imagenet", "coco"):
        assert len(ShardDataset(tmp_path / "home" / name)) == 39


def test_tar_files_of_several_folders_become_datasets_inside_the_destination(splits: Path, tmp_path: Path) -> None:
    convert(str(splits), tmp_path / "first", OPTIONS)
    convert(f"{tmp_path}/first/*/shard-*.tar", tmp_path / "deep" / "second", OPTIONS)
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["second"]
    assert len(ShardDataset(tmp_path / "deep" / "second" / "val")) == 39


def test_overwriting_removes_what_datasets_of_other_names_had_more(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        convert(str(folder), tmp_path / "tars" / name, OPTIONS)
    for size in (60_000, 10**6):
        options = ConvertOptions(shard_bytes=size)
        convert(f"{tmp_path}/tars/*/*.tar", tmp_path / "out", options, overwrite=True)
    assert [len(list((tmp_path / "out" / name).glob("*.tar"))) for name in ("a", "b")] == [1, 1]


def test_a_file_that_changed_since_it_was_listed_is_an_error(source: Path, tmp_path: Path) -> None:
    from fastdata.shards.conversion.inputs import open_source
    from fastdata.shards.conversion.job import ShardJob, write_shard

    refs = open_source(str(source))[""].refs
    assert refs is not None
    Path(refs[3].path).write_bytes(images.jpeg(99, 88))
    job = ShardJob(str(tmp_path), "a.tar", refs, OPTIONS, str(tmp_path / "note"))
    with pytest.raises(ConversionError, match=r"it had \d+ bytes when it was listed and has \d+ now"):
        write_shard(job)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems insist on Unicode")
def test_names_that_are_no_unicode(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path) + b"/source/c\xff"
    os.makedirs(root)
    for name in (b"x\xff.jpg", b"y.jpg"):
        with open(root + b"/" + name, "wb") as file:
            file.write(images.jpeg(30, 20))
    convert(str(tmp_path / "source"), tmp_path / "out", OPTIONS)
    dataset = ShardDataset(tmp_path / "out")
    assert dataset.classes == ["c\\udcff"]
    assert [dataset.key(index) for index in range(2)] == ["c\\udcff/x\\udcff", "c\\udcff/y"]
    assert list(verify_folder(tmp_path / "out")) == []


def test_pipes_and_links(source: Path, tmp_path: Path) -> None:
    os.mkfifo(source / "apple" / "pipe.jpg")
    (source / "bear" / "loop").symlink_to(source / "bear")
    assert convert(str(source), tmp_path / "out", OPTIONS).manifests[""].samples == 39
    (source / "cup" / "gone.jpg").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConversionError, match=r"gone\.jpg is a broken symbolic link"):
        convert(str(source), tmp_path / "more", OPTIONS)


def test_damage_in_shards_is_not_converted(own: Path, tmp_path: Path) -> None:
    """A bit in the middle of an image, which Pillow decodes as before."""
    dataset = ShardDataset(own)
    path, offset, length, _ = dataset.file_range(5)
    flip(Path(path), offset + length - 20)
    key = list(dataset.keys())[5]
    with pytest.raises(ConversionError, match=rf"\({key}\) cannot be converted: the image is damaged: its checksum is"):
        convert(str(own), tmp_path / "out", OPTIONS)
    summary = convert(str(own), tmp_path / "out", replace(OPTIONS, on_error="skip"))
    assert [name for name, _ in summary.manifests[""].skipped] == [key]
    assert summary.manifests[""].samples == len(dataset) - 1


def test_indexes_beside_tar_files_are_theirs_or_another_programs(own: Path, tmp_path: Path) -> None:
    first, second, *_ = sorted(own.glob("*.tar"))
    first.with_suffix(".idx").write_bytes(second.with_suffix(".idx").read_bytes())
    with pytest.raises(ShardError, match=r"index of another tar file, .* fastdata index --force"):
        convert(str(own), tmp_path / "out", OPTIONS)
    flip(second.with_suffix(".idx"), 100)
    first.with_suffix(".idx").write_text("v1.2 3\njpg 512 100 a.jpg\n")
    with pytest.raises(ShardError, match="damaged index"):
        convert(str(own), tmp_path / "out", OPTIONS)
    second.with_suffix(".idx").unlink()
    assert convert(str(own), tmp_path / "out", OPTIONS).manifests[""].samples == 39


def test_names_of_classes_may_be_given(converted: Path, folder: Path, tmp_path: Path) -> None:
    for path in converted.glob("*.tar"):
        (tmp_path / "bare").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / "bare")
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    arguments = ["convert", str(tmp_path / "bare"), str(tmp_path / "out"), "--classes", str(tmp_path / "names.txt")]
    assert main([*arguments, "--workers", "1"]) == 0
    assert ShardDataset(tmp_path / "out").classes == ["red", "green", "blue"]
    with pytest.raises(ConversionError, match="has its own class names"):
        convert(str(folder), tmp_path / "other", OPTIONS, classes=["a"])


def test_shards_that_were_lost_are_made_again(folder: Path, own: Path) -> None:
    options = ConvertOptions(shard_bytes=SHARD_BYTES)
    os.remove(own / "shard-000001.tar")
    with pytest.raises(ConversionError, match="already holds a converted dataset"):
        convert(str(folder), own, options)
    convert(str(folder), own, options, overwrite=True)
    assert len(ShardDataset(own)) == len(ImageFolder(folder))


def test_an_unusual_format_keeps_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "source" / "a").mkdir(parents=True)
    (tmp_path / "source" / "a" / "x.jpg").write_bytes(images.saved(30, 20, kind="ICO"))
    convert(str(tmp_path / "source"), tmp_path / "out", OPTIONS)
    assert list(verify_folder(tmp_path / "out", decode=True)) == []


@pytest.mark.skipif(not hasattr(os, "setsid"), reason="needs process groups")
def test_workers_end_with_their_parent(source: Path, tmp_path: Path) -> None:
    arguments = ["--shard-size", "4K", "--quality", "50", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, str(CONVERT), str(source), str(tmp_path / "out"), *arguments], stderr=subprocess.DEVNULL
    )
    children: list[psutil.Process] = []
    while len(children) < 2 and process.poll() is None:
        children = list(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=100)
    assert alive == []


def test_ctrl_c_says_what_to_do(source: Path, tmp_path: Path) -> None:
    arguments = ["--shard-size", "4K", "--quality", "50", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, str(CONVERT), str(source), str(tmp_path / "out"), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    while not (tmp_path / "out" / ".conversion" / "job.json").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode in (0, 130)  # it may have been done already
    assert "Traceback" not in said
    assert process.returncode == 0 or "interrupted; run the same command again to continue" in said
