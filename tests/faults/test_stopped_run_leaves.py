"""A run that a signal stops saves and leaves, without making plots first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from places import HELPERS

PROGRAM = """
import os, signal, sys
from small_training import data, options, plain_model
from fastdata.train import fit

class Stopping:
    def __init__(self, loader): self.loader = loader
    def __len__(self): return len(self.loader)
    def __iter__(self):
        for number, batch in enumerate(self.loader):
            if number == 2 and sys.argv[2] == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

print(fit(plain_model(), Stopping(data()), options=options(output_dir=sys.argv[1], resume="auto")).stopped)
print("matplotlib" in sys.modules)
"""


def run(folder: Path, what: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), what],
        env={**os.environ, "PYTHONPATH": f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-2:]


def test_plots_are_made_when_the_resumed_run_ends(tmp_path: Path) -> None:
    assert run(tmp_path, "stop") == ["True", "False"]
    assert not (tmp_path / "curves.png").exists()
    assert json.loads((tmp_path / "result.json").read_text())["stopped"]
    assert next(tmp_path.glob("checkpoint-*.pt")).name == "checkpoint-00000003.pt"
    assert run(tmp_path, "go on") == ["False", "True"]
    assert (tmp_path / "curves.png").exists()
    assert len(json.loads((tmp_path / "result.json").read_text())["losses"]) == 5
