"""Batch memory: freed when dropped, used again only then, and never while anything still sees it."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from pathlib import Path

import pytest
import torch
import torchvision.transforms as v1

from fastdata import DataLoader, ImageFolder
from fastdata.pipeline.batch_memory import BatchMemory

SMALL = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])


def test_a_block_is_used_again_once_its_tensor_is_gone() -> None:
    memory = BatchMemory(keep=1)
    first = memory.tensor((4, 8), torch.float32)
    address = first.data_ptr()
    del first
    assert memory.tensor((2, 8), torch.float32).data_ptr() == address


@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor[1:],
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.detach().view(torch.uint8),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: memoryview(tensor.numpy()),
        lambda tensor: torch.from_dlpack(tensor),
    ],
    ids=["slice", "numpy", "detached view", "storage", "memoryview", "dlpack"],
)
def test_a_block_is_not_used_while_something_sees_it(view: object) -> None:
    memory = BatchMemory(keep=4)
    tensor = memory.tensor((4, 8), torch.float32)
    address = tensor.data_ptr()
    seen = view(tensor)  # type: ignore[operator]
    del tensor
    others = [memory.tensor((4, 8), torch.float32) for _ in range(3)]
    assert address not in [other.data_ptr() for other in others]
    del seen
    assert memory.tensor((4, 8), torch.float32).data_ptr() == address


def test_no_more_blocks_are_held_than_asked() -> None:
    memory = BatchMemory(keep=2)
    tensors = [memory.tensor((64,), torch.uint8) for _ in range(5)]
    del tensors
    assert len(memory._returned) == 2


def test_nothing_is_held_once_the_epoch_is_over_or_left(folder: Path) -> None:
    gc.collect()
    held = _blocks_held()
    loader = DataLoader(ImageFolder(folder, SMALL), 4, num_workers=2)
    kept = list(loader)
    for _ in loader:
        break
    del kept
    gc.collect()
    assert _blocks_held() == held


def _blocks_held() -> int:
    return sum(len(each._returned) for each in gc.get_objects() if type(each) is BatchMemory)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_tensors_of_every_type_behave(dtype: torch.dtype) -> None:
    tensor = BatchMemory(keep=1).tensor((3, 5), dtype)
    assert (tensor.dtype, tensor.shape, tensor.is_contiguous()) == (dtype, (3, 5), True)
    tensor.fill_(1)
    for made in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor), tensor.clone()):
        assert torch.equal(made, tensor)
    assert BatchMemory(keep=1).tensor((0, 5), dtype).shape == (0, 5)


@pytest.mark.parametrize("backend", ["native", "turbojpeg", "pil"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_freed_when_it_is_dropped(folder: Path, backend: str, workers: int) -> None:
    gc.collect()
    gc.disable()
    try:
        alive = []
        for images_, _labels in DataLoader(ImageFolder(folder, SMALL), 4, backend=backend, num_workers=workers):
            alive.append(weakref.ref(images_))
            assert sum(ref() is not None for ref in alive) <= 2
        del images_
        assert sum(ref() is not None for ref in alive) == 0
    finally:
        gc.enable()


def test_batches_that_are_kept_stay_as_they_were(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, SMALL), 4, num_workers=2, seed=1)
    kept = [(batch[0], batch[0].clone()) for batch in loader]
    for _ in loader:
        pass
    assert all(torch.equal(batch, as_it_was) for batch, as_it_was in kept)


def test_a_loader_can_be_copied(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, SMALL), 4, backend="native", seed=3)
    expected = [labels.tolist() for _, labels in loader]
    assert [labels.tolist() for _, labels in copy.deepcopy(loader)] == expected
    assert [labels.tolist() for _, labels in pickle.loads(pickle.dumps(loader))] == expected
