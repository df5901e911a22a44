"""Which calls of CUDA are made, and in which order, on a stand-in for a device."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from fake_cuda import FakeCuda
from own_tables import VALIDATE, Table
from torch.utils.data import TensorDataset
from torchvision.transforms import v2

from fastdata import DataLoader, DevicePrefetcher, ImageFolder, OptionError
from fastdata.dataloader.arguments import check_decode_device
from fastdata.device.left_to_device import LeftToDevice
from fastdata.device.syncs import SyncFinder
from fastdata.loaders.dali_pipeline import DaliPipeline
from fastdata.system import cuda
from fastdata.train.wait_clock import WaitClock

PROTOTYPE = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"


def test_a_batch_is_pinned_copied_and_waited_for_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    batches = iter(DevicePrefetcher([torch.zeros(2) for _ in range(6)], "cuda", depth=1))
    next(batches)
    first_two = ["pin", "copy", "copies records event 0", "pin", "copy", "copies records event 1"]
    assert fake.calls == [*first_two, "consumer waits for event 0", "keep for consumer"]
    fake.calls.clear()
    next(batches)
    assert fake.calls == [
        "consumer records event 2",  # after the work on the first batch
        "pin",
        "copy",
        "copies records event 3",
        "consumer waits for event 1",
        "keep for consumer",
    ]
    next(batches)
    fake.calls.clear()
    next(batches)  # the host is depth + 1 batches ahead of what it knows to be done
    assert fake.calls[:4] == ["consumer records event 6", "host waits for event 2", "pin", "copy"]


def test_a_batch_from_the_device_is_waited_for_and_kept_for_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnDevice(torch.Tensor):
        is_cuda = True

    fake = FakeCuda(monkeypatch)
    next(iter(DevicePrefetcher([torch.zeros(2).as_subclass(OnDevice)], "cuda")))
    waits = ["copies waits for consumer", "copies waits for default"]  # a decode thread works on the latter
    assert fake.calls[:4] == [*waits, "keep for copies", "copy"]


def left(fake: FakeCuda, number: int, error: Exception | None = None) -> LeftToDevice:
    """A tensor that a device makes by adding one, and what it finds."""

    def run(copy: torch.Tensor) -> torch.Tensor:
        fake.calls.append(f"run {number}")
        return copy + 1

    def find() -> Exception | None:
        fake.calls.append(f"ask {number}")
        return error

    return LeftToDevice(torch.full((2,), number), run, find)


def test_what_is_left_to_the_device_is_made_behind_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    batches = iter(DevicePrefetcher([{"image": left(fake, 4), "more": [torch.ones(1)]}], "cuda"))
    batch = next(batches)
    assert fake.calls[:4] == ["pin", "copy", "run 4", "pin"]
    assert fake.calls.index("copies records event 0") > fake.calls.index("run 4")
    assert fake.calls[-2:] == ["keep for consumer", "keep for consumer"]
    assert batch["image"].tolist() == [5, 5]
    assert "ask 4" not in fake.calls
    assert next(batches, None) is None  # at the end all are asked
    assert fake.calls[-2:] == ["host waits for event 0", "ask 4"]


def test_what_the_device_finds_is_asked_when_it_is_known_and_loses_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    given = [left(fake, number, OSError("second") if number == 1 else None) for number in range(6)]
    batches = iter(DevicePrefetcher(given, "cuda", depth=1))
    assert [next(batches)[0].item() for _ in range(3)] == [1, 2, 3]
    assert next(batches)[0].item() == 4  # the first was asked before
    assert [call for call in fake.calls if call.startswith("ask")] == ["ask 0"]
    with pytest.raises(OSError, match="second"):
        next(batches)
    assert [batch[0].item() for batch in batches] == [5, 6]
    closed: Any = iter(DevicePrefetcher([left(fake, 7, OSError("told at least"))] * 3, "cuda"))
    next(closed)
    with pytest.warns(UserWarning, match="told at least"):
        closed.close()
    assert next(closed, None) is None


def test_torchs_pinning_reaches_what_is_left_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.pin_memory import pin_memory

    fake = FakeCuda(monkeypatch)
    pinned = pin_memory([left(fake, 3)])[0]
    assert isinstance(pinned, LeftToDevice)
    assert fake.calls == ["pin"]
    assert pinned.run(pinned.memory).tolist() == [4, 4]


def loader_for_a_gpu(monkeypatch: pytest.MonkeyPatch, **options: Any) -> DataLoader[Any]:
    monkeypatch.setattr("fastdata.dataloader.epoch_paths.may_pin", lambda wanted: False)
    return DataLoader(TensorDataset(torch.arange(40)), 4, **options)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_all_epochs_and_loaders_copy_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's allocator keeps memory for each stream: one for each epoch took more and more of it."""
    fake = FakeCuda(monkeypatch)
    loaders = [loader_for_a_gpu(monkeypatch, device="cuda") for _ in range(2)]
    assert all(len(list(loader)) == 10 for loader in loaders * 3)
    assert fake.streams == 1
    fake.current = 1
    assert len(list(loaders[0])) == 10
    assert fake.streams == 2


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_the_current_device_is_asked_for_once_in_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    fake.current = 3
    batches = iter(loader_for_a_gpu(monkeypatch, device="cuda"))
    next(batches)
    fake.current = 0
    assert len(list(batches)) == 9
    assert fake.devices == {torch.device("cuda", 3)}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_close_drops_what_was_copied_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    batches = iter(loader_for_a_gpu(monkeypatch, device="cuda"))
    batch = next(batches)
    assert len([copy for copy in fake.copies if copy() is not None]) > 1
    batches.close()  # type: ignore[attr-defined]
    assert next(batches, None) is None  # and the epoch has not ended for that
    assert not batches._record.ended  # type: ignore[attr-defined]
    assert [copy() for copy in fake.copies if copy() is not None] == batch


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.parametrize("device", ["cuda:0", "cuda", None])
def test_threads_that_pin_memory_choose_the_loaders_device(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch, device: str | None
) -> None:
    """Otherwise a rank's threads make a context on the first GPU."""
    fake = FakeCuda(monkeypatch)
    fake.current = 2
    for place in ("epoch_paths", "map_style"):
        monkeypatch.setattr(f"fastdata.dataloader.{place}.may_pin", lambda wanted: True)
    monkeypatch.setattr("torch.utils.data._utils.pin_memory.pin_memory", lambda batch: batch)
    monkeypatch.setattr("fastdata.lazy.complete.pin_memory", lambda batch: batch)
    monkeypatch.setattr("fastdata.pipeline.batch_memory.BatchMemory.images", unpinned)
    for dataset in (ImageFolder(folder, VALIDATE), Table(table, VALIDATE)):
        fake.chosen.clear()
        loader = DataLoader(dataset, 5, num_workers=2, device=device, pin_memory=True)
        assert len(list(loader)) == len(loader)
        assert set(fake.chosen) == {0 if device == "cuda:0" else 2}


