"""A run that a signal stops saves and leaves, without making plots first."""

from __future__ import annotations

import json
import os
from pathlib import Path

from places import HELPERS
from warm_python import run_python

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
    environment = {**os.environ, "PYTHONPATH": f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = run_python(["-c", PROGRAM, folder, what], env=environment)
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
