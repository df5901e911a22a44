"""The short part of every fault campaign."""

from __future__ import annotations

import datetime
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CAMPAIGNS = sorted(path.stem for path in (HERE / "campaigns").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_the_promise_holds_in_every_round(name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    first = datetime.date.today().toordinal() * 1000  # other rounds every day
    command = [sys.executable, str(HERE / "long.py"), name, "--part", "short", "--first", str(first)]
    command += ["--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["campaigns"][name]["rounds"] > 0


def test_a_failing_round_is_named_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    for folder in ("faults/campaigns", "helpers"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "faults" / "long.py").write_bytes((HERE / "long.py").read_bytes())
    (tmp_path / "faults" / "campaigns" / "broken.py").write_text(
        "import os, time\n"
        "ROUNDS = (6, 6, 6)\n"
        "def prepare(folder):\n"
        "    def one(rng):\n"
        "        if rng.random() > 0.95:\n"
        "            {end}\n"
        "        return 'held'\n"
        "    return one\n"
    )
    program = tmp_path / "faults" / "campaigns" / "broken.py"
    for end in ("raise AssertionError('lost')", "os.abort()", "time.sleep(60)"):
        program.write_text(program.read_text().replace("{end}", end))
        command = [sys.executable, str(tmp_path / "faults" / "long.py"), "broken", "--rounds", "200", "--limit-s", "2"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        again = done.stdout.split("again: ")[1].splitlines()[0]
        alone = subprocess.run(shlex.split(again), capture_output=True, timeout=120)
        assert alone.returncode != 0
        program.write_text(program.read_text().replace(end, "{end}"))


def test_every_guard_that_planted_faults_take_out_is_there() -> None:
    done = subprocess.run([sys.executable, str(HERE / "planted.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["nosuch"], "no campaign is called nosuch; there are accounts, breaks"),
        (["breaks", "--rounds", "0"], "at least one round"),
        (["--here"], "--here needs one campaign"),
        (["breaks", "--json", "missing/report.json"], "its folder is missing"),
        (["breaks", "--limit-s", "0"], "a round needs some time"),
    ],
)
def test_wrong_options_are_named(given: list[str], told: str) -> None:
    done = subprocess.run([sys.executable, str(HERE / "long.py"), *given], capture_output=True, text=True)
    assert done.returncode == 2
    assert told in done.stderr
