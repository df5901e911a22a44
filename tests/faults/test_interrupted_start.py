"""Ctrl-C at numbered moments of a command's start: status 130, no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import ROOT

# Sends itself the signal at the Nth import after the command's first own one.
_AT_IMPORT = """
import os, runpy, signal, sys
moment, module, *arguments = sys.argv[1:]
count = [-1]
def hook(event, args):
    if event != "import":
        return
    count[0] += count[0] >= 0 or args[0] in ("fastdata.cli.main", "argparse")
    if count[0] == int(moment):
        os.kill(os.getpid(), signal.SIGINT)
if module == "fastdata.train":
    import fastdata.system.interrupts
    sys.modules.pop("argparse", None)
sys.addaudithook(hook)
sys.argv[1:] = arguments
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
_AFTER = """
import sys
from fastdata.__main__ import main
from fastdata.system import interrupts
interrupts.leave_at_once()
print("begun", flush=True)
sys.exit(main())
"""


@pytest.mark.parametrize("moment", [0, 1, 10, 100, 400])
@pytest.mark.parametrize("module", ["fastdata", "fastdata.train"])
def test_at_a_numbered_import(module: str, moment: int) -> None:
    arguments = ["info"] if module == "fastdata" else ["--help"]
    command = [sys.executable, "-c", _AT_IMPORT, str(moment), module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    # Once the command has begun, it says its name.
    assert (done.returncode, done.stderr.removeprefix("fastdata: ")) == (130, "interrupted\n")


@pytest.mark.parametrize("delay_ms", [0, 20, 80, 200])
def test_after_a_numbered_delay(delay_ms: int) -> None:
    command = [sys.executable, "-c", _AFTER, "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        time.sleep(delay_ms / 1000)
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=100)
    assert child.returncode == 130
    assert "interrupted" in told
    assert "Traceback" not in told


def test_the_installed_command_begins_there() -> None:
    assert '\nfastdata = "fastdata.__main__:main"\n' in (ROOT / "pyproject.toml").read_text()


def test_a_program_keeps_its_own_ctrl_c(tmp_path: Path) -> None:
    program = tmp_path / "own.py"
    program.write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
        "except KeyboardInterrupt:\n    print('mine')\n"
    )
    command = [sys.executable, "-m", "fastdata", "run", "--quiet", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
