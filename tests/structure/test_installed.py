"""Messages name the way by which the package was installed, not an index that it may not have come from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

_TOLD = (
    "from fastdata.system.installed import install_command as c; print(c('turbojpeg')); print(c(options='--no-deps'))"
)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the package and its metadata, as pip leaves it."""
    site = tmp_path / "site"
    (site / "fastdata" / "system").mkdir(parents=True)
    for name in ("__init__.py", "system/__init__.py", "system/installed.py"):
        (site / "fastdata" / name).write_text((ROOT / "fastdata" / name).read_text())
    info = site / "torch_fastdata-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-fastdata\nVersion: 0.1.0\n")
    return site


def told(site: Path, origin: Any = None) -> list[str]:
    """The commands with and without an extra, as a fresh interpreter finds them."""
    if origin is not None:
        (site / "torch_fastdata-0.1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    command = [sys.executable, "-S", "-c", _TOLD]  # without what is installed
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=site)
    return done.stdout.splitlines()


ORIGINS: dict[str, tuple[Any, list[str]]] = {
    "an index": (None, ["pip install 'torch-fastdata[turbojpeg]'", "pip install --no-deps torch-fastdata"]),
    "a checkout": (
        {"url": "file:///home/me/my%20code", "dir_info": {}},
        [
            "in the checkout at /home/me/my code: pip install '.[turbojpeg]'",
            "in the checkout at /home/me/my code: pip install --no-deps .",
        ],
    ),
    "an editable checkout": (
        {"url": "file:///code", "dir_info": {"editable": True}},
        [
            "in the checkout at /code: pip install -e '.[turbojpeg]'",
            "in the checkout at /code: pip install --no-deps -e .",
        ],
    ),
    "a wheel": (
        {"url": "file:///w/torch_fastdata-0.1.0-py3-none-any.whl", "archive_info": {}},
        [
            "pip install '/w/torch_fastdata-0.1.0-py3-none-any.whl[turbojpeg]'",
            "pip install --no-deps '/w/torch_fastdata-0.1.0-py3-none-any.whl'",
        ],
    ),
    "a repository": (
        {"url": "https://example.org/it.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
        [
            "pip install 'torch-fastdata[turbojpeg] @ git+https://example.org/it.git'",
            "pip install --no-deps 'torch-fastdata @ git+https://example.org/it.git'",
        ],
    ),
    "an address": (
        {"url": "https://example.org/it.whl", "archive_info": {}},
        [
            "pip install 'torch-fastdata[turbojpeg] @ https://example.org/it.whl'",
            "pip install --no-deps 'torch-fastdata @ https://example.org/it.whl'",
        ],
    ),
}


@pytest.mark.parametrize(("origin", "commands"), ORIGINS.values(), ids=ORIGINS)
def test_the_command_is_that_of_the_installation(installed: Path, origin: Any, commands: list[str]) -> None:
    assert told(installed, origin) == commands


def test_a_checkout_on_the_path_is_a_checkout(installed: Path) -> None:
    (installed / "pyproject.toml").write_text("")
    assert told(installed)[0] == f"in the checkout at {installed.resolve()}: pip install -e '.[turbojpeg]'"


def test_unreadable_metadata_counts_as_an_index(installed: Path) -> None:
    (installed / "torch_fastdata-0.1.0.dist-info" / "direct_url.json").write_text("{")
    assert told(installed)[0] == "pip install 'torch-fastdata[turbojpeg]'"
