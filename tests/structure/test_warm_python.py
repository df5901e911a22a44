"""Programs that run in a forked process see what they would see in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from warm_python import run_python

PROGRAM = """
import os, sys
print(sys.argv, sys.path[0], __name__, os.getcwd(), os.environ.get("TOLD"), sys.stdin.read(), file=sys.stderr)
print(sorted(sys.modules["__main__"].__dict__) == sorted(globals()), "fastdata" in sys.modules)
what = sys.argv[1]
if what == "kill":
    sys.stdout.flush()
    os.kill(os.getpid(), 9)
if what == "raise":
    raise OSError("not found")
sys.exit(int(what))
"""


@pytest.mark.parametrize("what", ["0", "7", "raise", "kill"])
@pytest.mark.parametrize("kind", ["script", "module", "code"])
def test_a_program_is_the_same(tmp_path: Path, kind: str, what: str) -> None:
    (tmp_path / "probe.py").write_text(PROGRAM)
    named = {"script": [str(tmp_path / "probe.py")], "module": ["-m", "probe"], "code": ["-c", PROGRAM]}[kind]
    environment = {**os.environ, "TOLD": "yes"}
    own = subprocess.run(
        [sys.executable, *named, what],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    forked = run_python([*named, what], cwd=tmp_path, env=environment)
    assert (forked.returncode, forked.stdout) == (own.returncode, own.stdout)
    assert forked.stderr.splitlines()[0] == own.stderr.splitlines()[0]
    assert forked.stderr.splitlines()[-1] == own.stderr.splitlines()[-1]


def test_a_program_that_takes_too_long_is_killed_and_the_next_one_runs(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_python(["-c", "import time; time.sleep(60)"], timeout=0.5)
    assert run_python(["-c", "print('next')"]).stdout == "next\n"
