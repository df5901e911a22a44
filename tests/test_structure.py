"""The house keeps its floors: imports point down, libraries are imported in one place, the surface is known."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fastdata

PACKAGE = Path(fastdata.__file__).parent
FLOORS = [
    {"errors", "cpus", "files", "flags", "header", "optional", "plan", "progress", "storage", "syncs"},
    {"native"},
    {"draws"},
    {"views", "stats", "seeded", "copies"},
    {"samplers"},
    {"sampler_chain", "loader_state"},
    {"random_states"},
    {"order", "sources", "device_ops"},
    {"loaders"},
    {"augmentation", "augment_policies", "augment", "mix"},
    {"compile", "finish"},
    {"auto", "options", "pipeline", "prefetch", "convert", "memory"},
    {"transforms", "image_work", "image_batch", "pipelined"},
    {"fetch", "routes", "epoch", "open_pipeline"},
    {"datasets", "explain", "stateful"},
    {"shards"},
    {"dataloader"},
    {"models"},
    {"train"},
    {"bench", "demo"},
    {"cli"},
    {"__init__", "__main__"},
]
LIBRARIES = {
    "PIL": "loaders/pillow.py",
    "turbojpeg": "loaders/turbojpeg.py",
    "cv2": "loaders/opencv.py",
    "nvidia": "loaders/dali.py",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> list[str]:
    """Dotted names a file imports, wherever in the file, except for type checking only."""
    names = []
    tree = ast.parse(path.read_text())
    skipped = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    hidden = {id(child) for node in skipped for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def floor_of(name: str) -> int:
    return next(number for number, floor in enumerate(FLOORS) if name in floor)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    named = {name.split(".")[1] for name in imports(path) if name.startswith("fastdata.")}
    used = {fastdata._HOMES.get(name, name).split(".")[0] for name in named} - {own, "__version__"}
    assert [name for name in used if floor_of(name) > floor_of(own)] == []


@pytest.mark.parametrize("path", sorted((PACKAGE / "loaders").glob("*.py")), ids=lambda path: path.name)
def test_backends_do_not_import_each_other(path: Path) -> None:
    backends = {"native", "pil", "turbojpeg", "opencv", "dali", "synthetic"}
    used = {name.split(".")[2] for name in imports(path) if name.startswith("fastdata.loaders.")}
    assert used & backends - {path.stem} == set()


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_decoder_library_is_imported_in_one_file(library: str) -> None:
    users = {
        str(path.relative_to(PACKAGE)) for path in modules() if library in {n.split(".")[0] for n in imports(path)}
    }
    assert users - {"bench.py"} - {p for p in users if p.startswith("demo/")} == {LIBRARIES[library]}


def test_threads_start_where_their_life_cycle_is_written() -> None:
    users = [path for path in modules() if "threading.Thread" in path.read_text()]
    assert [path.name for path in users] == ["pipeline.py", "engines.py", "remote.py"]
    assert all("any deviation is a bug" in path.read_text() for path in users)


def test_the_public_names() -> None:
    assert fastdata.__all__ == sorted(fastdata.__all__)
    assert set(fastdata.__all__) == {
        "BackendError",
        "BackendUnavailable",
        "ConversionError",
        "DaliOptions",
        "DataLoader",
        "DatasetError",
        "DecodeError",
        "DevicePrefetcher",
        "EpochSampler",
        "FastdataError",
        "ImageFolder",
        "OptionError",
        "PipelineError",
        "ShardDataset",
        "ShardError",
        "StateMismatch",
        "StoreError",
        "TrainError",
    }
    for name in fastdata.__all__:
        assert getattr(fastdata, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Dataloader'"):
        _ = fastdata.Dataloader


def test_importing_is_quiet_quick_and_starts_nothing() -> None:
    script = (
        "import sys, threading, fastdata; "
        "assert not {'torch', 'PIL', 'cv2', 'turbojpeg', 'torchvision', 'numpy'} & set(sys.modules), 'heavy import'; "
        "assert threading.active_count() == 1"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_loader_imports_neither_decoders_nor_torchvision() -> None:
    script = (
        "import sys; from fastdata import DataLoader, ImageFolder; "
        "assert not {'cv2', 'turbojpeg', 'torchvision', 'PIL'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_loaders_at_the_top_is_a_link_to_the_package() -> None:
    assert (PACKAGE.parent / "loaders").resolve() == PACKAGE / "loaders"
