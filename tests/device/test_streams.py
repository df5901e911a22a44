"""The prefetcher's hand-over on a simulated device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from simulated_device import SIZE, Device, sums
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from fastdata import DevicePrefetcher, OptionError
from fastdata.device.prefetch import map_tensors


class NoWait(Device):
    def consumer_waits_for(self, event: int) -> None:
        pass


class NoMark(Device):
    def consumer_uses(self, tensor: torch.Tensor) -> None:
        pass


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("late", ["copies", "consumer", "neither"])
def test_every_batch_arrives_whole(late: str, depth: int) -> None:
    assert sums(Device(late=late), depth=depth) == list(range(12))


def test_without_waiting_the_consumer_reads_too_early() -> None:
    assert sums(NoWait(late="copies")) != list(range(12))


def test_without_the_mark_memory_is_given_out_too_early() -> None:
    assert sums(NoMark(late="consumer")) != list(range(12))


class NoHostWait(Device):
    def host_waits_for(self, event: int) -> None:
        pass


@pytest.mark.parametrize("depth", [1, 3])
def test_a_host_that_runs_ahead_of_the_device_takes_no_more_memory(depth: int) -> None:
    lagging = Device(late="consumer")
    assert sums(lagging, depth=depth, size=60) == list(range(60))
    # Two blocks a batch: those copied ahead, those whose work is awaited, and the one in use.
    assert lagging.made <= 2 * (2 * depth + 4)
    unbounded = NoHostWait(late="consumer")
    assert sums(unbounded, depth=depth, size=60) == list(range(60))
    assert unbounded.made == 2 * 60


def test_memory_is_given_out_again_at_all() -> None:
    device = Device(late="neither")
    blocks = set()
    real = device.to_device

    def to_device(tensor: torch.Tensor) -> torch.Tensor:
        result = real(tensor)
        blocks.add(result.data_ptr())
        return result

    device.to_device = to_device  # type: ignore[method-assign]
    assert sums(device) == list(range(12))
    assert len(blocks) < 6


def test_an_error_of_the_loader_comes_after_the_batches_before_it() -> None:
    def batches() -> Iterator[torch.Tensor]:
        yield torch.zeros(SIZE)
        yield torch.ones(SIZE)
        raise KeyError("loader")

    copied = DevicePrefetcher([], "cpu", depth=4)._copied_ahead(batches(), Device(late="neither"))
    assert [next(copied)[0].item() for _ in range(2)] == [0.0, 1.0]
    with pytest.raises(KeyError, match="loader"):
        next(copied)


def test_an_early_break_drops_what_was_copied_ahead() -> None:
    closed = []

    def batches() -> Iterator[torch.Tensor]:
        try:
            for n in range(100):
                yield torch.full((SIZE,), float(n))
        finally:
            closed.append(n)

    copied = DevicePrefetcher([], "cpu", depth=2)._copied_ahead(batches(), Device(late="copies"))
    next(copied)
    copied.close()
    del copied
    assert closed == [2]


def test_static_batches_are_the_same_tensors() -> None:
    batches = [[torch.full((3,), float(n)), {"label": torch.tensor([n]), "name": str(n)}] for n in range(4)]
    addresses, seen = set(), []
    for images, rest in DevicePrefetcher(batches, "cpu", static=True):
        addresses.add((images.data_ptr(), rest["label"].data_ptr()))
        seen.append((images[0].item(), rest["label"].item(), rest["name"]))
    assert len(addresses) == 1
    assert seen == [(float(n), n, str(n)) for n in range(4)]
    assert batches[0][0][0].item() == 0.0


def test_a_static_batch_of_another_size_is_refused() -> None:
    iterator = iter(DevicePrefetcher([torch.zeros(4, 2), torch.zeros(3, 2)], "cpu", static=True))
    next(iterator)
    with pytest.raises(OptionError, match=r"\(4, 2\).*\(3, 2\).*drop_last=True"):
        next(iterator)


def test_lengths_of_packed_sequences_stay_on_the_host() -> None:
    packed = pack_sequence([torch.tensor([1.0, 2.0]), torch.tensor([3.0])], enforce_sorted=False)
    moved = map_tensors({"words": packed}, lambda tensor: tensor.to("meta"))["words"]
    assert [part.device.type for part in moved] == ["meta", "cpu", "meta", "meta"]
    assert type(moved) is PackedSequence
    assert map_tensors(pack_sequence([torch.ones(2)]), torch.neg).data.tolist() == [-1.0, -1.0]


def test_mapped_structures_keep_what_is_no_tensor() -> None:
    assert map_tensors({"a": (1, None, "x"), "b": [torch.ones(1)]}, torch.neg) == {"a": (1, None, "x"), "b": [-1.0]}
