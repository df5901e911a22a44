"""Batches from worker processes lie in memory that is used again: they equal torch's and are never overwritten."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset
from torchvision import tv_tensors

from fastdata import DataLoader
from fastdata.system import shared_blocks

pytestmark = pytest.mark.skipif(not shared_blocks.can_share_blocks(), reason="memory without a name is Linux's")

LARGE = 40_000  # values of a tensor that goes to a block
Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Record:
    pixels: torch.Tensor
    name: str


def filled(number: int, *shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    return (torch.arange(int(np.prod(shape))) % 251 + number).to(dtype).view(shape)


def odd_sample(number: int) -> Any:
    """All that a batch may be made of."""
    large, shared = filled(number, 4, LARGE), filled(number, LARGE)
    whole = torch.arange(10 * LARGE)
    small = torch.tensor([number, 2])
    return {
        "large": large,
        "twice": [large, large],
        "small": small,
        "same memory": (shared.view(4, -1), shared.view(-1, 4), small, small.view(2, 1)),
        "part of more": whole[number : number + 5],
        "half": large[:2],
        "turned": large.t(),
        "channels last": filled(number, 2, 3, 90, 80).contiguous(memory_format=torch.channels_last),
        "dtypes": [filled(number, LARGE, dtype=each) for each in (torch.bfloat16, torch.bool, torch.int64)],
        "complex": torch.complex(shared, shared),
        "empty": [torch.empty(0), torch.empty(3, 0, 2)],
        "scalar": torch.tensor(1.5 + number),
        "parameter": torch.nn.Parameter(filled(number, LARGE)),
        "image": tv_tensors.Image(filled(number, 3, 150, 150, dtype=torch.uint8)),
        "pair": Pair(filled(number, LARGE), "text"),
        "record": Record(filled(number, LARGE), f"sample {number}"),
        "array": np.arange(LARGE, dtype=np.float32).reshape(4, -1) + number,
        "arrays": [np.asfortranarray(np.ones((300, 200)) * number), np.arange(6), np.ones((300, 300), ">i4")[::2]],
        "objects": np.array(["a", None] * 5000, dtype=object),
        "read only": np.frombuffer(bytes(range(250)) * 100, np.uint8),
        "text": "x" * 50_000,
        "nothing": None,
    }


class Odd(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return odd_sample(index)


class OddStream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return map(odd_sample, range(info.id, 6, info.num_workers))


def as_it_is(sample: Any) -> Any:
    return sample


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.requires_grad == theirs.requires_grad
        assert (ours.stride(), ours.storage_offset()) == (theirs.stride(), theirs.storage_offset())
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape, ours.strides) == (theirs.dtype, theirs.shape, theirs.strides)
        assert ours.flags.writeable == theirs.flags.writeable
        assert np.array_equal(ours, theirs)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        assert_same(list(ours.values()), list(theirs.values()))
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, Record):
        assert_same(vars(ours), vars(theirs))
    else:
        assert ours == theirs


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")
@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("kind", [Odd, OddStream])
def test_whatever_a_batch_is_made_of_arrives_as_with_torch(kind: Any, how: str) -> None:
    def batches(cls: Any) -> list[Any]:
        return list(cls(kind(), batch_size=None, num_workers=2, collate_fn=as_it_is, multiprocessing_context=how))

    for ours, theirs in zip(batches(DataLoader), batches(torch.utils.data.DataLoader), strict=True):
        assert_same(ours, theirs)
        assert ours["twice"][0] is ours["large"]
        assert ours["part of more"].is_shared()  # torch's way: all of it was moved once
        for name, at in (("same memory", 1), ("same memory", 3)):
            ours[name][at - 1].fill_(77)
            assert (ours[name][at] == 77).all()
        ours["array"][:] = 3
        ours["array"].sum()


SMALL = {
    "labels": lambda number: torch.tensor(number),
    "pairs": lambda number: torch.tensor([number, -1.5]),
    "masks": lambda number: torch.tensor([[number > 2]]),
    "views": lambda number: torch.arange(12).view(3, 4).t()[number % 4 :: 4],
    "conjugated": lambda number: torch.tensor([1 + 2j * number]).conj(),
    "of several types": lambda number: torch.tensor(number) if number else torch.tensor(0.5),
    "of types that do not fit": lambda number: torch.tensor(number + 0.5) if number else torch.tensor(0),
    "of several lengths": lambda number: torch.zeros(number),
    "nothing": lambda number: torch.zeros(0, 3),
    "trained": lambda number: torch.tensor([1.0 + number], requires_grad=True),
}


class Small(Dataset[Any]):
    """Samples that are small tensors."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return SMALL[self.name](index)


