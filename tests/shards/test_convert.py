"""Conversion: every source, the same bytes however it runs, nothing lost whatever happens."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import deadly
import generated
import images
import numpy as np
import pytest
from folders import SHARD_BYTES, changed_copy, originals, tree
from PIL import Image
from places import CONVERT, HELPERS
from small_disks import enlarge, small_disk

from fastdata import DatasetError, OptionError, ShardDataset
from fastdata.cli.main import main
from fastdata.errors import ConversionError
from fastdata.shards.conversion import destination
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.verify import verify_folder
from fastdata.system import files

OPTIONS = ConvertOptions(shard_bytes=SHARD_BYTES)


def samples(folder: Path) -> list[tuple[bytes, int]]:
    dataset = ShardDataset(folder)
    return [(dataset.read_encoded(index), dataset.targets[index]) for index in range(len(dataset))]


# ---- the same bytes


def test_bytes_labels_and_order_are_kept(folder: Path, converted: Path) -> None:
    assert samples(converted) == originals(folder)
    assert all(path.stat().st_size <= SHARD_BYTES for path in converted.glob("*.tar"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 5])
def test_the_result_does_not_depend_on_the_number_of_workers(folder: Path, tmp_path: Path, seed: int | None) -> None:
    options = ConvertOptions(shard_bytes=SHARD_BYTES, shuffle_seed=seed, recoding=Recoding(max_side=100))
    for workers in (1, 2, 3):
        convert(str(folder), tmp_path / str(workers), options, workers=workers)
    assert tree(tmp_path / "1") == tree(tmp_path / "2") == tree(tmp_path / "3")


def test_shuffling_keeps_every_sample(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path / "a", ConvertOptions(shuffle_seed=1))
    convert(str(folder), tmp_path / "b", ConvertOptions(shuffle_seed=2))
    a, b = samples(tmp_path / "a"), samples(tmp_path / "b")
    assert sorted(a) == sorted(b) == sorted(originals(folder))
    assert a != b
    assert [label for _, label in a] != sorted(label for _, label in a)


COMMAND = [sys.executable, str(CONVERT)]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("fields", [False, True])
def test_killed_at_any_moment_it_goes_on_to_the_same_result(
    folder: Path, tmp_path: Path, workers: int, fields: bool
) -> None:
    arguments: list[object] = ["--shard-size", "20K", "--max-side", "90", "--shuffle-seed", "3", "--workers", workers]
    source = ["--from", "generated:with_fields"] if fields else [str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(HELPERS)}
    assert run(*source, tmp_path / "whole", *arguments, env=environment).returncode == 0
    expected, rng = tree(tmp_path / "whole"), random.Random(workers)
    for attempt in range(4):
        process = subprocess.Popen(
            [*COMMAND, *source, str(tmp_path / "killed"), *map(str, arguments)],
            env=environment,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(rng.uniform(0.2, 1.5) + 0.1 * attempt)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if (tmp_path / "killed" / "manifest.json").exists():
            break
    else:
        assert run(*source, tmp_path / "killed", *arguments, env=environment).returncode == 0
    assert tree(tmp_path / "killed") == expected


def test_a_stream_that_is_interrupted_goes_on_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (None, 4):
        options = ConvertOptions(shard_bytes=8_000, shuffle_seed=seed)
        convert("generated:samples", tmp_path / f"whole{seed}", options)
        with monkeypatch.context() as patch:
            patch.setattr(generated, "samples", partial(generated.cut_off, generated.samples, 25))
            with pytest.raises(OSError, match="network"):
                convert("generated:samples", tmp_path / f"cut{seed}", options)
        convert("generated:samples", tmp_path / f"cut{seed}", options)
        assert len(samples(tmp_path / f"cut{seed}")) == 40
        ours, whole = tree(tmp_path / f"cut{seed}"), tree(tmp_path / f"whole{seed}")
        assert {name: data for name, data in ours.items() if name != "manifest.json"} == {
            name: data for name, data in whole.items() if name != "manifest.json"
        }


# ---- sources


def test_splits_become_datasets(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(folder, tmp_path / "source" / split)
    os.remove(tmp_path / "source" / "val" / "apple" / "00.jpg")
    summary = convert(str(tmp_path / "source"), tmp_path / "out", OPTIONS)
    assert {name: manifest.samples for name, manifest in summary.manifests.items()} == {"train": 39, "val": 38}
    assert ShardDataset(tmp_path / "out" / "val").classes == ["apple", "bear", "cup"]
    shutil.rmtree(tmp_path / "source" / "val" / "cup")
    with pytest.raises(ConversionError, match=r"train and val have different classes.*\['cup'\]"):
        convert(str(tmp_path / "source"), tmp_path / "other", OPTIONS)


def test_tar_files_are_a_source(folder: Path, converted: Path, tmp_path: Path) -> None:
    for source in (converted, f"{converted}/*.tar"):
        target = tmp_path / str(len(str(source)))
        convert(str(source), target, ConvertOptions(shard_bytes=10**6))
        assert samples(target) == originals(folder)
        assert ShardDataset(target).classes == ["apple", "bear", "cup"]


def test_functions_are_a_source(tmp_path: Path) -> None:
    convert("generated:samples", tmp_path / "out", ConvertOptions(shard_bytes=8_000))
    dataset = ShardDataset(tmp_path / "out")
    assert len(dataset) == 40
    assert dataset.classes == ["a", "b", "c"]
    assert dataset.targets == [number % 3 for number in range(40)]
    assert [dataset.key(number) for number in (7, 8, 9, 10)] == ["same_name", "same_name~2", "out", "010"]
    with pytest.raises(ConversionError, match=r"item 0 is neither \(key, bytes, label\) nor a dictionary"):
        convert("generated:nonsense", tmp_path / "no", OPTIONS)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "no such file, folder or function"),
        ("json:nothing", "cannot import json:nothing"),
        ("json:dumps", r"json:dumps is not a function that can be called without arguments.*missing a required"),
        ("EMPTY", "no class folders"),
        ("TEXT", r"no images in .*accepted: \.bmp"),
        ("TEXT/a/notes.txt", "neither a folder nor a tar file"),
    ],
)
def test_what_is_no_source_is_named(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "TEXT" / "a").mkdir(parents=True)
    (tmp_path / "TEXT" / "a" / "notes.txt").write_text("no image")
    with pytest.raises(DatasetError, match=message):
        convert(str(tmp_path / source) if source[0].isupper() else source, tmp_path / "out", OPTIONS)


# ---- what is done to images


def opened(folder: Path) -> list[Image.Image]:
    return [Image.open(io.BytesIO(data)) for data, _ in samples(folder)]


def test_shrinking_keeps_what_is_small(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path / "max", ConvertOptions(recoding=Recoding(max_side=120, quality=None)))
    convert(str(folder), tmp_path / "min", ConvertOptions(recoding=Recoding(min_side=80)))
    before = [Image.open(io.BytesIO(data)).size for data, _ in originals(folder)]
    for (width, height), image, kept in zip(before, opened(tmp_path / "max"), samples(tmp_path / "max"), strict=True):
        assert max(image.size) <= 120
        if max(width, height) <= 120:
            assert kept in originals(folder)
        else:
            assert abs(image.width / image.height - width / height) < 0.05
    for size, image in zip(before, opened(tmp_path / "min"), strict=True):
        assert min(image.size) == min(80, *size)
    assert ShardDataset(tmp_path / "min").sizes_px.tolist() == [list(image.size) for image in opened(tmp_path / "min")]


def test_quality_alone_writes_every_image_anew(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path / "out", ConvertOptions(recoding=Recoding(quality=30)))
    assert sum(len(data) for data, _ in samples(tmp_path / "out")) < 0.6 * sum(
        len(data) for data, _ in originals(folder)
    )


def test_lossless_keeps_pixels(odd_folder: Path, tmp_path: Path) -> None:
    convert(str(odd_folder), tmp_path / "out", ConvertOptions(recoding=Recoding(lossless=True)))
    changed = 0
    for (before, _), (after, _) in zip(originals(odd_folder), samples(tmp_path / "out"), strict=True):
        pixels = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in (before, after)]
        np.testing.assert_array_equal(*pixels)
        changed += before != after
    assert changed >= 5


def test_raw_pixels_are_numpy_files_in_a_tar(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path / "out", ConvertOptions(recoding=Recoding(raw=64)))
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as tar:
        names = tar.getnames()
        member = tar.extractfile(names[0])
        assert member is not None
        pixels = np.load(io.BytesIO(member.read()))
    assert names[:2] == ["apple/00.npy", "apple/00.cls"]
    assert pixels.dtype == np.uint8
    assert max(pixels.shape) == 64


@pytest.mark.parametrize(
    "wrong", [{"quality": 0}, {"max_side": 0}, {"raw": 70000}, {"lossless": True, "raw": 64}, {"raw": 9, "quality": 9}]
)
def test_recodings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Recoding(**wrong)


# ---- what goes wrong


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    return changed_copy(folder, tmp_path / "damaged", {"bear/03.jpg": b"no image at all"})


def test_an_unreadable_image_is_an_error_or_is_skipped_and_noted(damaged: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"bear/03\.jpg .*cannot be converted.*--on-error skip"):
        convert(str(damaged), tmp_path / "out", OPTIONS)
    options = ConvertOptions(shard_bytes=SHARD_BYTES, on_error="skip")
    summary = convert(str(damaged), tmp_path / "out", options)
    assert len(ShardDataset(tmp_path / "out")) == 38
    assert "1 skipped\n  skipped bear/03: not an image that Pillow can identify" in str(summary)


@pytest.mark.parametrize("kind", ["JPEG", "progressive JPEG", "PNG", "WEBP"])
def test_an_image_that_cannot_be_decoded_is_an_error_or_is_skipped(kind: str, tmp_path: Path) -> None:
    """Its bytes would be kept, and its header is whole."""
    encoded = images.saved(kind=kind.split()[-1], **({"progressive": True} if "progressive" in kind else {}))
    (tmp_path / "source" / "cat").mkdir(parents=True)
    for name, data in (("cut", encoded[: len(encoded) * 2 // 3]), ("whole", encoded)):
        (tmp_path / "source" / "cat" / f"{name}.{kind.split()[-1].lower()}").write_bytes(data)
    with pytest.raises(ConversionError, match=r"cut\.\w+ .*cannot be converted.*--on-error skip"):
        convert(str(tmp_path / "source"), tmp_path / "shards", ConvertOptions())
    summary = convert(str(tmp_path / "source"), tmp_path / "shards", ConvertOptions(on_error="skip"))
    assert "1 image in 1 shard" in str(summary)
    assert "1 skipped" in str(summary)
    assert [key for key, _ in summary.manifests[""].skipped] == ["cat/cut"]
    assert list(verify_folder(tmp_path / "shards", decode=True)) == []


def test_verify_says_what_it_decoded(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, told in (([], "by checksums only; --decode decodes them, too"), (["--decode"], "all of them decoded")):
        assert main(["verify", str(own), *options]) == 0
        assert capsys.readouterr().out.strip() == f"{own}: no faults in 39 images, {told}"


def test_nothing_is_overwritten_unless_asked(folder: Path, converted: Path, own: Path, tmp_path: Path) -> None:
    other = ConvertOptions(shard_bytes=10**6)
    with pytest.raises(ConversionError, match=r"already holds a converted dataset.*--overwrite"):
        convert(str(folder), own, other)
    assert tree(own) == tree(converted)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ConversionError, match="already holds 1 other files"):
        convert(str(folder), tmp_path / "mine", other)
    (own / "thesis.txt").write_text("years of work")
    convert(str(folder), own, other, overwrite=True)
    assert (own / "thesis.txt").exists()
    assert len(list(own.glob("*.tar"))) == 1


def test_a_finished_conversion_is_not_done_again(folder: Path, own: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in own.iterdir()}
    assert convert(str(folder), own, OPTIONS).manifests[""].samples == 39
    assert {path: path.stat().st_mtime_ns for path in own.iterdir()} == before
    with pytest.raises(ConversionError, match="no unfinished conversion"):
        convert(str(folder), own, ConvertOptions(), resume=True)


def test_two_at_once_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    (tmp_path / "out" / ".conversion").mkdir(parents=True)
    with open(tmp_path / "out" / ".conversion" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        monkeypatch.setattr(destination, "_PATIENCE_S", 0.1)
        with pytest.raises(ConversionError, match="another process is converting into"):
            convert(str(folder), tmp_path / "out", OPTIONS)


def while_held(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch, at_first_try: Any, **options: Any) -> Any:
    """A conversion that finds the lock taken; something happens when it has tried once."""
    import fcntl

    (out / ".conversion").mkdir(parents=True)
    with open(out / ".conversion" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tries: list[float] = []

        def sleep(seconds: float) -> None:
            tries.append(seconds)
            at_first_try(lambda: fcntl.flock(lock, fcntl.LOCK_UN))

        with monkeypatch.context() as patch:
            patch.setattr(files.time, "sleep", sleep)
            try:
                return convert(str(folder), out, OPTIONS, **options)
            finally:
                assert len(tries) == 1


def test_what_a_killed_run_still_holds_is_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = while_held(folder, tmp_path / "out", monkeypatch, lambda release: release())
    assert done.manifests[""].samples > 0


def test_who_has_just_finished_keeps_the_dataset(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(str(folder), tmp_path / "done", OPTIONS)
    out = tmp_path / "out"

    def finish(release: Any) -> None:
        shutil.copytree(tmp_path / "done", out, dirs_exist_ok=True)
        shutil.rmtree(out / ".conversion")
        release()

    with pytest.raises(ConversionError, match=r"another process is converting into .*, or was until now"):
        while_held(folder, out, monkeypatch, finish, overwrite=True)
    assert tree(out) == tree(tmp_path / "done")


def test_a_full_disk_is_named_and_the_next_run_continues(folder: Path, tmp_path: Path) -> None:
    with small_disk(disk := tmp_path / "disk", "200k"):
        for workers in (1, 2):
            with pytest.raises(ConversionError, match=r"no space left on the disk; .* finished shards are kept"):
                convert(str(folder), disk / "out", OPTIONS, workers=workers)
            assert not list((disk / "out").glob("*.partial"))
        enlarge(disk, "20m")
        convert(str(folder), disk / "out", OPTIONS)
        assert samples(disk / "out") == originals(folder)


def test_a_killed_worker_is_an_error_that_says_what_to_do() -> None:
    from fastdata.shards.engines import run_jobs

    with pytest.raises(ConversionError, match=r"a worker process was killed.*run the same command again"):
        list(run_jobs(deadly.die, range(4), workers=2))


# ---- the command


@pytest.mark.slow
def test_the_command_converts_and_says_so(folder: Path, converted: Path, tmp_path: Path) -> None:
    done = run(folder, tmp_path / "out", "--shard-size", SHARD_BYTES, "--workers", 2, "--verify")
    assert done.returncode == 0, done.stderr
    assert "39 images in" in done.stdout
    assert "no faults" in done.stdout
    assert tree(tmp_path / "out") == tree(converted)


@pytest.mark.slow
def test_a_dry_run_writes_nothing(folder: Path, tmp_path: Path) -> None:
    done = run(folder, tmp_path / "out", "--dry-run", "--lossless")
    assert done.returncode == 0, done.stderr
    assert "39 images" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard-size", "much"], "'much' is not a size"),
        (["--quality", "101"], "--quality 101 is not between 1 and 100"),
        (["--on-error", "ignore"], "invalid choice"),
        (["--lossless", "--raw", "64"], "choose one"),
        (["--resume"], "no unfinished conversion to resume"),
    ],
)
def test_mistakes_are_explained(folder: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(folder, tmp_path / "out", *arguments)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
