"""Backends from outside of the package, and the package without one of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.utils.data
from PIL import Image
from torchvision.transforms import v2

import fastdata
from fastdata import DataLoader, DecodeError, ImageFolder, OptionError
from fastdata.loaders import BACKENDS, available_backends, register_backend
from fastdata.loaders.backend import Encoded, Filled, Pixels
from fastdata.loaders.batch_decoder import BatchFeed, BatchRequest, Decoded
from fastdata.loaders.per_image import PerImageBackend, PerImageFiller
from fastdata.loaders.pillow import decode_view
from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.resources import EpochResources
from fastdata.tables import EffectTable, Recipes
from fastdata.testing import check_backend
from fastdata.transforms.compile import compile_transform
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.view import View, views_of

TRAIN = v2.Compose(
    [
        v2.RandomResizedCrop(24, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
    ]
)


class ToyBatches:
    """Decodes whole batches, two ahead, and gives up on one that holds a damaged image, as DALI does."""

    opened: ClassVar[list[BatchRequest]] = []
    running = 0

    def suits(self, plan: Plan) -> bool:
        return plan.size is not None

    def takes(self, image: Encoded, view: View) -> bool:
        return image.is_plain_jpeg()

    def effects(self, drawn: EffectTable) -> None:
        return None

    def open(self, feeds: Iterator[BatchFeed], request: BatchRequest) -> ToyPipeline:
        ToyBatches.opened.append(request)
        ToyBatches.running += 1
        return ToyPipeline(feeds)


class ToyPipeline:
    def __init__(self, feeds: Iterator[BatchFeed]) -> None:
        self._feeds, self._ahead, self._closed = feeds, [], False  # type: ignore[var-annotated]

    def __iter__(self) -> ToyPipeline:
        return self

    def __next__(self) -> tuple[BatchFeed, Decoded]:
        while len(self._ahead) < 2:
            try:
                self._ahead.append(next(self._feeds))
            except Exception as error:  # noqa: BLE001 - raised at its place
                self._ahead.append(error)
        first = self._ahead.pop(0)
        if isinstance(first, Exception):
            raise first
        return first, self._decode(first)

    def _decode(self, feed: BatchFeed) -> Decoded:
        views = views_of(feed.views)
        out = torch.zeros((len(views), *views[0].size, 3), dtype=torch.uint8)
        for data, view, place in zip(feed.encoded, views, out.numpy(), strict=True):
            try:
                decode_view(data.tobytes(), view, place)
            except OSError:
                return RuntimeError("something in this batch is damaged")
        return out

    def close(self) -> None:
        ToyBatches.running -= not self._closed
        self._closed = True


class ToyBackend(PerImageBackend):
    name = "toy"
    install_hint = "it is made here"

    @classmethod
    def version(cls) -> str:
        return "1"

    def decode_view(self, image: Encoded, view: View, out: Pixels) -> None:
        decode_view(image.data, view, out)

    def batch_decoder(self) -> ToyBatches:
        return ToyBatches()


class PlainBackend(ToyBackend):
    name = "plain"

    def batch_decoder(self) -> None:  # type: ignore[override]
        return None


class ReadingBackend(PlainBackend):
    """Offers what the native core does: reads files itself, and decodes images of a dataset's own code."""

    name = "reading"
    mean_tolerance: ClassVar[Any] = {"exact": 0.0}
    calls: ClassVar[list[str]] = []

    def filler(self, plan: Plan | None = None, key: Key | None = None, *, threads: int) -> ReadingFiller:  # type: ignore[override]
        return ReadingFiller(self.decode_view, plan, key)


class ReadingFiller(PerImageFiller):
    """Draws, reads and decodes as the filler for single images, but many with one call."""

    takes_batches = True

    def fill(self, recipes: Recipes) -> Filled:
        ReadingBackend.calls.append("drawn" if recipes.windows is None else "given")
        return super().fill(recipes)


class NoiseBackend(PlainBackend):
    name = "noise"

    def ready_batches(self) -> NoiseBackend:
        return self

    def ready(self, count: int, make_empty: Any) -> torch.Tensor:
        return make_empty(count).fill_(0.5)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = dict(BACKENDS)
    for backend in (ToyBackend, PlainBackend, ReadingBackend, NoiseBackend):
        register_backend(backend)
    yield
    for name in BACKENDS.keys() - before.keys():
        del BACKENDS[name]