def unpinned(memory: Any, shape: Any, dtype: Any, *, memory_format: Any, pin: bool) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, memory_format=memory_format)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_all_batches_to_a_device(folder: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    fake = FakeCuda(monkeypatch)
    transform = v2.Compose([v2.Resize((16, 16)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    dataset = ImageFolder(folder, transform)
    monkeypatch.setattr("fastdata.dataloader.epoch_paths.may_pin", lambda wanted: False)
    options: dict[str, Any] = {"batch_size": 5, "num_workers": workers, "backend": "native"}
    loader = DataLoader(dataset, device="cuda", **options)
    for (ours, labels), (theirs, others) in zip(loader, DataLoader(dataset, **options), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(labels, others)
    assert fake.calls.count("copy") == 2 * len(loader)
    assert len([call for call in fake.calls if call.startswith("host waits")]) == len(loader) - 2


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_for_a_device_are_pinned_by_torchs_thread(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    FakeCuda(monkeypatch)
    asked = []
    begin = torch.utils.data.dataloader._BaseDataLoaderIter.__init__

    def noting(self: Any, loader: Any) -> None:
        asked.append(loader.pin_memory)
        begin(self, loader)

    monkeypatch.setattr(torch.utils.data.dataloader._BaseDataLoaderIter, "__init__", noting)
    dataset = TensorDataset(torch.arange(8))
    for device, pins in (("cuda", True), (None, False)):
        assert len(list(DataLoader(dataset, 2, num_workers=workers, device=device))) == 4
        assert asked.pop() is pins


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_a_batch_of_a_class_of_ones_own_pins_itself(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its images are still encoded when torch pins the batch."""

    class OwnBatch:
        is_pinned = False

        def __init__(self, samples: list[Any]) -> None:
            self.images = torch.stack([image for image, _ in samples])

        def pin_memory(self) -> OwnBatch:
            self.is_pinned = True
            return self

    monkeypatch.setattr("fastdata.dataloader.map_style.may_pin", lambda wanted: wanted)
    loader = DataLoader(Table(table, VALIDATE), 5, collate_fn=OwnBatch, pin_memory=True)
    assert all(batch.is_pinned for batch in loader)
    assert not any(batch.is_pinned for batch in DataLoader(Table(table, VALIDATE), 5, collate_fn=OwnBatch))


def test_torchs_warning_of_a_prototype_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def set_mode(mode: str) -> None:
        modes.append(mode)
        warnings.warn(PROTOTYPE, stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with SyncFinder(torch.device("cuda")):
        torch.zeros(1).item()
    assert modes == ["warn", "default"]
    cuda.set_sync_debug_mode("error")
    assert modes[-1] == "error"


def test_what_the_host_waits_for_while_the_device_computes_is_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, waits = FakeCuda(monkeypatch), WaitClock(torch.device("cuda"))
    for idle_ms in (0.0, 0.0, 40.0):
        fake.now_ms += 100.0  # a step
        waits.ask()
        fake.now_ms += idle_ms  # the device has nothing to do
        waits.came()
    assert waits.seconds() == pytest.approx(0.04)


def test_outputs_of_dali_that_the_device_still_reads_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    monkeypatch.setattr("fake_cuda.Event.query", lambda self: False)

    class OnGpu:
        device_index = 0

    pipeline = DaliPipeline(iter(()), OnGpu())  # type: ignore[arg-type]
    for number in range(20):
        pipeline._latest = number
        pipeline._retire()
    assert len(pipeline._retired) == 4
    assert [call for call in fake.calls if call.startswith("host")] == [f"host waits for event {n}" for n in range(16)]
    pipeline._retired.clear()


def test_gpus_of_amd_do_not_decode_by_nvidias_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "is_rocm", lambda: True)
    device = torch.device("cuda")
    with pytest.raises(OptionError, match="NVIDIA GPU, but this torch was built for AMD's; use 'cpu'"):
        check_decode_device("mixed", "dali", device)
    assert check_decode_device("auto", "dali", device) == "cpu"


@pytest.mark.parametrize(
    "options",
    [{"device": None}, {"device": "cpu"}, {"backend": "pil"}, {"backend": "dali"}, {"fidelity": "fast"}],
    ids=str,
)
def test_decoding_on_the_gpu_needs_a_gpu_the_core_and_exact_pixels(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    FakeCuda(monkeypatch)
    given = {"device": "cuda", "decode_device": "cuda", **options}
    with pytest.raises(OptionError, match="decode_device='cuda' needs device='cuda', backend='auto' or 'native'"):
        DataLoader(TensorDataset(torch.zeros(3)), **given)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_where_kernels_cannot_start_the_cpu_decodes_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Here Triton finds no GPU."""
    FakeCuda(monkeypatch)
    monkeypatch.setattr("fastdata.dataloader.epoch_paths.may_pin", lambda wanted: False)
    dataset = ImageFolder(folder, VALIDATE)
    loader = DataLoader(dataset, 13, device="cuda", decode_device="cuda")
    with pytest.warns(UserWarning, match="decode_device='cuda' has no effect, the CPU decodes: Triton cannot start a"):
        ours = list(loader)
    for (images, _), (expected, _) in zip(ours, DataLoader(dataset, 13), strict=True):
        assert torch.equal(images, expected)


@pytest.mark.parametrize("options", [{"batch_size": None}, {"defer": False}], ids=str)
def test_where_nothing_is_decoded_there_explain_says_so(
    monkeypatch: pytest.MonkeyPatch, table: Path, options: dict[str, Any]
) -> None:
    FakeCuda(monkeypatch)
    loader = DataLoader(Table(table, VALIDATE), device="cuda", decode_device="cuda", **options)
    told = loader.explain()
    assert "decode_device='cuda'" in told.partition("no effect:")[2]
    assert "decodes on" not in told
