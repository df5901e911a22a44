"""Files of strangers: no code in them is run.  SECURITY.md names the tests of all that it says."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fastdata.errors import TrainError
from fastdata.train.checkpoint_files import load_checkpoint, save_checkpoint

ROOT = Path(__file__).parents[2]


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("place", ["a pickle", "torch.save", "a whole checkpoint"])
def test_a_checkpoint_cannot_run_code(tmp_path: Path, place: str) -> None:
    harm, path = Runs(tmp_path / "harm"), tmp_path / "checkpoint-1.pt"
    if place == "a pickle":
        path.write_bytes(pickle.dumps(harm))
    elif place == "torch.save":
        torch.save({"version": 1, "training": harm}, path)
    else:  # with a right checksum
        save_checkpoint(path, {"version": 1, "training": harm})
    with pytest.raises(TrainError, match="checkpoint-1"):
        load_checkpoint(path)
    assert not harm.folder.exists()
    pickle.loads(pickle.dumps(harm))
    assert harm.folder.exists(), "it would have"


def test_no_file_of_a_dataset_is_unpickled(converted: Path) -> None:
    program = (
        "import sys\n"
        "found = []\n"
        "watched = ('pickle.find_class', 'marshal.loads')\n"
        "sys.addaudithook(lambda event, _: found.append(event) if event in watched else None)\n"
        "from fastdata import DataLoader, ShardDataset\n"
        "from torchvision import transforms as T\n"
        "views = T.Compose([T.Resize((8, 8)), T.ToTensor()])\n"
        "for _ in range(2):\n"  # modules are loaded, and what they were compiled to is read
        "    list(DataLoader(ShardDataset(sys.argv[1], transform=views), 4))\n"
        "found.clear()\n"
        "count = sum(len(labels) for _, labels in DataLoader(ShardDataset(sys.argv[1], transform=views), 4))\n"
        "assert found == [] and count, found\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(converted)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/reliability.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", text)
    files = re.findall(r"`((?:\w+/)*\w+\.(?:py|sh))`", text)
    assert files
    for name in named:
        assert f"def {name}(" in tests, name
    for name in files:
        places = [ROOT / name, ROOT / "tests" / name, ROOT / "tests" / "faults" / name]
        assert any(place.exists() for place in places), name
