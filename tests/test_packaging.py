"""What is installed: the whole package, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_every_module_and_no_sources(tmp_path: Path) -> None:
    """Built without the core, which takes a second; tools/build_wheel.sh tries the real one."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    settings = ["--no-build-isolation", "-C", "wheel.cmake=false", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run([*command, *settings], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "fastdata").rglob("*.py")}
    assert found == modules | {"fastdata/py.typed"}
