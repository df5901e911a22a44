"""Batches that DALI decodes in its pipeline: those of every other backend, within the table's tolerance."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from core_alone import view_of
from folders import changed_copy
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, DecodeError, OptionError
from fastdata.errors import BackendError, ReadError
from fastdata.loaders import create_backend, dali, dali_pipeline, mean_tolerance
from fastdata.loaders.batch_decoder import BatchFeed, BatchRequest
from fastdata.loaders.dali_options import DaliOptions
from fastdata.loaders.fallback import inspect
from fastdata.loaders.rows import decode_each
from fastdata.native import FileReader
from fastdata.testing.pictures import encoded
from fastdata.views.resampling import Interpolation
from fastdata.views.view import View, windows_of

pytestmark = pytest.mark.backend("dali")

BICUBIC, BOX = v1.InterpolationMode.BICUBIC, v1.InterpolationMode.BOX
NORMALISE = v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
TRAIN = v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), v1.PILToTensor()])
PLANS = {
    "uint8": TRAIN,
    "float": v1.Compose([v1.RandomResizedCrop(48, interpolation=BICUBIC), v1.ToTensor(), NORMALISE]),
    "validation": v1.Compose([v1.Resize(56), v1.CenterCrop(48), v1.ToTensor(), NORMALISE]),
    "padded": v1.Compose([v1.Resize(32), v1.CenterCrop((48, 60)), v1.PILToTensor()]),
    "flips": v1.Compose([v1.Resize((40, 50)), v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), v1.PILToTensor()]),
    "crop alone": v1.Compose([v1.RandomCrop((40, 50)), v1.PILToTensor()]),
    "Pillow's filter": v1.Compose([v1.Resize((40, 50), BOX), v1.PILToTensor()]),
}  # fmt: skip


def run(dataset: Any, backend: str = "dali", **options: Any) -> list[Any]:
    options = {"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": 2, **options}
    return list(DataLoader(dataset, backend=backend, **options))


def check_alike(ours: list[Any], pils: list[Any], scale: float = 1.0) -> None:
    """Same batches within DALI's tolerance, in grey levels divided by `scale`."""
    assert len(ours) == len(pils)
    for (our_images, our_labels), (images_, labels) in zip(ours, pils, strict=True):
        assert torch.equal(our_labels, labels)
        assert (our_images.shape, our_images.stride(), our_images.dtype) == (
            images_.shape,
            images_.stride(),
            images_.dtype,
        )
        difference = (our_images.float() - images_.float()).abs().mean(dim=(1, 2, 3))
        assert difference.max() <= mean_tolerance("dali") / scale


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", PLANS)
def test_batches_are_those_of_pillow(folder: Path, name: str, layout: torch.memory_format) -> None:
    dataset = ImageFolder(folder, PLANS[name])
    scale = 255 * 0.224 if dataset[0][0].is_floating_point() else 1.0
    check_alike(run(dataset, memory_format=layout), run(dataset, "pil", memory_format=layout), scale)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("options", [DaliOptions(prefetch=1), DaliOptions(threads=2, prefetch=4)])
def test_batches_do_not_depend_on_threads(folder: Path, workers: int, options: DaliOptions) -> None:
    dataset = ImageFolder(folder, TRAIN)
    for ours, others in zip(run(dataset, num_workers=workers, dali=options), run(dataset), strict=True):
        assert torch.equal(ours[0], others[0])


def test_images_of_several_filters_have_each_their_own() -> None:
    data, backend = images.jpeg(90, 70), create_backend("dali")
    views = [
        view_of((0, 0, 90, 70), (31, 20), interpolation=Interpolation[name])
        for name in ("BILINEAR", "LANCZOS", "BILINEAR", "BICUBIC", "BOX")
    ]
    together, alone = (np.empty((len(views), 20, 31, 3), np.uint8) for _ in range(2))
    assert decode_each(backend, [inspect(data)] * len(views), views, list(together)) == [None] * len(views)
    for view, place in zip(views, alone, strict=True):
        assert decode_each(backend, [inspect(data)], [view], [place]) == [None]
    assert np.array_equal(together, alone)
    assert not np.array_equal(together[0], together[1])