def batches(folder: Path, backend: str, **options: Any) -> list[Any]:
    loader = DataLoader(ImageFolder(folder, TRAIN), 6, backend=backend, seed=3, shuffle=True, **options)
    return [[images, labels] for images, labels in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", ["toy", "plain", "reading"])
def test_a_backend_from_outside_gives_pillows_batches(folder: Path, backend: str, workers: int) -> None:
    ToyBatches.opened.clear()
    ours, expected = batches(folder, backend, num_workers=workers), batches(folder, "pil")
    assert all(torch.equal(a, b) for pair in zip(ours, expected, strict=True) for a, b in zip(*pair, strict=True))
    assert len(ToyBatches.opened) == (backend == "toy")
    assert ToyBatches.running == 0


def test_a_backend_from_outside_can_offer_what_the_native_core_does(folder: Path) -> None:
    check_backend("reading")
    steps = v2.RandomResizedCrop(24), v2.ColorJitter(0.4, 0.4), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)
    changed = v2.Compose([*steps, v2.RandomErasing(1.0)])

    class Own(torch.utils.data.Dataset[Any]):
        def __init__(self, transform: Any) -> None:
            self.samples, self.transform = ImageFolder(folder).samples, transform

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> Any:
            path, target = self.samples[index]
            return self.transform(Image.open(path).convert("RGB")), target

    for transform in (TRAIN, changed):
        for dataset, call in ((ImageFolder(folder, transform), "drawn"), (Own(transform), "given")):
            found = {}
            for backend in ("reading", "native"):
                ReadingBackend.calls.clear()
                loader = DataLoader(dataset, 6, backend=backend, seed=3, shuffle=True, num_workers=2)
                found[backend] = list(loader)
                assert (call in ReadingBackend.calls) == (backend == "reading"), loader.verdict()
            for ours, theirs in zip(found["reading"], found["native"], strict=True):
                assert torch.equal(ours[0], theirs[0])
                assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_damaged_images_have_the_same_outcome(folder: Path, tmp_path: Path, on_error: str) -> None:
    shutil.copytree(folder, tmp_path / "own")
    damaged = next((tmp_path / "own" / "bear").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:200])
    if on_error == "raise":
        with pytest.raises(DecodeError, match=damaged.name):
            batches(tmp_path / "own", "toy")
        return
    ours, expected = (batches(tmp_path / "own", backend, on_error=on_error) for backend in ("toy", "pil"))
    assert all(torch.equal(a, b) for pair in zip(ours, expected, strict=True) for a, b in zip(*pair, strict=True))
    assert ToyBatches.running == 0


def test_breaking_off_closes_the_pipeline(folder: Path) -> None:
    for _ in DataLoader(ImageFolder(folder, TRAIN), 6, backend="toy", num_workers=2):
        break
    assert ToyBatches.running == 0


def test_ready_batches_are_handed_out(folder: Path) -> None:
    images, labels = batches(folder, "noise")[0]
    assert images.shape == (6, 3, 24, 24)
    assert (images == 0.5).all()
    assert set(labels.tolist()) <= {0, 1, 2}


def test_a_registered_backend_is_known_and_never_chosen_unasked(folder: Path) -> None:
    assert {"toy", "plain"} <= set(available_backends())
    choice = DataLoader(ImageFolder(folder, TRAIN), backend="toy")._findings.choice
    assert choice is not None
    assert (choice.backend.name, choice.reason) == ("toy", "named by you")
    loader = DataLoader(ImageFolder(folder, TRAIN), 6)
    next(iter(loader))
    assert loader.stats()["backend"] == "native"


@pytest.mark.parametrize("taken", ["native", "auto", None, 3])
def test_a_name_that_is_taken_is_refused(taken: Any) -> None:
    with pytest.raises(OptionError, match="not taken"):
        register_backend(type("Other", (PlainBackend,), {"name": taken}))


WITHOUT_DALI = """
import sys
import fastdata
from fastdata import DataLoader, ImageFolder
from fastdata.errors import BackendUnavailable
from fastdata.loaders import available_backends
from fastdata.transforms import Compose, Resize, ToTensor
assert not any(name.startswith("nvidia") for name in sys.modules)
assert "dali" not in available_backends()
dataset = ImageFolder(sys.argv[1], Compose([Resize((16, 16)), ToTensor()]))
for fidelity in ("exact", "fast"):
    assert sum(len(labels) for _, labels in DataLoader(dataset, 8, fidelity=fidelity)) == len(dataset)
try:
    DataLoader(dataset, backend="dali")
except BackendUnavailable as error:
    assert "fastdata.loaders.dali is missing" in str(error), error
else:
    raise AssertionError("a backend without its file was accepted")
from fastdata.cli import main
main(["info"])
"""


