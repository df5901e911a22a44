"""What a loader chooses or cannot do it says: the backend, arguments without effect, a missing core."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, DatasetError, OptionError
from fastdata.dataloader.arguments import check_decode_device
from fastdata.dataloader.explain import without_effect
from fastdata.errors import BackendError, BackendUnavailable
from fastdata.loaders import AUTO_ORDER, Backend, Fidelity, backend_class, mean_tolerance
from fastdata.loaders.dali_options import DaliOptions
from fastdata.pipeline.choose_backend import choose_backend

SMALL = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])


# ---- backend="auto"


class Counting(torch.utils.data.Dataset[Any]):
    """A source that notes which samples are read."""

    transform = SMALL

    def __init__(self, root: Path) -> None:
        self.files, self.read = sorted(root.glob("*/*.jpg")), list[int]()

    def __len__(self) -> int:
        return len(self.files)

    def read_encoded(self, index: int) -> bytes:
        self.read.append(index)
        return self.files[index].read_bytes()

    def read_target(self, index: int) -> int:
        return index


def made_backends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the backends that are made from now on, of any class."""
    made: list[str] = []
    begin = Backend.__init__

    def counted(self: Backend, *, fidelity: Fidelity = "exact") -> None:
        made.append(self.name)
        begin(self, fidelity=fidelity)

    monkeypatch.setattr(Backend, "__init__", counted)
    return made


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """As if the libraries of these backends were not installed."""

    def version() -> str:
        raise BackendUnavailable("it is not installed")

    for name in missing:
        monkeypatch.setattr(backend_class(name), "version", version)


def test_choosing_reads_no_sample_and_makes_one_backend_for_each_loader(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_backends(monkeypatch)
    for loaders in (1, 2):
        source = Counting(folder)
        loader = DataLoader(source, 4, sampler=[3, 1, 2, 0])
        next(iter(loader))
        assert sorted(source.read) == [0, 1, 2, 3]  # those of the batch, once
        assert made == ["native"] * loaders


def test_choosing_imports_no_library_of_another_backend(folder: Path) -> None:
    script = (
        "import sys; from torchvision import transforms; from fastdata import DataLoader, ImageFolder\n"
        "dataset = ImageFolder(sys.argv[1], transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()]))\n"
        "next(iter(DataLoader(dataset, 4)))\n"
        "print([name for name in ('cv2', 'nvidia.dali', 'turbojpeg') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize("fidelity", ["exact", "fast"])
@pytest.mark.parametrize(
    ("missing", "chosen"), [((), "native"), (("native",), "turbojpeg"), (("native", "turbojpeg"), "pil")], ids=str
)
def test_the_first_available_of_a_fixed_order_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], chosen: str, fidelity: Fidelity
) -> None:
    without(monkeypatch, *missing)
    choice = choose_backend(ImageFolder(folder, SMALL), fidelity=fidelity)  # type: ignore[arg-type]
    assert (choice.backend.name, choice.backend.fidelity) == (chosen, fidelity)
    assert choice.reason == "the first of native, turbojpeg, pil that is available"


def test_opencv_and_dali_are_not_chosen_even_where_nothing_else_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "native", "turbojpeg", "pil")
    with pytest.raises(BackendError, match="no decode backend is available"):
        choose_backend(ImageFolder(folder, SMALL), fidelity="fast")  # type: ignore[arg-type]


def test_whatever_is_chosen_gives_pillows_pixels() -> None:
    assert all(mean_tolerance(name) == 0 for name in AUTO_ORDER)
    assert all(mean_tolerance(name, "fast") is not None for name in AUTO_ORDER)


def test_damaged_samples_do_not_change_the_choice(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number, data in enumerate([b"no image", images.jpeg(90, 70)[:700], images.jpeg(20, 20)]):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(data)
    loader = DataLoader(ImageFolder(tmp_path, SMALL), 3, on_error="skip")
    list(loader)
    assert loader.stats()["backend"] == "native"


def test_nothing_is_written_to_the_users_cache(folder: Path) -> None:
    next(iter(DataLoader(ImageFolder(folder, SMALL), 4)))
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).glob("**/backends.json"))


def test_mixed_decoding_needs_a_backend_that_is_named(folder: Path) -> None:
    with pytest.raises(OptionError, match="needs backend='dali' and a CUDA device; got backend='auto'"):
        check_decode_device("mixed", "auto", torch.device("cuda"))
    assert check_decode_device("mixed", "dali", torch.device("cuda")) == "mixed"


# ---- torch's path


GIVEN: dict[str, dict[str, Any]] = {
    "fidelity='fast'": {"fidelity": "fast"},
    "memory_format=torch.channels_last": {"memory_format": torch.channels_last},
    "augment_on='device'": {"augment_on": "device"},
    "decode_device='cpu'": {"decode_device": "cpu"},
    "dali=DaliOptions(threads=2": {"dali": DaliOptions(threads=2)},
    "backend='pil', decode_device='cpu'": {"backend": "pil", "decode_device": "cpu"},
}


