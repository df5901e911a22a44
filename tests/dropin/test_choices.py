"""What a loader chooses or cannot do it says: the backend, arguments without effect, a missing core, what to change."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from folders import changed_copy
from torchvision.datasets import ImageFolder

from fastdata import DaliOptions, DataLoader, DatasetError
from fastdata.loaders import create_backend
from fastdata.pipeline import choose_backend as choosing
from fastdata.pipeline import timed_before
from fastdata.pipeline.choose_backend import choose_backend
from fastdata.sources.recognise import recognise
from fastdata.transforms.compile import compile_transform

SMALL = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
CROP = v1.Compose([v1.RandomCrop(50), v1.ToTensor()])


def choice_for(root: Path, transform: Any = CROP) -> choosing.BackendChoice:
    source = recognise(ImageFolder(root, transform))
    plan = compile_transform(transform).plan
    assert plan is not None
    return choose_backend(source, plan, fidelity="exact")


@pytest.mark.parametrize(
    "data", [b"no image", images.jpeg(90, 70)[:700], images.jpeg(20, 20)], ids=["text", "cut", "small"]
)
def test_one_bad_sample_does_not_decide_the_backend(folder: Path, tmp_path: Path, data: bytes) -> None:
    chosen = choice_for(changed_copy(folder, tmp_path / "copy", {"apple/00.jpg": data}))
    assert "of your samples" in chosen.reason
    assert set(chosen.ms_per_image) == {"native", "turbojpeg", "opencv", "pil"}
    assert chosen.backend.name != "pil"


def test_where_nothing_can_be_timed_the_usually_fastest_is_taken_and_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(5):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"damaged")
    chosen = choice_for(tmp_path)
    assert chosen.backend.name == "native"
    assert chosen.reason == "preferred; none of 5 samples tried could be decoded, so nothing was timed"


@pytest.mark.parametrize(
    ("timed", "name", "reason"),
    [
        ({"native": 1.0, "turbojpeg": 0.9, "opencv": 2.0, "pil": 3.0}, "native", "no other is clearly faster"),
        ({"native": 1.0, "turbojpeg": 0.7, "opencv": 2.0, "pil": 3.0}, "turbojpeg", "fastest on"),
        ({"native": 1.0, "turbojpeg": 1.2, "opencv": 2.0, "pil": 3.0}, "native", "fastest on"),
    ],
)
def test_native_is_preferred_unless_clearly_beaten(
    folder: Path, monkeypatch: pytest.MonkeyPatch, timed: dict[str, float], name: str, reason: str
) -> None:
    monkeypatch.setattr(choosing, "_time_in_turn", lambda *_: dict(timed))
    chosen = choice_for(folder)
    assert chosen.backend.name == name
    assert reason in chosen.reason


@pytest.mark.parametrize(("transform", "loads"), [(CROP, {"native"}), (v1.Resize((8, 8)), set())])
def test_who_reads_files_is_timed_reading_them(folder: Path, transform: Any, loads: set[str]) -> None:
    source, plan = recognise(ImageFolder(folder, transform)), compile_transform(transform).plan
    assert plan is not None
    backends = [create_backend(name) for name in ("native", "pil")]
    found = choosing._file_loads(backends, source, plan, [0, 5, 7])
    assert set(found) == loads
    for load in found.values():
        assert load().ok.all()  # type: ignore[attr-defined]


def test_what_was_timed_twice_is_not_timed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time, the machine was busy while the fastest one was timed."""
    monkeypatch.setattr(timed_before, "_APART_S", 0.0)
    timed = {"native": 1.0, "turbojpeg": 0.5, "opencv": 2.0, "pil": 3.0}
    for busy, name in ({"turbojpeg": 1.5}, "native"), ({"pil": 9.0}, "turbojpeg"):
        monkeypatch.setattr(choosing, "_time_in_turn", lambda *_, busy=busy: {**timed, **busy})
        chosen = choice_for(folder)
        assert "of your samples (ms" in chosen.reason
        assert chosen.backend.name == name
    monkeypatch.setattr(choosing, "_time_in_turn", lambda *_: pytest.fail("timed again"))
    again = choice_for(folder)
    assert again.backend.name == "turbojpeg"
    assert "fastest on your samples, timed before" in again.reason
    assert again.ms_per_image == timed
    with pytest.raises(pytest.fail.Exception, match="timed again"):
        choice_for(folder, v1.Compose([v1.RandomCrop(49), v1.ToTensor()]))