def test_without_its_file_dali_is_unavailable_and_all_else_works(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(Path(fastdata.__file__).parent, tmp_path / "fastdata", ignore=shutil.ignore_patterns("*.pyc"))
    (tmp_path / "fastdata" / "loaders" / "dali.py").unlink()
    done = subprocess.run(
        [sys.executable, "-S", "-c", WITHOUT_DALI, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:]])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "not available (fastdata.loaders.dali is missing)" in done.stdout


def test_only_a_backend_that_says_so_is_asked_to_decode_on_a_gpu(folder: Path) -> None:
    class OnGpuToo(ToyBackend):
        decode_devices = ("cpu", "mixed")

    for backend, on_gpu in ((ToyBackend(), False), (OnGpuToo(), True), (PlainBackend(), False)):
        dataset = ImageFolder(folder, TRAIN)
        plan = compile_transform(TRAIN).plan
        assert plan is not None
        config = PipelineConfig(
            source=dataset,
            plan=plan,
            backend=backend,
            key=Key(seed=0, epoch=0),
            device=torch.device("cuda"),
            decode_device="mixed",
        )
        assert EpochResources(config).decodes_on_gpu is on_gpu


PLUGIN = """
from fastdata.loaders.pil import PilBackend

class Ours(PilBackend):
    name = "ours"

class Pil(PilBackend):
    pass

class Fails(PilBackend):
    name = "fails"

    @classmethod
    def version(cls):
        raise RuntimeError("no licence")

class ExactOnly(PilBackend):
    name = "exactly"
    mean_tolerance = {"exact": 0.0}
"""
ENTRIES = """[fastdata.backends]
ours = fastdata_ours:Ours
other = fastdata_ours:Ours
broken = fastdata_ours:Missing
fails = fastdata_ours:Fails
exactly = fastdata_ours:ExactOnly
ends = fastdata_ends
pil = fastdata_ours:Pil
"""


def test_installed_packages_offer_backends_by_entry_points(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "fastdata_ours.py").write_text(PLUGIN)
    (tmp_path / "fastdata_ends.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "fastdata_ours-1.0.dist-info").mkdir()
    (tmp_path / "fastdata_ours-1.0.dist-info" / "METADATA").write_text("Name: fastdata-ours\nVersion: 1.0\n")
    (tmp_path / "fastdata_ours-1.0.dist-info" / "entry_points.txt").write_text(ENTRIES)
    program = """
        import sys
        from fastdata import DataLoader, ImageFolder, OptionError
        from fastdata.loaders import available_backends, backend_class, describe_backends
        from fastdata.loaders import mean_tolerance, register_backend
        assert "fastdata_ours" not in sys.modules
        assert "ours" in available_backends() and "broken" not in available_backends()
        problems = {each.name: each.problem for each in describe_backends()}
        assert "package fastdata-ours cannot be imported" in problems["broken"], problems
        assert "no subclass of fastdata.loaders.Backend whose name is 'other'" in problems["other"], problems
        assert "fails (no licence)" in problems["fails"], problems
        assert "cannot be imported (it ends the process)" in problems["ends"], problems
        assert mean_tolerance("exactly", "fast") is None
        loader = DataLoader(ImageFolder(sys.argv[1], SMALL), 4, backend="exactly", fidelity="fast")
        assert "\\nfidelity:   fast\\n" in loader.explain()
        register_backend(backend_class("ours"))
        assert available_backends().count("ours") == 1
        assert backend_class("pil").__module__ == "fastdata.loaders.pil"
        loader = DataLoader(ImageFolder(sys.argv[1], SMALL), 4, backend="ours")
        assert len(list(loader)) and loader.stats()["backend"] == "ours"
        try:
            DataLoader(ImageFolder(sys.argv[1]), 4, backend="our")
        except OptionError as error:
            assert "did you mean 'ours'?" in str(error), error
    """
    code = "from fastdata.transforms import Compose, Resize, ToTensor\nSMALL = Compose([Resize((8, 8)), ToTensor()])\n"
    path = os.pathsep.join(each for each in (str(tmp_path), os.environ.get("PYTHONPATH", "")) if each)
    done = subprocess.run(
        [sys.executable, "-c", code + textwrap.dedent(program), str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
