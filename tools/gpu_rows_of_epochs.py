"""Rows of gpu_check.py about whole epochs on a device: memory that stays, and the contexts that a loop may be in."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from gpu_row import Failed, Row

from fastdata import DataLoader, ImageFolder, transforms

__all__ = ["contexts", "epochs"]


def _loader(row: Row, *steps: Any, **options: Any) -> Any:
    first = (transforms.RandomResizedCrop(64), *steps, transforms.ToTensor())
    dataset = ImageFolder(row.images(), transforms.Compose(first))
    return DataLoader(dataset, 32, shuffle=True, seed=1, num_workers=2, device=row.device, **options)


def epochs(row: Row) -> dict[str, Any]:
    """Device memory after forty epochs is that after two, and closing an iterator frees what was copied ahead."""
    loader, reserved, last = _loader(row), dict[int, float](), 4 if row.dry else 40
    for number in range(1, last + 1):
        for _ in loader:
            pass
        reserved[number] = 0.0 if row.dry else torch.cuda.memory_reserved() / 1e6
    batches = iter(loader)
    batch = next(batches)
    open_mb = 0.0 if row.dry else torch.cuda.memory_allocated() / 1e6
    batches.close()
    gc.collect()
    row.wait()
    closed_mb = 0.0 if row.dry else torch.cuda.memory_allocated() / 1e6
    found = {
        "reserved_mb after 2": reserved[2],
        "after the last": reserved[last],
        "open_mb": open_mb,
        "closed_mb": closed_mb,
    }
    del batch
    if reserved[last] > 1.1 * reserved[2]:
        raise Failed(f"reserved memory grows from epoch to epoch: {found}")
    if not row.dry and closed_mb >= open_mb:
        raise Failed(f"close() frees nothing of what was copied ahead: {found}")
    return found


def contexts(row: Row) -> dict[str, Any]:
    """Batches have the same bits inside of autocast, and for a consumer on a stream of its own."""
    steps = transforms.ColorJitter(0.4, 0.4, 0.4, 0.1), transforms.GaussianBlur(5), transforms.TrivialAugmentWide()
    expected = [images.cpu() for images, _ in _loader(row, *steps, augment_on="device")]

    def differing(context: AbstractContextManager[Any]) -> int:
        with context:
            found = [images + 0 for images, _ in _loader(row, *steps, augment_on="device")]
        row.wait()
        return sum(not torch.equal(ours.cpu(), theirs) for ours, theirs in zip(found, expected, strict=True))

    side = nullcontext() if row.dry else torch.cuda.stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    found = {
        "batches": len(expected),
        "differing in autocast": differing(torch.autocast(row.device.type, torch.bfloat16)),
        "differing on a side stream": differing(side),
    }
    if found["differing in autocast"] or found["differing on a side stream"]:
        raise Failed(f"batches depend on the context of the loop: {found}")
    return found