def test_difficult_files_are_decoded_too(odd_folder: Path) -> None:
    dataset = ImageFolder(odd_folder, v1.Compose([v1.Resize((32, 32)), v1.PILToTensor()]))
    check_alike(run(dataset), run(dataset, "pil"))


@pytest.fixture
def spoiled(folder: Path, tmp_path: Path) -> Path:
    """The folder with a sample 5 whose middle is noise, which stops DALI, and a sample 30 that is no image."""
    noise = bytearray(images.saved(300, 200, quality=95))
    noise[500:900] = b"\xff\xc4\x00\x10" * 100
    return changed_copy(folder, tmp_path / "copy", {"apple/05.jpg": noise, "cup/04.jpg": b"no image"})


def test_a_damaged_image_leaves_its_neighbours_unharmed(folder: Path, spoiled: Path) -> None:
    options: dict[str, Any] = {"shuffle": False, "batch_size": 4}
    whole = run(ImageFolder(folder, TRAIN), **options)
    loader = DataLoader(ImageFolder(spoiled, TRAIN), seed=3, num_workers=2, backend="dali", on_error="skip", **options)
    skipped = list(loader)
    assert torch.equal(skipped[1][0], whole[1][0][[0, 2, 3]])
    assert torch.equal(skipped[7][0], whole[7][0][[0, 1, 3]])
    assert all(torch.equal(a[0], b[0]) for n, (a, b) in enumerate(zip(skipped, whole, strict=True)) if n not in (1, 7))
    assert [entry[0] for entry in loader.stats()["quarantine"]] == [5, 30]
    assert loader.stats()["failures"] == 2


def test_a_damaged_image_is_raised_at_its_place(spoiled: Path) -> None:
    loader = DataLoader(ImageFolder(spoiled, TRAIN), 4, num_workers=2, backend="dali")
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(DecodeError, match=r"sample 5 .*apple/05\.jpg"):
        next(iterator)
    assert [next(iterator)[0].shape[0] for _ in range(5)] == [4] * 5
    with pytest.raises(DecodeError, match="sample 30 "):
        next(iterator)
    assert len(list(iterator)) == 2


def test_substitutes_are_those_of_the_other_backends(spoiled: Path) -> None:
    options: dict[str, Any] = {"shuffle": False, "batch_size": 4, "on_error": "replace"}
    dataset = ImageFolder(spoiled, TRAIN)
    check_alike(run(dataset, **options), run(dataset, "pil", **options))


def test_the_core_reads_a_batch_by_one_call(folder: Path, spoiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, counts = FileReader.read, []

    def counted(self: FileReader, paths: Any, *more: Any) -> Any:
        counts.append(len(paths))
        return read(self, paths, *more)

    monkeypatch.setattr(FileReader, "read", counted)
    whole = run(ImageFolder(folder, TRAIN), batch_size=8)
    assert counts == [8, 8, 8, 8, 7]
    monkeypatch.setattr("fastdata.native.available", lambda: None)
    without = run(ImageFolder(folder, TRAIN), batch_size=8)
    assert counts == [8, 8, 8, 8, 7]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole, without, strict=True))


def test_a_file_that_is_gone_is_named_and_left_out(folder: Path, tmp_path: Path) -> None:
    dataset = ImageFolder(changed_copy(folder, tmp_path / "copy", {}), TRAIN)
    (tmp_path / "copy" / "bear" / "02.jpg").unlink()
    with pytest.raises(ReadError, match=r"sample 15 .*bear/02\.jpg"):
        run(dataset, shuffle=False)
    left = run(dataset, shuffle=False, on_error="skip")
    assert [len(labels) for _, labels in left] == [5, 5, 5, 4, 5, 5, 5, 4]


def test_a_substitute_is_not_read_from_the_place_of_the_one_it_replaces(spoiled: Path) -> None:
    """With torch's draws the files have been read for their sizes before the batch is read."""
    options: dict[str, Any] = {"shuffle": False, "batch_size": 4, "on_error": "replace", "draws": "torch"}
    dataset = ImageFolder(spoiled, TRAIN)
    torch.manual_seed(1)
    ours = run(dataset, **options)
    torch.manual_seed(1)
    check_alike(ours, run(dataset, "pil", **options))


