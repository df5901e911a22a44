"""Make the environment of each peer: build/peers/NAME, a virtual environment over this interpreter's packages.

The peer and whatever it needs in another version lie in its own environment; torch and torchvision are this
interpreter's, so that all peers are compared on the same ones.

    python benchmarks/peers/environments.py [NAME ...]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from peers import PEERS, Peer

__all__ = ["Environment", "environment"]

FOLDER = Path(__file__).parents[2] / "build" / "peers"
PIP_TIMEOUT_S = 1200


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a peer runs.

    Attributes:
        python: its interpreter.
        versions: of the distributions that matter to it.
        problem: why the peer cannot be used, or None.
    """

    python: Path
    versions: dict[str, str]
    problem: str | None = None


def environment(peer: Peer) -> Environment:
    """The environment of a peer, made if it is not there."""
    if not peer.requires:
        return _inspect(peer, Path(sys.executable))
    folder = FOLDER / peer.name
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        venv.create(folder, with_pip=False, clear=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        # addsitedir instead of the path alone: fastdata may be installed there in editable mode, by a .pth file
        base = sysconfig.get_path("purelib")
        (own / "base.pth").write_text(f"import site; site.addsitedir({base!r})\n")
        problem = _install_system(peer) or _install(peer, python)
        if problem:
            return Environment(python=python, versions={}, problem=problem)
        (folder / "made").touch()
    return _inspect(peer, python)


def _install(peer: Peer, python: Path) -> str | None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    done = subprocess.run([*pip, *peer.requires], capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
    told = re.sub(r" ?/\S*pip-\S+", "", " ".join(lines))  # pip's temporary folders
    return f"pip install {' '.join(peer.requires)}: {told[:300]}"


def _install_system(peer: Peer) -> str | None:
    """Installs Debian packages where that is possible; what is not there shows when the peer is imported."""
    query = ["dpkg", "-s", *peer.system]
    if not peer.system or subprocess.run(query, capture_output=True, check=False).returncode == 0:
        return None
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    command = [*as_root, "apt-get", "install", "-y", "-qq", *peer.system]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"needs {', '.join(peer.system)}: install them by hand"
    return None if done.returncode == 0 else f"apt-get install {' '.join(peer.system)}: {done.stderr.strip()[-200:]}"


def _inspect(peer: Peer, python: Path) -> Environment:
    """Imports the peer in its environment and asks for the versions."""
    names = ["torch", "torchvision", "numpy", "pillow", *(re.split("[=@ ]", name)[0] for name in peer.requires)]
    script = (
        "import importlib, importlib.metadata as m, json, sys\n"
        "for name in json.loads(sys.argv[1]): importlib.import_module(name)\n"
        "print('\\n' + json.dumps({name: m.version(name) for name in json.loads(sys.argv[2])}))"
    )
    command = [str(python), "-c", script, json.dumps(peer.imports), json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Environment(python=python, versions={}, problem=f"import: {done.stderr.strip().splitlines()[-1][:300]}")
    return Environment(python=python, versions=json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """The command."""
    for name in sys.argv[1:] or PEERS:
        made = environment(PEERS[name])
        print(f"{name}: {made.problem or made.versions}", flush=True)


if __name__ == "__main__":
    main()