@pytest.mark.parametrize("name", SMALL)
def test_small_tensors_are_stacked_as_by_torch(name: str) -> None:
    def outcome(cls: Any) -> tuple[Any, ...]:
        try:
            (batch,) = cls(Small(name), 4, num_workers=1)
        except (RuntimeError, TypeError) as error:
            return type(error), str(error).splitlines()[-1]
        return batch.tolist(), batch.dtype, batch.shape, batch.stride(), batch.is_conj()

    assert outcome(DataLoader) == outcome(torch.utils.data.DataLoader)


def test_small_tensors_are_sent_by_value_and_need_no_descriptor() -> None:
    (labels,) = DataLoader(Small("labels"), 4, num_workers=1)
    assert not labels.is_shared()
    assert labels.tolist() == [0, 1, 2, 3]


class Numbered(Dataset[Any]):
    """Samples of some size, which may differ from batch to batch."""

    def __init__(self, count: int, *, sizes: tuple[int, ...] = (LARGE,)) -> None:
        self.count, self.sizes = count, sizes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.sizes[index % len(self.sizes)],), float(index)), index


def as_lists(samples: list[Any]) -> Any:
    return [image for image, _ in samples], [index for _, index in samples]


@pytest.mark.parametrize("collate", [None, as_lists])
@pytest.mark.parametrize("more", [{}, {"prefetch_factor": 5, "persistent_workers": True}, {"in_order": False}])
def test_what_the_program_holds_is_never_overwritten(collate: Any, more: dict[str, Any]) -> None:
    loader = DataLoader(Numbered(240), 2, num_workers=2, collate_fn=collate, **more)
    draw, held = random.Random(3), list[Any]()
    for _ in range(2):
        for pixels, indices in loader:
            some = pixels[0] if draw.random() < 0.5 else torch.stack(list(pixels))[0].clone()
            held.append((some, float(indices[0])))
            if draw.random() < 0.7:
                held.pop(draw.randrange(len(held)))
        assert all((pixels == number).all() for pixels, number in held)
    assert len(held) > 50