@pytest.mark.parametrize("named", GIVEN)
def test_arguments_without_effect_are_named_once(named: str) -> None:
    loader = DataLoader([1, 2], **GIVEN[named])
    with pytest.warns(UserWarning, match="has no effect: list is not an image dataset") as warned:
        list(loader)
    assert len(warned) == 1
    assert named in str(warned[0].message)
    list(loader)
    assert named in ", ".join(without_effect(loader._arguments(), loader._route()))


def test_without_such_arguments_nothing_is_said() -> None:
    loader = DataLoader([1, 2], seed=3)
    list(loader)
    assert without_effect(loader._arguments(), loader._route()) == []


# ---- an installation without its core

_WITHOUT_CORE = """
import sys, warnings
import torchvision.transforms as v1
from fastdata import DataLoader, ImageFolder
from fastdata.cli.main import main
loader = DataLoader(ImageFolder(sys.argv[1], v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])), num_workers=1)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for _ in range(2):
        list(loader)  # line 10
print("WARNED", len(warned), warned[0].message)
print("AT", warned[0].filename, warned[0].lineno)
print("TOLD", loader.verdict())
print("STATUS", main(["info"]), main(["info", "--require-native"]))
"""


@pytest.mark.slow
def test_a_lost_core_is_told_at_first_use_by_the_verdict_and_by_info(folder: Path, tmp_path: Path) -> None:
    import os

    environment = {**os.environ, "FASTDATA_NATIVE_LIBRARY": str(tmp_path / "gone.so")}
    command = [sys.executable, "-c", _WITHOUT_CORE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    warned, told, info = (
        next(text for text in done.stdout.splitlines() if text.lstrip().startswith(begin))
        for begin in ("WARNED", "TOLD", "native")
    )
    assert told.startswith("TOLD not accelerated: the native core is missing: ")
    assert "AT <string> 10\n" in done.stdout  # the line that iterates
    assert "STATUS 0 1\n" in done.stdout
    assert "fastdata: the native core is missing" in done.stderr
    assert warned.startswith(
        "WARNED 1 images are decoded at a fraction of the speed: backend 'native' is not available"
    )
    for text in (warned, told, info):
        assert "gone.so cannot be loaded" in text
        assert "apt-get install g++ libjpeg-dev libdeflate-dev" in text
        assert "pip install --force-reinstall --no-cache-dir -e ." in text


# ---- arguments and transforms


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor])
def test_integers_of_any_kind_are_numbers_of_workers_and_seeds(folder: Path, kind: Any) -> None:
    loader = DataLoader(ImageFolder(folder, SMALL), num_workers=kind(2), seed=kind(3))
    assert (type(loader.num_workers), loader.num_workers, type(loader.seed), loader.seed) == (int, 2, int, 3)


@pytest.mark.parametrize("hook", ["after", "before", "compose", "everywhere", "forward"])
def test_forward_hooks_on_transforms_are_called(folder: Path, hook: str) -> None:
    first = v2.Resize((8, 8))
    transform = v2.Compose([first, v2.PILToTensor()])

    def darker(image: Any) -> Any:
        return image.point(lambda level: level // 2) if hasattr(image, "point") else image // 2

    handle = None
    if hook == "after":
        first.register_forward_hook(lambda module, given, result: darker(result))
    elif hook == "before":
        first.register_forward_pre_hook(lambda module, given: darker(given[0]))
    elif hook == "compose":
        transform.register_forward_hook(lambda module, given, result: darker(result))
    elif hook == "everywhere":
        handle = torch.nn.modules.module.register_module_forward_hook(
            lambda module, given, result: darker(result) if module is first else None
        )
    else:
        forward = first.forward
        first.forward = lambda image: darker(forward(image))
    try:
        dataset = ImageFolder(folder, transform)
        ours, torchs = (next(iter(cls(dataset, 4)))[0] for cls in (DataLoader, torch.utils.data.DataLoader))
        assert torch.equal(ours, torchs)
        assert ours.max() < 128
    finally:
        if handle is not None:
            handle.remove()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_in_which_everything_failed_raises(tmp_path: Path, workers: int) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"bad")
    loader = DataLoader(ImageFolder(tmp_path, SMALL), 2, on_error="skip", num_workers=workers)
    for _ in range(2):
        iterator = iter(loader)
        with pytest.raises(DatasetError, match=r"all 3 samples of the epoch failed.*2\.jpg.*not an image"):
            next(iterator)
        assert next(iterator, None) is None


def test_the_constructor_finds_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes a while; too many worker processes are warned of where they begin."""
    asked: list[Any] = []
    monkeypatch.setattr("fastdata.dataloader.loader.find_route", asked.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader(torch.utils.data.TensorDataset(torch.arange(4)), 2, num_workers=256)
    assert asked == []
    monkeypatch.undo()
    monkeypatch.setattr("torch._utils.cpu_count", lambda: 1)
    loader = DataLoader(torch.utils.data.TensorDataset(torch.arange(4)), 2, num_workers=2)
    with pytest.warns(UserWarning, match="excessive worker creation"):
        assert len(list(loader)) == 2
