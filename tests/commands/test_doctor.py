"""`fastdata doctor`: programs, folders, and what people get wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from busy import busy_with_others
from warm_python import run_python

from fastdata.cli.main import main

DOCTOR = ["-m", "fastdata", "doctor"]
PROGRAM = """
import sys, time, torch, traceback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
what = sys.argv[1]
print("arguments", sys.argv[1:])
def loader(count=64):
    return DataLoader(TensorDataset(torch.rand(count, 4), torch.arange(count) % 3), 16)
model = nn.Linear(4, 3)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
def epoch(loader):
    for images, labels in loader:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
if what == "nothing":
    sys.exit(3)
if what == "crash":
    epoch(loader())
    raise RuntimeError("out of luck")
if what == "exit":
    sys.exit("goodbye")
if what == "short":
    epoch(loader())
if what == "spawn" and __name__ == "__main__":
    torch.multiprocessing.spawn(time.sleep, nprocs=2)
if what == "processes" and __name__ == "__main__":
    torch.multiprocessing.get_context("fork").Process(target=time.sleep, args=(10_000,)).start()
    epoch(DataLoader(loader().dataset, 16))
    while True:
        epoch(loader())
if what == "elsewhere":
    sys.stdout = open("train.log", "w")
    try:
        while True:
            epoch(loader())
    except BaseException:
        sys.exit(7)
    finally:
        sys.stdout.close()
if what == "late":  # ends in the very step behind which it would be stopped, or in another one
    for number, _ in enumerate(iter(lambda: epoch(loader()), 0)):
        if number == 3:
            raise RuntimeError("out of luck")
if what == "interrupt":
    epoch(loader())
    raise KeyboardInterrupt
class Impatient(TensorDataset):
    def __getitem__(self, index):
        if any(frame.name == "measure_loading" for frame in traceback.extract_stack()):
            raise KeyboardInterrupt
        return super().__getitem__(index)
if what == "impatient":
    while True:
        epoch(DataLoader(Impatient(*loader().dataset.tensors), 16))
if what == "crawl":  # a step that takes for ever, on a machine that others keep busy
    epoch(loader())
    for images, labels in loader():
        for _ in range(600):
            time.sleep(0.1)
class Crawling(TensorDataset):
    def __getitem__(self, index):
        if any(frame.name == "measure_loading" for frame in traceback.extract_stack()):
            for _ in range(600):
                time.sleep(0.1)
        return super().__getitem__(index)
if what == "crawling":
    while True:
        epoch(DataLoader(Crawling(*loader().dataset.tensors), 16))
if what == "untrained":
    while True:
        for _ in loader():
            time.sleep(0.02)
if what in ("long", "swallow"):
    while True:
        try:
            epoch(loader())
        except:
            if what != "swallow":
                raise
