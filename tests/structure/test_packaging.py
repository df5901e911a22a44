"""What is installed: the whole package, and nothing else; what an index page shows leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from places import ROOT

import fastdata
from fastdata.loaders.opencv import OpenCvBackend

HOME = "https://github.com/torch-fastdata/torch-fastdata"
RAW = "https://raw.githubusercontent.com/torch-fastdata/torch-fastdata"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built without the core, which takes a second; tools/build_wheel.sh tries the real one."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    settings = ["--no-build-isolation", "-C", "wheel.cmake=false", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*command, *settings], check=True, cwd=folder)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture
def about(wheel: zipfile.ZipFile) -> Message:
    return message_from_bytes(wheel.read("torch_fastdata-0.1.0.dist-info/METADATA"))


def test_the_wheel_holds_every_module_and_no_sources(wheel: zipfile.ZipFile) -> None:
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "fastdata" / "pages").glob("*.html")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "fastdata").rglob("*.py")}
    assert found == modules | {"fastdata/py.typed"} | pages


def test_nothing_in_the_wheel_is_read_by_interpreters_that_nobody_asked(wheel: zipfile.ZipFile) -> None:
    """Neither a .pth file nor a sitecustomize that is found without a PYTHONPATH of its own."""
    assert not [name for name in wheel.namelist() if name.endswith(".pth")]
    assert [name for name in wheel.namelist() if "customize" in name] == ["fastdata/run/site/sitecustomize.py"]


def test_the_distribution_has_a_name_of_its_own_and_says_where_its_home_is(about: Message) -> None:
    assert about["Name"] == "torch-fastdata"
    urls = dict(each.split(", ") for each in about.get_all("Project-URL") or [])
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(HOME) for url in urls.values())


def test_the_readmes_links_are_whole_and_lead_to_files_that_exist(about: Message) -> None:
    text = str(about.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 5
    for link in links:
        assert link.startswith("https://")
        place = re.fullmatch(rf"{HOME}/(?:blob|tree)/main/([^#]+)(?:#.*)?", link)
        assert place is not None
        assert (ROOT / place[1]).exists()


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_into_the_repository_lead_to_files_and_headings_that_exist(page: str) -> None:
    """Those within the documentation are checked where it is built."""
    links = re.findall(rf"{HOME}/(?:blob|tree)/main/([\w./-]+)(?:#([\w-]+))?", (ROOT / page).read_text())
    links += re.findall(rf"{RAW}/main/([\w./-]+)()", (ROOT / page).read_text())
    for path, heading in links:
        assert (ROOT / path).exists(), path
        titles = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE) if heading else []
        slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not heading or heading in slugs, f"{path}#{heading}"


def test_the_extras_are_what_their_names_say(about: Message) -> None:
    required = [text.replace(" ", "") for text in about.get_all("Requires-Dist") or []]
    assert 'opencv-python>=4.8;extra=="opencv"' in required
    assert 'opencv-python-headless>=4.8;extra=="opencv-headless"' in required
    assert not [text for text in required if text.endswith('extra=="demo"') and "opencv" in text]  # nor overwrites one


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert set(re.findall(r":: fastdata\.(\w+)$", page, re.MULTILINE)) == set(fastdata.__all__)


def test_every_hint_names_the_distribution_and_extras_that_exist(about: Message) -> None:
    files = "".join(path.read_text() for path in (ROOT / "fastdata" / "loaders").glob("*.py"))
    named = set(re.findall(r"install_command\(['\"]([\w-]+)", files))
    assert {"opencv", "opencv-headless", "turbojpeg"} <= named <= set(about.get_all("Provides-Extra") or [])
    for path in [*(ROOT / "fastdata").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        assert not re.search(r"pip install '?fastdata\b", path.read_text()), path
    for path in (ROOT / "fastdata").rglob("*.py"):  # the others ask how the package was installed
        assert not re.search(r"pip install[^\n]*torch-fastdata", path.read_text()), path


# ---- the two OpenCVs


def test_opencv_says_which_of_its_distributions_it_is() -> None:
    assert re.fullmatch(r"OpenCV \S+ \(opencv-(contrib-)?python(-headless)?\)", OpenCvBackend.version())


_TWO = """
import sys
from importlib import metadata
from pathlib import Path
for name in ("opencv_python", "opencv_python_headless"):
    folder = Path(sys.argv[1]) / f"{name}-4.9.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name.replace('_', '-')}\\nVersion: 4.9.0\\n")
sys.path.insert(0, sys.argv[1])
from fastdata.loaders.opencv import OpenCvBackend
print(OpenCvBackend.version())
"""

_NO_LIBGL = """
import sys
from pathlib import Path
Path(sys.argv[1]).joinpath("cv2.py").write_text(
    "raise ImportError('libGL.so.1: cannot open shared object file: No such file or directory')"
)
sys.path.insert(0, sys.argv[1])
from fastdata.cli.main import main
main(["info"])
"""


def run(script: str, folder: Path) -> str:
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_both_opencvs_at_once_are_told_apart(tmp_path: Path) -> None:
    told = run(_TWO, tmp_path)
    assert "opencv-python and opencv-python-headless, which overwrite each other's files: pip uninstall -y" in told


@pytest.mark.slow
def test_a_missing_libgl_is_explained(tmp_path: Path) -> None:
    told = run(_NO_LIBGL, tmp_path)
    assert "libGL.so.1: cannot open shared object file" in told
    assert "apt-get install libgl1" in told
    assert "pip install -e '.[opencv-headless]'" in told
