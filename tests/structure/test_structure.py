"""The house keeps its floors: imports point down, libraries are imported in one place, the surface is known."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import HELPERS, TESTS

import fastdata

PACKAGE = Path(fastdata.__file__).parent
# From the ground up.  A room is a folder, or a file beside the folders; imports go to rooms on lower floors only.
FLOORS = [
    {"errors"},
    {"limits", "tables"},
    {"system", "terminal"},
    {"patches"},
    {"pages"},
    {"native"},
    {"jpeg_index", "views"},
    {"order", "sources", "loaders"},
    {"augment", "device", "measuring"},
    {"transforms"},
    {"pipeline"},
    {"lazy"},
    {"image_folder"},
    {"shards"},
    {"shards.conversion", "dataloader"},
    {"models", "run", "testing"},
    {"train", "run.site"},
    {"diagnosis"},
    {"demo"},
    {"cli"},
    {"__init__", "__main__"},
]
LIBRARIES = {
    # encoded_image, encoded_file and encoded_band are Pillow's images, which pillow_likeness makes look so; opening and
    # pillow_filters replace functions of its; samples calls what may be replaced, as datasets do.
    "PIL": {
        "loaders/pillow.py",
        "lazy/encoded_band.py",
        "lazy/encoded_file.py",
        "lazy/encoded_image.py",
        "lazy/opening.py",
        "lazy/pillow_filters.py",
        "lazy/pillow_likeness.py",
        "loaders/pillow_effects.py",
        "loaders/pillow_files.py",
        "sources/samples.py",
        "testing/pictures.py",
    },
    "turbojpeg": {"loaders/turbojpeg.py"},
    "cv2": {"loaders/opencv.py"},
    "nvidia": {"loaders/dali.py", "loaders/dali_effects.py", "loaders/dali_pipeline.py"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path, *, for_types: bool = True) -> list[str]:
    """Dotted names a file imports, wherever in the file: in functions and, unless told otherwise, for types only."""
    names = []
    tree = ast.parse(path.read_text())
    typing_only = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    hidden = set() if for_types else {id(child) for node in typing_only for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def module_of(name: str) -> Path | None:
    """The file of the package that a dotted name comes from."""
    parts = name.split(".")
    if parts[0] != "fastdata":
        return None
    if len(parts) == 2 and parts[1] in fastdata._HOMES:
        parts = ["fastdata", *fastdata._HOMES[parts[1]].split(".")]
    for length in range(len(parts), 0, -1):
        place = PACKAGE.joinpath(*parts[1:length])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
    return None


def room_of(path: Path) -> str:
    """The folder of a file, or the file itself where it is in none."""
    folders = path.relative_to(PACKAGE).parts[:-1]
    return ".".join(folders) if folders else path.stem


def floor_of(room: str) -> int:
    return next(number for number, floor in enumerate(FLOORS) if room in floor)


def upward_imports(path: Path) -> list[str]:
    """What a file imports from rooms that are not below its own."""
    own = room_of(path)
    used = {room_of(module) for module in map(module_of, imports(path)) if module is not None} - {own, "__init__"}
    return sorted(room for room in used if floor_of(room) >= floor_of(own))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    assert upward_imports(path) == []


def test_every_room_has_a_floor_and_says_what_it_is_for() -> None:
    rooms = {room_of(path) for path in modules()}
    assert rooms == set().union(*FLOORS)
    for folder in (PACKAGE.joinpath(*room.split(".")) for room in rooms):
        if folder.is_dir():
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


@pytest.mark.parametrize(
    ("planted", "in_function"),
    [("from fastdata.dataloader.loader import DataLoader", False), ("from fastdata import DataLoader", True)],
)
def test_an_import_against_the_floors_is_found(
    planted: str, in_function: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PACKAGE / "order" / "state.py"
    source = path.read_text() + (f"\ndef late() -> None:\n    {planted}\n" if in_function else f"\n{planted}\n")
    monkeypatch.setattr(Path, "read_text", lambda _: source)
    assert upward_imports(path) == ["dataloader"]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also within a folder, and also what is imported late or for type checking."""
    needs = {
        path: {module for module in map(module_of, imports(path)) if module is not None} - {path} for path in modules()
    }
    while free := [path for path, needed in needs.items() if not needed & needs.keys()]:
        for path in free:
            del needs[path]
    assert sorted(str(path.relative_to(PACKAGE)) for path in needs) == []


def assigned_elsewhere(path: Path) -> list[str]:
    """Attributes and entries of other libraries that a file assigns."""
    tree, names = ast.parse(path.read_text()), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name.split(".")[0] for each in node.names if "fastdata" not in each.name}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(("fastdata", "__future__")):
            names |= {each.asname or each.name for each in node.names}
    found = []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            targets = [ast.Attribute(value=node.args[0], attr="...")]
        for target in targets:
            root: ast.expr = target
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if root is not target and isinstance(root, ast.Name) and root.id in names:
                found.append(ast.unparse(target))
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_other_libraries_are_changed_in_patches_only(path: Path) -> None:
    """But by those that start programs (run/), watch them (diagnosis/), or set torch's switches (train/)."""
    if room_of(path).split(".")[0] not in ("patches", "run", "diagnosis", "train"):
        assert assigned_elsewhere(path) == []