"""


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name not in ("FASTDATA_RUN", "RANK", "LOCAL_RANK")}
    return run_python([*DOCTOR, *arguments], cwd=cwd, env=known)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("what", ["long", "swallow"])
def test_a_program_is_stopped_once_it_is_measured(program: Path, what: str) -> None:
    done = python(
        "--seconds", "0.5", "--json", "told.json", "--html", "told.html", "train.py", what, "--epochs", "3",
        cwd=program.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"arguments ['{what}', '--epochs', '3']" in done.stdout
    assert "Verdict: " in done.stdout
    told = json.loads((program.parent / "told.json").read_text())
    assert told["verdict"] in " ".join(done.stdout.split())
    assert told["seen"]["program"] == f"train.py {what} --epochs 3"
    assert told["seen"]["real"]["steps"] >= 3
    assert told["seen"]["alone"]["batches"] >= 3
    assert told["seen"]["changed"]["fastdata"]["batches"] >= 3
    assert "</html>" in (program.parent / "told.html").read_text()


def test_a_module(program: Path) -> None:
    done = python("--seconds", "0.5", "-m", "train", "long", cwd=program.parent)
    assert done.returncode == 0, done.stderr
    assert "Verdict: " in done.stdout


def test_json_alone_on_standard_output_can_be_parsed(program: Path) -> None:
    done = python("--seconds", "0.5", "--json", "-", "train.py", "long", cwd=program.parent)
    assert json.loads(done.stdout)["verdict"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("crawl", "more steps: the time budget of 6 s was used up"),
        ("crawling", "the loader alone: the time budget of 6 s was used up"),
        ("untrained", "no backward pass was seen"),
    ],
)
def test_the_time_budget_is_kept_and_told(program: Path, what: str, said: str) -> None:
    began = time.monotonic()
    done = python("--seconds", "0.5", "--budget", "6", "train.py", what, cwd=program.parent)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("fastdata: measuring takes up to 6 s from the first batch on (--budget SECONDS)\n")
    assert said in " ".join(done.stdout.split())
    assert time.monotonic() - began < 55  # of which the budget is 6 s; a step or a batch takes 60 s and more


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that is always full")
def test_the_report_is_printed_even_if_no_file_can_be_written(program: Path) -> None:
    done = python(
        "--seconds", "0.5", "--json", "/dev/full", "--html", "told.html", "train.py", "long", cwd=program.parent
    )
    assert done.returncode == 1
    assert "Verdict: " in done.stdout
    assert "fastdata: /dev/full could not be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "</html>" in (program.parent / "told.html").read_text()


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("nothing", 3, "the program ended by sys.exit(3)"),
        ("exit", 1, "goodbye"),
        ("crash", 1, "RuntimeError: out of luck"),
        ("late", 1, "RuntimeError: out of luck"),
        ("short", 0, "too early for all"),
        ("spawn", 0, "it started 2 other processes"),
    ],
)
def test_a_program_that_ends_by_itself(program: Path, what: str, status: int, said: str) -> None:
    done = python("--seconds", "5", "train.py", what, cwd=program.parent)
    assert done.returncode == status
    assert "Verdict: " in done.stdout
    assert said in " ".join((done.stdout + done.stderr).split())
    if what == "crash":
        assert 'train.py", line' in done.stderr
        assert "fastdata/cli" not in done.stderr


@pytest.mark.parametrize(
    ("what", "said"),
    [("interrupt", "the program was interrupted"), ("impatient", "the loader alone, and what would have followed")],
)
def test_who_interrupts_gets_what_was_measured_at_once(program: Path, what: str, said: str) -> None:
    done = python("--seconds", "0.5", "train.py", what, cwd=program.parent)
    assert done.returncode == 130
    assert "Verdict: " in done.stdout
    assert said in " ".join(done.stdout.split())
    assert done.stdout.count("interrupted") == 1
    first, *progress, last = done.stderr.splitlines()
    assert first == "fastdata: measuring takes up to 120 s from the first batch on (--budget SECONDS)"
    assert all(re.fullmatch(r"fastdata: \d+ of up to 120 s: .*", line) for line in progress)  # where that takes long
    assert last == "fastdata: interrupted"


def test_processes_that_wait_for_a_stopped_program_are_ended(program: Path) -> None:
    done = python("--seconds", "0.5", "train.py", "processes", cwd=program.parent)
    assert done.returncode == 0, done.stderr
    assert "Verdict: " in done.stdout


def test_the_report_goes_where_the_command_writes_not_the_program(program: Path) -> None:
    done = python("--seconds", "0.5", "train.py", "elsewhere", cwd=program.parent)
    assert "Verdict: " in done.stdout + done.stderr
    assert "Verdict: " not in (program.parent / "train.log").read_text()
    assert done.returncode == 0, done.stderr  # what it makes of being stopped is no failure
    assert "sys.exit" not in done.stdout


def test_options_that_the_program_gets_are_told(program: Path) -> None:
    done = python("--seconds", "0.5", "train.py", "long", "--json", "told.json", cwd=program.parent)
    assert "the program gets --json; write it before train.py if it is meant for the doctor" in done.stderr
    assert not (program.parent / "told.json").exists()


def test_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data", str(folder), "--seconds", "0.5", "--workers", "1", "--batch-size", "8"]) == 0
    said = capsys.readouterr().out
    assert "the loader alone gives" in said
    assert "native crop, by an index" in said


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a choice of cores, since there may be many")
def test_a_machine_that_others_keep_busy_is_told_first(folder: Path) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    try:
        with busy_with_others(min(2, len(cores))):
            done = python("--data", str(folder), "--seconds", "4", "--json", "-", cwd=folder)
    finally:
        os.sched_setaffinity(0, cores)
    told = json.loads(done.stdout)
    assert told["verdict"].startswith("cannot judge: other programs use ")
    assert "repeat on an idle machine. Seen nevertheless: the loader alone gives" in told["verdict"]
    assert told["is_reliable"] is False
    assert told["seen"]["alone"]["others"] > 0.25 * min(2, len(cores))


def test_a_folder_of_splits_is_not_one_of_two_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    assert main(["doctor", "--data", str(tmp_path)]) == 2
    assert "contains the splits train and val; name one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a SCRIPT"),
        (["missing.py"], "can't open file 'missing.py'"),
        (["--data", "missing"], "missing"),
        (["--data", "missing", "train.py"], "but train.py was named, too"),
        (["--workers", "2", "train.py"], "--workers is for --data"),
        (["."], "a folder without __main__.py; for a folder of images: --data ."),
        (["--seconds", "0", "train.py"], "'0' is not a number of seconds"),
        (["--seconds", "soon", "train.py"], "'soon' is not a number of seconds"),
        (["--budget", "0", "train.py"], "'0' is not a number of seconds"),
        (["--json", "nowhere/told.json", "train.py"], "nowhere is no folder"),
        (["--html", ".", "train.py"], "is a folder; name a file for --html"),
        (["--nonsense", "train.py"], "--nonsense"),
        (["-m"], "name a MODULE"),
    ],
)
def test_mistakes(program: Path, arguments: list[str], said: str) -> None:
    done = python(*arguments, cwd=program.parent)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
