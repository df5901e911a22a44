"""Image files for tests, all made here, and the fixtures every folder uses."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import images
from browsers import browser
from folders import SHARD_BYTES
from photographs import PHOTOS, photographs

from fastdata.errors import BackendUnavailable
from fastdata.loaders import describe_backends

_NUMBERS = itertools.count()

# Triton decides at its import whether it interprets kernels: tests/device/test_kernels.py starts these on their own.
collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted/*"]

# Tests define datasets and transforms in functions, which only forked processes get without pickling.  Those of other
# start methods name theirs, and programs that tests start have Python's own default.
if sys.platform == "linux" and sys.version_info >= (3, 14):
    multiprocessing.set_start_method("fork")


@pytest.fixture(autouse=True)
def no_timings_from_before(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test measures for itself, and leaves nothing in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache-{next(_NUMBERS)}"))


@pytest.fixture(autouse=True)
def no_line_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are searched for sentences; tests/commands/test_width.py wraps them."""
    monkeypatch.setenv("COLUMNS", "10000")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder: 3 classes, 13 JPEGs each, of many sizes and samplings."""
    root = tmp_path_factory.mktemp("folder")
    rng = np.random.default_rng(7)
    for label in ("apple", "bear", "cup"):
        (root / label).mkdir()
        for number in range(13):
            width, height = rng.integers(60, 260, 2).tolist()
            data = images.jpeg(width, height, seed=number, sampling=("4:4:4", "4:2:0", "4:2:2")[number % 3])
            (root / label / f"{number:02}.jpg").write_bytes(data)
    return root


@pytest.fixture(scope="session")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One class of difficult but valid files."""
    root = tmp_path_factory.mktemp("odd")
    (root / "all").mkdir()
    for name, data in images.odd_files().items():
        (root / "all" / name).write_bytes(data)
    return root


@pytest.fixture(scope="session")
def converted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image folder as shards."""
    from fastdata.shards.conversion.convert import ConvertOptions, convert

    target = tmp_path_factory.mktemp("shards") / "set"
    convert(str(folder), target, ConvertOptions(shard_bytes=SHARD_BYTES))
    return target


@pytest.fixture
def own(converted: Path, tmp_path: Path) -> Path:
    """A copy of the shards that a test may damage."""
    shutil.copytree(converted, tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_stays_compiled() -> Iterator[None]:
    """What a test compiles is unknown to those after it: the doctor asks what the process has compiled."""
    yield
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters:
        dynamo.utils.counters.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where there is a GPU, torch imports its whole compiler here
            dynamo.reset()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of nightly.txt where tools/test.sh asks for that, not where somebody names a test."""
    if os.environ.get("FASTDATA_LEAVE_NIGHTLY") != "1":
        return
    left = tuple(nightly())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid.startswith(left)])
    items[:] = [item for item in items if not item.nodeid.startswith(left)]


def nightly() -> list[str]:
    """Beginnings of the names of the tests in nightly.txt."""
    lines = (Path(__file__).parent / "nightly.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that need a GPU, photographs or a browser skip where there is none, and fail where it was promised."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        _skip_or_fail("torch sees no CUDA device", "FASTDATA_REQUIRE_CUDA")
    marker = item.get_closest_marker("backend")
    if marker is not None and (problem := backend_problem(marker.args[0])) is not None:
        _skip_or_fail(problem, "FASTDATA_REQUIRE_BACKENDS")
    marker = item.get_closest_marker("photos")
    if marker is not None and not photographs(folder := marker.args[0]):
        missing = f"{PHOTOS} holds no photographs in {folder} (FASTDATA_PHOTOS may name another place)"
        _skip_or_fail(missing, "FASTDATA_REQUIRE_PHOTOS")
    if item.get_closest_marker("browser") is not None and browser() is None:
        _skip_or_fail("there is no Chromium", "FASTDATA_REQUIRE_BROWSER")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """A test of a backend that is not installed skips, and says which one."""
    return (yield from _skipping_what_is_not_installed())


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Any:
    """The same where a fixture makes the backend."""
    return (yield from _skipping_what_is_not_installed())


def _skipping_what_is_not_installed() -> Any:
    try:
        return (yield)
    except BackendUnavailable as error:
        if os.environ.get("FASTDATA_REQUIRE_BACKENDS") == "1":
            raise
        _skip_or_fail(str(error), "FASTDATA_REQUIRE_BACKENDS")


def backend_problem(name: str) -> str | None:
    """Why a backend cannot be used here; None if it can."""
    return next(info.problem for info in describe_backends() if info.name == name)


def _skip_or_fail(missing: str, promise: str) -> None:
    if os.environ.get(promise) == "1":
        pytest.fail(f"{promise}=1, but {missing}", pytrace=False)
    pytest.skip(f"{missing}; with {promise}=1 this is a failure")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen JPEGs, grey and progressive ones among them, for `own_tables.Table` and for ImageFolder."""
    from own_tables import make_table

    return make_table(tmp_path_factory.mktemp("table"))