def test_a_process_that_is_forked_keeps_what_it_has_seen() -> None:
    """Its memory is the same, and the program that has forked it lets go at once."""
    loader = DataLoader(Numbered(400), 2, num_workers=1)
    batches = iter(loader)
    pixels, indices = next(batches)
    go, end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            os.read(go, 1)
            status = int(not (pixels[1].numpy() == 1.0).all())  # torch's threads do not exist here
            del pixels  # must not give anything back, either
            gc.collect()
        finally:
            os._exit(status)
    assert indices.tolist() == [0, 1]
    del pixels
    for _ in range(50):
        next(batches)
    os.write(end, b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held, numbers = next(batches)
    for _ in range(50):
        next(batches)
    assert all((row == float(number)).all() for row, number in zip(held, numbers, strict=True))


def blocks_of(process: int | str = "self") -> set[str]:
    """The blocks that a process has mapped, by their inodes."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:fastdata-batch" in line}


def mapped_bytes(process: int) -> int:
    lines = [line for line in Path(f"/proc/{process}/maps").read_text().splitlines() if "memfd:fastdata" in line]
    return sum(int(line.split("-")[1].split()[0], 16) - int(line.split("-")[0], 16) for line in lines)


def test_blocks_are_used_again_and_go_with_the_loader() -> None:
    loader, before = DataLoader(Numbered(300), 2, num_workers=2), blocks_of()
    for _ in range(2):
        batches: Any = iter(loader)
        seen: set[str] = set()
        for number, _ in enumerate(batches):
            seen |= blocks_of() - before
            if number == 100:
                workers = [worker.pid for worker in batches._workers]
                assert all(0 < len(blocks_of(worker) - before) <= 6 for worker in workers)
        assert 2 <= len(seen) <= 12
        del batches, _
        gc.collect()
        assert not blocks_of() - before


def test_batches_of_similar_sizes_share_blocks() -> None:
    numbers = random.Random(1)
    sizes = tuple(int(40 * LARGE * numbers.uniform(1, 3.8)) for _ in range(150))
    before, seen = blocks_of(), set[str]()
    for pixels, index in DataLoader(Numbered(150, sizes=sizes), 1, num_workers=1):
        assert (pixels == float(index)).all()
        seen |= blocks_of() - before
    assert len(seen) < 50  # 150 if each size had its own; more or fewer are given back meanwhile


MB = 1 << 20


@pytest.mark.parametrize(
    "sizes",
    [[8 * MB, 2 * MB, MB // 2], [8 * MB, 8 * MB // 3], [2 * MB, 8 * MB], [8 * MB, *range(20_000, 2 * MB, 300_000)]],
    ids=["pyramid", "image and depth", "small and large", "image and captions"],
)
def test_small_tensors_leave_the_large_ones_blocks_alone(sizes: list[int]) -> None:
    writer, held = shared_blocks.BlockWriter(-1), list[Any]()
    shared_blocks.take_blocks(-1)
    try:
        for number in range(60):
            handles = [writer.place(np.full(size, number, np.uint8)) for size in sizes]
            shared_blocks.forget_blocks(-1, writer.end_message(is_sent=True))
            held = [*held[-1:], [shared_blocks.array_in_block(handle) for handle in handles if handle is not None]]
            del handles
        assert writer._made < 5 * len(sizes)
        assert sum(block.touched for block in writer._blocks.values()) < 4 * sum(sizes)
        assert all((array == 59).all() for array in held[-1])
    finally:
        held.clear()
        shared_blocks.forget_blocks(-1)


def test_what_was_held_for_a_while_is_given_back() -> None:
    batches: Any = iter(DataLoader(Numbered(100), 1, num_workers=1, prefetch_factor=2))
    held = [next(batches) for _ in range(12)]
    (worker,) = batches._workers
    most = mapped_bytes(worker.pid)
    del held
    for _ in range(40):
        next(batches)
    assert mapped_bytes(worker.pid) < most / 2


def test_a_program_that_holds_several_batches_at_a_time_gets_the_same_blocks() -> None:
    before, seen, held = blocks_of(), set[str](), list[Any]()
    for batch in DataLoader(Numbered(120), 1, num_workers=1, prefetch_factor=2):
        held.append(batch)
        seen |= blocks_of() - before
        if len(held) == 8:
            held.clear()
    assert len(seen) < 30


def twice(samples: list[Any]) -> Any:
    """A batch that is collated, and then another one of it."""
    pixels, index = torch.utils.data.default_collate(samples)
    return pixels * 2, index, blocks_of()


def test_a_batch_that_is_not_sent_itself_keeps_its_block() -> None:
    seen: set[str] = set()
    for number, (_, _, blocks) in enumerate(DataLoader(Numbered(80), 1, num_workers=1, collate_fn=twice)):
        seen |= blocks if number > 20 else set()
    assert len(seen) < 10


def test_blocks_of_many_sizes_do_not_pile_up() -> None:
    sizes = tuple(int(LARGE * 1.07**power) for power in range(40))
    loader = DataLoader(Numbered(600, sizes=sizes), 1, num_workers=1, prefetch_factor=2)
    batches: Any = iter(loader)
    for number, (pixels, index) in enumerate(batches):
        assert (pixels == float(index)).all()
        if number % 100 == 99:
            assert mapped_bytes(batches._workers[0].pid) < 6 * 4 * max(sizes) * 5 // 4 + (16 << 20)


def test_everything_may_be_held() -> None:
    loader = DataLoader(Numbered(100), 1, num_workers=2)
    held = list(loader)
    assert all((pixels == float(index)).all() for pixels, index in held)
    saved = held[3][0].untyped_storage().nbytes()
    assert saved == 4 * LARGE  # torch.save writes no more than the tensor


def without_memory(worker: int) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(12, "Cannot allocate memory")

    os.memfd_create = refuse


def test_without_memory_tensors_go_torchs_way() -> None:
    loader = DataLoader(Numbered(20), 2, num_workers=2, worker_init_fn=without_memory)
    for pixels, indices in loader:
        assert pixels.is_shared()
        assert all((row == float(number)).all() for row, number in zip(pixels, indices, strict=True))


class Unsendable(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((LARGE,), float(index)), (lambda: index) if index == 5 else index


def test_what_cannot_be_sent_is_an_error_at_its_place_and_frees_its_block() -> None:
    batches, seen = iter(DataLoader(Unsendable(), batch_size=None, num_workers=1, collate_fn=as_it_is)), []
    for number in range(12):
        if number == 5:
            with pytest.raises(Exception, match=r"could not be sent.*lambda"):
                next(batches)
        else:
            pixels, index = next(batches)
            assert (pixels == float(index)).all()
            seen.append(index)
    assert seen == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


# ---- what a review found


def test_an_array_stays_when_its_tensor_is_moved_to_shared_memory() -> None:
    """torch moves the storage of a tensor that is shared; an array still looks at the old memory."""
    kept = []
    for pixels, numbers in DataLoader(Numbered(60), 2, num_workers=1):
        array = pixels.numpy()
        pixels.share_memory_()
        kept.append((array, numbers.tolist()))
    assert all((array[row] == number).all() for array, numbers in kept for row, number in enumerate(numbers))


class KeepsParts:
    """A collate function that gives a part of what it stacks, and looks at what it stacked before."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, samples: list[Any]) -> Any:
        stacked = torch.utils.data.default_collate([image for image, _ in samples])
        self.kept.append((stacked.numpy(), [float(number) for _, number in samples]))
        same = all((array[row] == number).all() for array, numbers in self.kept for row, number in enumerate(numbers))
        return stacked[:1], same


def test_what_a_worker_process_keeps_stays_as_well() -> None:
    for pixels, same in DataLoader(Numbered(120), 6, num_workers=1, collate_fn=KeepsParts()):
        assert same
        assert pixels.is_shared()


class Threads(IterableDataset[Any]):
    """Threads of a worker process stack batches at once."""

    def __iter__(self) -> Any:
        from concurrent.futures import ThreadPoolExecutor

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(4) as threads:
                yield from threads.map(self.stacked, range(400))
        finally:
            sys.setswitchinterval(interval)

    def stacked(self, number: int) -> Any:
        return torch.utils.data.default_collate([torch.full((LARGE,), float(number))] * 2), number


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")
def test_threads_of_a_worker_process_do_not_share_a_block() -> None:
    for pixels, number in DataLoader(Threads(), batch_size=None, num_workers=1):
        assert (pixels == number).all()


class Forking:
    """A collate function whose process forks another, which collates as well, while it holds its result."""

    def __call__(self, samples: list[Any]) -> Any:
        batch = torch.utils.data.default_collate(samples)
        child = os.fork()
        if child == 0:
            torch.utils.data.default_collate([(torch.full((LARGE,), -1.0), -1)] * len(samples))
            os._exit(0)
        os.waitpid(child, 0)
        return batch


def test_processes_that_a_worker_process_forks_use_no_blocks_and_leave_none() -> None:
    batches: Any = iter(DataLoader(Numbered(160), 2, num_workers=1, collate_fn=Forking()))
    for number, (pixels, numbers) in enumerate(batches):
        assert all((row == value).all() for row, value in zip(pixels, numbers.tolist(), strict=True))
        if number == 60:
            assert mapped_bytes(batches._workers[0].pid) < 12 * 2 * 4 * LARGE * 9 // 8


class Nested(Numbered):
    """A worker process reads its own dataset with a loader of torch's."""

    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        if info is not None and index == 3 and not hasattr(self, "kinds"):
            self.kinds: set[str] = set()
            self.kinds = {type(batch[0]).__name__ for batch in torch.utils.data.DataLoader(info.dataset, 5)}
        return super().__getitem__(index)[0], ",".join(getattr(self, "kinds", ()))


def test_a_loader_within_a_worker_process_gives_what_it_always_gives() -> None:
    seen = [kinds for _, kinds in DataLoader(Nested(12), batch_size=None, num_workers=1)]
    assert set(seen[3:]) == {"Tensor"}


class Whole(Dataset[Any]):
    """Gives all of its memory again and again, or a part of it under another class."""

    def __init__(self) -> None:
        self.all = torch.arange(3.0 * LARGE).view(3, 200, -1)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return self.all, tv_tensors.Image(self.all[:, :2])


def test_what_is_sent_again_and_again_is_moved_once() -> None:
    held = list(DataLoader(Whole(), batch_size=None, num_workers=1))
    assert all(whole.is_shared() and part.is_shared() for whole, part in held[1:])
    assert all(torch.equal(whole, held[0][0]) for whole, _ in held)