def test_what_is_timed_twice_within_minutes_is_timed_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps a machine busy lasts a while; and ranks that start together are one occasion."""
    began = time.time()
    settled = []
    for minutes in (0, 1, 9, 11):
        monkeypatch.setattr(time, "time", lambda minutes=minutes: began + 60 * minutes)
        timed_before.remember("case", {"native": 1.0}, timed_before.recall("case"))
        known = timed_before.recall("case")
        assert known is not None
        settled.append(known.settled)
    assert settled == [False, False, False, True]


@pytest.mark.parametrize("kept", [b"", b"[]", b'{"KEY": 3}', b'{"KEY": {"at": "x", "ms_per_image": {}}}', b"\xff"])
def test_a_damaged_memory_is_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch, kept: bytes) -> None:
    monkeypatch.setattr(choosing, "key_of", lambda *_, **__: "KEY")
    monkeypatch.setattr(timed_before, "_APART_S", 0.0)
    file = timed_before._file()
    assert file is not None
    file.parent.mkdir(parents=True)
    file.write_bytes(kept)
    for _ in range(2):
        assert "of your samples (ms" in choice_for(folder).reason
    assert "timed before" in choice_for(folder).reason


def test_without_a_place_to_remember_all_works(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert "of your samples (ms" in choice_for(folder).reason


def test_without_a_home_all_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user who has none
    for _ in range(2):
        assert "of your samples (ms" in choice_for(folder).reason
    assert not Path("~").exists()


def test_the_oldest_timings_are_dropped_first() -> None:
    for number in range(200):
        timed_before.remember(f"case {number}", {"native": number})
    timed_before.remember("case 0", {"native": 0.5})
    timed_before.remember("one more", {"native": 1.0})
    assert timed_before.recall("case 0")[:2] == ({"native": 0.5}, False)  # type: ignore[index]
    assert timed_before.recall("case 1") is None


def test_timings_are_forgotten_after_some_weeks(monkeypatch: pytest.MonkeyPatch) -> None:
    timed_before.remember("case", {"native": 1.0})
    known = timed_before.recall("case")
    assert known is not None
    assert known[:2] == ({"native": 1.0}, False)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 31 * 86_400)
    assert timed_before.recall("case") is None


# ---- torch's path


GIVEN: dict[str, dict[str, Any]] = {
    "on_error='skip'": {"on_error": "skip"},
    "fidelity='fast'": {"fidelity": "fast"},
    "memory_format=torch.channels_last": {"memory_format": torch.channels_last},
    "augment_on='device'": {"augment_on": "device"},
    "decode_device='cpu'": {"decode_device": "cpu"},
    "dali=DaliOptions(threads=2": {"dali": DaliOptions(threads=2)},
    "backend='pil', on_error='replace'": {"backend": "pil", "on_error": "replace"},
}


@pytest.mark.parametrize("named", GIVEN)
def test_arguments_without_effect_are_named_once_and_in_explain(named: str) -> None:
    loader = DataLoader([1, 2], **GIVEN[named])
    with pytest.warns(UserWarning, match="has no effect: list is not an image dataset") as warned:
        list(loader)
    assert len(warned) == 1
    assert named in str(warned[0].message)
    list(loader)
    assert named in next(line for line in loader.explain().splitlines() if line.startswith("no effect:"))


def test_without_such_arguments_nothing_is_said() -> None:
    loader = DataLoader([1, 2], seed=3)
    list(loader)
    assert "no effect" not in loader.explain()
    assert "seed:       3: decides the order and what worker processes draw, not what" in loader.explain()


# ---- explain


def line(loader: DataLoader, name: str) -> list[str]:
    return [text.partition(":")[2].strip() for text in loader.explain().splitlines() if text.startswith(f"{name}:")]


@pytest.mark.parametrize(("backend", "tolerance"), [("native", 0), ("dali", 0.6), ("opencv", 0.5)])
def test_fidelity_is_that_of_the_backend_that_decodes(folder: Path, backend: str, tolerance: float) -> None:
    told = "exact: identical to Pillow's pixels"
    if tolerance:
        told = f"exact: mean difference from Pillow's pixels at most {tolerance} of 255 grey levels"
    assert line(DataLoader(ImageFolder(folder, SMALL), backend=backend), "fidelity") == [told]


@pytest.mark.parametrize(
    ("transform", "options", "output"),
    [
        (SMALL, {}, "float32 (N, 3, 8, 8), contiguous; decoded straight into the batch"),
        (
            v1.Compose([v1.Resize((8, 9)), v1.PILToTensor()]),
            {"memory_format": torch.channels_last},
            "uint8 (N, 3, 8, 9), channels_last; decoded straight into the batch",
        ),
        (
            v2.Compose([v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True)]),
            {},
            "bfloat16 (N, 3, 8, 8), contiguous; decoded straight into the batch",
        ),
        (v1.Compose([v1.Resize((8, 8)), v1.Lambda(np.array), v1.ToTensor()]), {}, "the result of default_collate"),
        (SMALL, {"collate_fn": list}, "the result of list"),
    ],
)
def test_the_output_is_what_the_loop_receives(
    folder: Path, transform: Any, options: dict[str, Any], output: str
) -> None:
    loader = DataLoader(ImageFolder(folder, transform), 4, **options)
    assert line(loader, "output")[0].startswith(output)
    batch = next(iter(loader))
    if isinstance(batch[0], torch.Tensor) and "straight" in output:
        assert str(batch[0].dtype).removeprefix("torch.") == output.split()[0]
        assert str(tuple(batch[0].shape[1:]))[1:-1] in output


def test_no_step_is_told_twice(folder: Path) -> None:
    transform = v1.Compose([v1.Resize((8, 8)), v1.RandAugment(), v1.ToTensor(), v1.RandomErasing()])
    told = DataLoader(ImageFolder(folder, transform), augment_on="device").explain()
    assert [told.count(name) for name in ("Resize", "RandAugment", "ToTensor", "RandomErasing")] == [1] * 4


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda root: DataLoader([1, 2]), "use torchvision.datasets.ImageFolder or fastdata.ImageFolder"),
        (lambda root: DataLoader(ImageFolder(root)), "begins with RandomResizedCrop, Resize"),
        (
            lambda root: DataLoader(ImageFolder(root, SMALL), num_workers=1, worker_init_fn=print),
            "if it only sets seeds, remove it",
        ),
        (lambda root: DataLoader(ImageFolder(root, SMALL), batch_size=None), "pass a batch_size"),
        (
            lambda root: DataLoader(ImageFolder(root, SMALL, loader=np.load)),
            "use the dataset's default loader",
        ),
        (lambda root: DataLoader(ImageFolder(root, SMALL)), "num_workers='auto'"),
        (
            lambda root: DataLoader(
                ImageFolder(root, v1.Compose([v1.Resize((8, 8)), v1.PILToTensor(), v1.RandAugment()]))
            ),
            "augment_on='device'",
        ),
    ],
)
def test_explain_says_what_to_change(folder: Path, make: Any, change: str) -> None:
    assert any(change in each for each in line(make(folder), "to change"))


def test_nothing_to_change_is_no_advice(folder: Path) -> None:
    assert line(DataLoader(ImageFolder(folder, SMALL), num_workers=2), "to change") == []


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
print("TOLD", loader.explain())
print("STATUS", main(["info"]), main(["info", "--require-native"]))
"""


@pytest.mark.slow
def test_a_lost_core_is_told_at_first_use_by_explain_and_by_info(folder: Path, tmp_path: Path) -> None:
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