def test_a_batch_larger_than_announced_is_decoded_and_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.loaders.dali_pipeline._LARGEST_UNKNOWN_BATCH", 3)
    batches = [[3, 4, 5, 6, 7], [1, 2], [8, 9, 10]]
    dataset = ImageFolder(folder, TRAIN)
    expected = list(DataLoader(dataset, batch_sampler=batches, backend="pil", seed=3))
    with pytest.warns(UserWarning, match=r"gave up on batch 0 .* nothing in it is damaged"):
        check_alike(list(DataLoader(dataset, batch_sampler=batches, backend="dali", seed=3)), expected)


def test_an_error_of_the_sampler_comes_at_its_place(folder: Path) -> None:
    def indices() -> Any:
        yield from range(9)
        raise KeyError("sampler")

    class Sampler:
        def __iter__(self) -> Any:
            return indices()

    iterator = iter(DataLoader(ImageFolder(folder, TRAIN), 4, sampler=Sampler(), backend="dali", num_workers=2))
    assert [len(next(iterator)[1]) for _ in range(2)] == [4, 4]
    with pytest.raises(KeyError, match="sampler"):
        next(iterator)


def test_resume_continues_with_the_rest(folder: Path) -> None:
    dataset = ImageFolder(folder, TRAIN)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": 2, "backend": "dali", "seed": 3}
    whole = list(DataLoader(dataset, **options))
    loader = DataLoader(dataset, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    resumed = DataLoader(dataset, **options)
    resumed.load_state_dict(loader.state_dict())
    for ours, expected in zip(list(resumed), whole[3:], strict=True):
        assert torch.equal(ours[0], expected[0])


def test_batches_the_caller_holds_keep_their_pixels(folder: Path) -> None:
    dataset = ImageFolder(folder, TRAIN)
    loader = DataLoader(dataset, 4, backend="dali", num_workers=2, seed=1, memory_format=torch.channels_last)
    held = [(batch, batch.clone()) for batch, _ in loader]
    assert all(torch.equal(batch, copy) for batch, copy in held)


def test_break_leaves_nothing_running(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, TRAIN), 4, backend="dali", num_workers=2)
    next(iter(loader))
    before = _tasks()
    for _ in range(5):
        for _batch in loader:
            break
    deadline = time.monotonic() + 60  # DALI's threads are joined by its destructors, which may lag behind
    while _tasks() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _tasks() <= before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fastdata")]


def _tasks() -> int:
    """Threads of this process, those of DALI included."""
    return len(os.listdir("/proc/self/task"))


FORKING = """
import os, sys
from fastdata import DataLoader, ImageFolder, PipelineError
from fastdata.transforms import Compose, RandomResizedCrop, ToTensor
dataset = ImageFolder(sys.argv[1], Compose([RandomResizedCrop(24), ToTensor()]))
loader = DataLoader(dataset, 4, backend="dali", num_workers=2)
iterator = iter(loader)
next(iterator)
if (child := os.fork()) == 0:
    try:
        next(iterator)
    except PipelineError:
        os._exit(0 if len(list(loader)) == 10 else 2)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(list(iterator)) == 9
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_is_refused_the_iterator_and_makes_its_own(folder: Path) -> None:
    """In a process that has used nothing else: a fork copies the locks that threads of any library hold just then."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