@pytest.mark.parametrize(
    "planted", ["torch.rand = None", "torch.random.seed.x['a'] = 1", "setattr(torch, 'rand', None)"]
)
def test_a_replacement_elsewhere_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = PACKAGE / "order" / "random_states.py"
    source = path.read_text() + f"\nimport torch\n{planted}\n"
    assert assigned_elsewhere(path) == []
    monkeypatch.setattr(Path, "read_text", lambda _: source)
    assert len(assigned_elsewhere(path)) == 1


@pytest.mark.parametrize("path", sorted((PACKAGE / "loaders").glob("*.py")), ids=lambda path: path.name)
def test_backends_do_not_import_each_other(path: Path) -> None:
    backends = {"native", "pil", "turbojpeg", "opencv", "dali", "synthetic"}
    used = {name.split(".")[2] for name in imports(path) if name.startswith("fastdata.loaders.")}
    assert used & backends - {path.stem} == set()


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_decoder_library_is_imported_in_one_file(library: str) -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        if library in {name.split(".")[0] for name in imports(path, for_types=False)}
    }
    assert users - {p for p in users if p.startswith("demo/")} == {
        name for name in LIBRARIES[library] if (PACKAGE / name).exists()
    }


def test_threads_start_where_their_life_cycle_is_written() -> None:
    users = [path for path in modules() if "threading.Thread" in path.read_text()]
    assert [path.name for path in users] == [
        "worker_faults.py",
        "budget.py",
        "jobs.py",
        "engines.py",
        "remote.py",
        "ordered_map.py",
    ]
    assert all("any deviation is a bug" in path.read_text() for path in users)


def test_tests_import_from_helpers_alone() -> None:
    """Not from each other, and not from conftest.py; scripts that they start are searched, too."""
    for path in TESTS.rglob("*.py"):
        found = re.findall(r"^\s*(?:from|import)\s+((?:test_\w+|conftest)\b)", path.read_text(), re.MULTILINE)
        assert found == [], path


def test_the_tests_left_to_the_night_exist() -> None:
    """A renamed test would run again, and the list would grow out of date."""
    for line in (PACKAGE.parent / "tests" / "nightly.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            file, _, rest = line.partition("::")
            name = rest.partition("[")[0]
            assert f"def {name}" in (PACKAGE.parent / file).read_text(), line


def test_every_test_lies_in_a_folder_under_a_name_of_its_own() -> None:
    assert [path.name for path in TESTS.iterdir() if path.is_file()] == ["conftest.py", "nightly.txt"]
    names = [path.stem for path in TESTS.rglob("*.py")]
    assert sorted(names) == sorted(set(names))
    assert list(HELPERS.rglob("test_*.py")) == []


def test_the_public_names() -> None:
    assert fastdata.__all__ == sorted(fastdata.__all__) == dir(fastdata)
    assert set(fastdata.__all__) == {
        "AspectBuckets",
        "BucketBatchSampler",
        "DataLoader",
        "DatasetError",
        "DecodeError",
        "DevicePrefetcher",
        "EpochSampler",
        "FastdataError",
        "ImageFolder",
        "MixedDataset",
        "NotAccelerated",
        "OptionError",
        "PipelineError",
        "SamplesSkipped",
        "ShardDataset",
        "ShardError",
        "ShardWriter",
        "StateMismatch",
        "check",
        "doctor",
        "open_image",
        "replace_dataloader",
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


@pytest.mark.parametrize("module", ["fastdata.cli.main", "fastdata.shards.conversion.job", "fastdata.shards.verify"])
def test_commands_and_the_processes_that_convert_start_without_torch(module: str) -> None:
    script = f"import sys, {module}; assert not {{'torch', 'cv2', 'matplotlib'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_loader_imports_neither_decoders_nor_torchvision() -> None:
    script = (
        "import sys; from fastdata import DataLoader, ImageFolder; "
        "assert not {'cv2', 'turbojpeg', 'torchvision', 'PIL'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_loaders_at_the_top_is_a_link_to_the_package() -> None:
    assert (PACKAGE.parent / "loaders").resolve() == PACKAGE / "loaders"


def test_the_contract_of_backends_knows_no_backend() -> None:
    contract = "backend", "batch_decoder", "encoded"
    for file in (*(f"loaders/{name}.py" for name in contract), "tables.py"):
        own = [name for name in imports(PACKAGE / file) if name.startswith("fastdata")]
        own = [name for name in own if not name.startswith(tuple(f"fastdata.loaders.{each}." for each in contract))]
        assert not [name for name in own if ".native" in name or ".loaders" in name], file


def test_cuda_is_called_in_one_file() -> None:
    for path in modules():
        called = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) == ("torch", "cuda")
        ]
        named = [name for name in imports(path) if name.startswith("torch.cuda")]
        assert path.name == "cuda.py" or not (called or named), path
