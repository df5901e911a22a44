"""The command, the demonstration, and the figures in the README."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

import fastdata
from fastdata import OptionError
from fastdata.cli.main import main
from fastdata.demo.run import run_demo
from fastdata.demo.sample import CLASSES, SampleOptions, make_sample_dataset
from fastdata.terminal.words import three_digits


def test_info_lists_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for words in ("pil        Pillow", "turbojpeg  PyTurboJPEG", "opencv     OpenCV", "synthetic  built in"):
        assert words in printed


def test_explain_reads_a_batch_and_says_who_decodes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(folder), "--backend", "turbojpeg"]) == 0
    told = capsys.readouterr().out
    assert "backend:    turbojpeg: named by you" in told
    assert re.search(r"on error: +raise \(the default\)", told)


def test_explain_takes_tar_files_as_well(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(folder), str(tmp_path / "shards"), "--workers", "1"]) == 0
    assert main(["explain", str(tmp_path / "shards"), "--backend", "pil"]) == 0
    assert "backend:    pil: named by you" in capsys.readouterr().out
    (tmp_path / "shards" / "manifest.json").unlink()
    assert main(["explain", str(tmp_path / "shards")]) == 1
    assert "has tar files but no manifest.json; make one with: fastdata index" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "bench"])
def test_a_missing_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"fastdata: no such folder: {tmp_path}/none\n"


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("train", "the training loop is started by: python -m fastdata.train --help"),
        ("my program.py", "to run a program with its DataLoader replaced: fastdata run 'my program.py'"),
    ],
)
def test_what_is_taken_for_a_command_leads_to_the_right_one(
    capsys: pytest.CaptureFixture[str], given: str, advice: str
) -> None:
    assert main([given, "--epochs", "3"]) == 2
    assert capsys.readouterr().err == f"fastdata: {given!r} is no command; {advice}\n"


def test_files_may_have_the_names_of_commands(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "info").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert main(["info"]) == 0
    assert "native" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--resume"]])
@pytest.mark.parametrize("below", [False, True])
def test_nothing_is_restored_onto_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], below: bool, more: list[str]
) -> None:
    assert main(["convert", str(folder), str(tmp_path / "shards"), "--workers", "1"]) == 0
    (tmp_path / "file").write_bytes(b"kept")
    target = tmp_path / "file" / "images" if below else tmp_path / "file"
    assert main(["restore", str(tmp_path / "shards"), str(target), *more]) == 1
    said = f"fastdata: {tmp_path / 'file'} is a file; name a folder that is empty or does not exist\n"
    assert capsys.readouterr().err.endswith(said)
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "from fastdata import DataLoader" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_demo_writes_a_table_figures_and_a_report(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_demo(folder, tmp_path, quick=True)
    told = capsys.readouterr().out
    assert "fastdata, turbojpeg  " in told
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert results["epoch"]["images"] == 32
    assert all(row["cpu_ms_per_image"]["median"] > 0 for row in results["loaders"])
    assert f"share of the trained epoch spent waiting for data: {results['epoch']['wait_share']:.1%}" in told
    page = (tmp_path / "report.html").read_text()
    assert "Where a training step" in page
    assert "times less CPU than torch" in page or "fastdata is not faster" in page


@pytest.mark.slow
def test_sample_dataset_is_the_same_every_time(tmp_path: Path) -> None:
    options = SampleOptions(train=10, val=10)
    for name in ("a", "b"):
        assert make_sample_dataset(tmp_path / name, options)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.jpg"))
    assert len(files) == 20
    assert {path.parts[1] for path in files} == set(CLASSES)
    for path in files:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
    assert not make_sample_dataset(tmp_path / "a", options)


def test_sample_dataset_touches_no_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match="is not a sample dataset"):
        make_sample_dataset(tmp_path, SampleOptions())
    with pytest.raises(OptionError, match="one per class"):
        SampleOptions(train=3)


def test_the_readmes_table_is_that_of_the_results() -> None:
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "report.py", "--check"], check=False)
    assert done.returncode == 0


def test_a_folder_of_splits_or_shards_is_not_measured_as_something_else(
    folder: Path, converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "val"):
        (tmp_path / "set" / split).mkdir(parents=True)
    for command in ("explain", "bench"):
        assert main([command, str(tmp_path / "set")]) == 1
        assert f"contains the splits train and val; name one of them: {tmp_path}/set/train" in capsys.readouterr().err
        assert main([command, __file__]) == 1
        assert "is a file; name the folder" in capsys.readouterr().err
    assert main(["bench", str(converted)]) == 1
    assert "holds shards, which torchvision does not read" in capsys.readouterr().err


def test_bench_names_a_damaged_image(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder, tmp_path / "set")
    damaged = sorted((tmp_path / "set" / "bear").iterdir())[0]
    damaged.write_bytes(b"\xff\xd8 no image")
    assert main(["bench", str(tmp_path / "set"), "--rounds", "1", "--workers", "1"]) == 1
    told = capsys.readouterr().err
    assert str(damaged) in told
    assert "repair or remove the file" in told
    assert "on_error" not in told  # which the command does not have
    assert "Traceback" not in told
    assert main(["explain", str(tmp_path / "set")]) == 0


def test_a_file_in_the_place_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("")
    for command in ("index", "verify", "inspect"):
        assert main([command, str(tmp_path / "train.py")]) == 1
        assert "train.py is a file; name" in capsys.readouterr().err


def test_a_second_conversion_says_that_there_was_nothing_to_do(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for times in (0, 1):
        assert main(["convert", str(folder), str(tmp_path / "set"), "--workers", "1"]) == 0
        assert capsys.readouterr().out.count("nothing was written") == times


def test_a_misspelt_argument_names_the_class_that_was_called() -> None:
    with pytest.raises(TypeError, match=r"^DataLoader\.__init__\(\) got an unexpected keyword argument 'num_worker'"):
        fastdata.DataLoader([1], num_worker=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("value", "told"), [(0.012345, "0.0123"), (4.561, "4.56"), (45.67, "45.7"), (2437.4, "2437"), (1.0, "1")]
)
def test_numbers_have_no_exponents(value: float, told: str) -> None:
    assert three_digits(value) == told


@pytest.mark.slow
def test_a_smaller_sample_leaves_nothing_of_a_larger_one(tmp_path: Path) -> None:
    for count in (12, 10):
        assert make_sample_dataset(tmp_path, SampleOptions(train=count, val=10))
    assert len(list(tmp_path.rglob("*.jpg"))) == 20


def test_arguments_of_convert_are_checked(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(folder), __file__]) == 1
    assert "is a file; name a folder" in capsys.readouterr().err
    assert main(["convert", str(folder), str(tmp_path / "x"), "--classes", "none.txt"]) == 1
    assert "--classes none.txt: there is no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", str(folder), "--batch-size", "x"])
    assert "'x' is not a positive integer" in capsys.readouterr().err


def without(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where packages are not installed."""
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({packages.split()})); from fastdata.cli.main import main; "
        "raise SystemExit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.parametrize(
    ("command", "missing"),
    [("bench", "torchvision"), ("demo", "matplotlib torchvision")],
)
def test_what_is_not_installed_is_said_before_any_work(
    folder: Path, tmp_path: Path, command: str, missing: str
) -> None:
    more = ["--output", str(tmp_path / "out")] if command == "demo" else []
    done = without(missing, command, str(folder), *more)
    assert (done.returncode, done.stdout) == (1, "")
    told = " and ".join(missing.split())
    assert done.stderr == f"fastdata: fastdata {command} needs {told}; install with: pip install {missing}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_core_alone_explains(folder: Path) -> None:
    done = without("tqdm tqdm.auto matplotlib psutil torchvision cv2 turbojpeg", "explain", str(folder))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_nothing_needs_tqdm(folder: Path, tmp_path: Path) -> None:
    bench = ("bench", str(folder), "--rounds", "1", "--workers", "1")
    assert without("tqdm tqdm.auto matplotlib", *bench).returncode == 0
    script = (
        "from fastdata.demo.run import _sample; from pathlib import Path; import sys; _sample(Path(sys.argv[1]), True)"
    )
    script = f"import sys; sys.modules.update(dict.fromkeys(['tqdm', 'tqdm.auto'])); {script}"
    drawn = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=110, check=False
    )
    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stderr.splitlines()[-1].startswith("drawing sample images: 140 of 140 images, ")
    assert len(drawn.stderr.splitlines()) < 20