COLLECTING = """
import gc, multiprocessing, os, sys
from fastdata import DataLoader, ImageFolder
from fastdata.transforms import Compose, RandomResizedCrop, ToTensor
multiprocessing.set_start_method("fork")
gc.disable()
whole = Compose([RandomResizedCrop(24), ToTensor(), lambda image: image])  # decoded image by image
for transform in (whole, Compose(whole.transforms[:2])):
    loader = DataLoader(ImageFolder(sys.argv[1], transform), 4, backend="dali", num_workers=1)
    for batch in loader:
        break
    loader.itself = loader  # nothing of it goes before a garbage collection
    del loader
if (child := os.fork()) == 0:
    gc.collect()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_may_collect_what_its_parent_has_left(folder: Path) -> None:
    """As any worker process may that torch's DataLoader forks."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", COLLECTING, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode_device": "gpu"}, "decode_device='gpu' is not accepted"),
        ({"decode_device": "mixed"}, "needs backend='dali' and a CUDA device"),
        ({"decode_device": "mixed", "backend": "pil"}, "backend='pil'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DataLoader([1], **{"backend": "dali", **options})


def test_wrong_dali_options_are_named() -> None:
    for wrong in ({"threads": 0}, {"prefetch": 0}, {"hw_decoder_load": 1.5}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            DaliOptions(**wrong)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA runtime API error: out of memory",
        "Memory allocation failed",
        "Can't allocate 1048576 bytes on device 1.",
        "CUDA allocation failed",
    ],
)
def test_a_gpu_without_memory_is_told_from_a_damaged_image(text: str) -> None:
    feed: Any = BatchFeed(encoded=[np.zeros(3, np.uint8)] * 7, views=None, name="batch 4")  # type: ignore[arg-type]
    on_gpu = BatchRequest(interpolation=Interpolation.BILINEAR, device_index=1)
    with pytest.raises(
        BackendError, match=r"out of memory on cuda:1 while decoding batch 4 \(7 images\).*smaller batch"
    ):
        dali_pipeline._check_memory(RuntimeError(text), feed, on_gpu)
    dali_pipeline._check_memory(RuntimeError("damaged image"), feed, on_gpu)
    dali_pipeline._check_memory(RuntimeError(text), feed, BatchRequest(interpolation=Interpolation.BILINEAR))


@pytest.mark.parametrize("fidelity", ["exact", "fast"])
def test_chroma_is_upsampled_as_by_pillow_where_pixels_are_promised(
    fidelity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nvidia.dali import fn

    given = []
    real = fn.decoders.image_slice
    monkeypatch.setattr(fn.decoders, "image_slice", lambda *args, **rest: (given.append(rest), real(*args, **rest))[1])
    data, view = encoded(40, 30), View.whole(40, 30)
    batches = iter([BatchFeed(encoded=[np.frombuffer(data, np.uint8)], views=windows_of([view]))])
    decoder = dali.DaliBackend(fidelity=fidelity).batch_decoder()
    pipeline = decoder.open(batches, BatchRequest(interpolation=Interpolation.BILINEAR, largest_batch=1))
    next(pipeline)
    pipeline.close()
    assert [each["jpeg_fancy_upsampling"] for each in given] == [fidelity == "exact"]


def test_a_pipeline_is_built_once_for_all_epochs(folder: Path, spoiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, built = dali_pipeline.build_pipeline, []
    monkeypatch.setattr(
        dali_pipeline, "build_pipeline", lambda *args, **rest: (built.append(1), build(*args, **rest))[1]
    )
    loader = DataLoader(ImageFolder(folder, TRAIN), 8, backend="dali", shuffle=True, seed=3, num_workers=1)
    epochs = [list(loader) for _ in range(3)]
    assert len(built) == 1
    loader.set_epoch(1)
    check_alike(list(loader), epochs[1])
    assert not torch.equal(epochs[1][0][0], epochs[2][0][0])
    assert len(built) == 1
    next(iter(loader))  # an epoch that is left early takes its pipeline down, with the batches in it
    assert [len(list(loader)), len(built)] == [5, 2]
    side_by_side = list(zip(loader, loader, strict=True))
    assert len(side_by_side) == 5
    assert [len(list(loader)), len(built)] == [5, 3]
    for _ in range(2):  # a pipeline that has failed is not used again
        with pytest.raises(DecodeError):
            list(DataLoader(ImageFolder(spoiled, TRAIN), 8, backend="dali"))
    assert len(list(loader)) == 5


def test_a_kept_pipeline_ends_with_its_loader(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, TRAIN), 8, backend="dali", num_workers=2)
    list(loader)
    shut_down: list[bool] = []
    built = loader._findings.choice.backend._batches._kept[0]
    built._pipeline._shutdown = lambda shut=built._pipeline._shutdown: (shut_down.append(True), shut())
    del built, loader
    gc.collect()
    assert shut_down
