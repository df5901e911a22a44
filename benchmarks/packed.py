"""What the host does for decode_device="cuda": it packs images for a GPU, in place of decoding them.

One thread, batches of 128 of RandomResizedCrop(224) and flip to uint8, from the page cache: shards of unpacked JPEGs,
and of JPEGs with an index.  "packed" reads, compares checksums, draws views, packs, and copies all into the batch's
arena, in pageable memory where there is no GPU; "decoded" decodes the same windows.  What a loader adds (Python's part
of a batch, targets, threads) is in neither, and nothing of what a GPU does.  Ways take turns; CPU time of the process.
Result: benchmarks/results/packed.json.

    python benchmarks/packed.py FOLDER
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import benchmark

from fastdata import ShardDataset, transforms
from fastdata.device.packed_batch import packed_batch
from fastdata.loaders import create_backend
from fastdata.measuring.rounds import compare
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.sources.protocol import file_ranges
from fastdata.sources.recognise import recognise
from fastdata.tables import Format, Recipes, addresses
from fastdata.transforms.compile import compile_transform
from fastdata.views.philox import Key

BATCH, SIDE = 128, 224
CROP = transforms.Compose(
    [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
)


class Shards:
    """Shards whose images are decoded, or packed, batch by batch."""

    def __init__(self, folder: Path) -> None:
        self.source = recognise(ShardDataset(folder, CROP))
        plan = compile_transform(CROP).plan
        assert plan is not None
        self.filler = create_backend("native").filler(plan, Key(seed=1, epoch=0), threads=0)
        self.out = torch.empty((BATCH, SIDE, SIDE, 3), dtype=torch.uint8)
        self.batches = len(self.source) // BATCH
        self.packed_bytes: list[int] = []

    def epoch(self, *, packed: bool) -> Iterator[torch.Tensor]:
        """Batches as they are decoded, or arenas."""
        for number in range(self.batches):
            rows = list(range(number * BATCH, (number + 1) * BATCH))
            files = file_ranges(self.source, rows)
            filled = self.filler.fill(
                Recipes(
                    **{name: getattr(files, name) for name in ("paths", "offsets", "lengths", "crcs")},
                    indices=rows,
                    occurrences=[0] * BATCH,
                    format=Format(),
                    out=addresses(self.out.data_ptr(), self.out.stride(0), BATCH),
                    packed=packed,
                )
            )
            assert not filled.refused
            if not packed:
                yield self.out
                continue
            arena, decoded = packed_batch(
                filled.packed,
                self.out,
                range(BATCH),
                levels=None,
                memory_format=torch.contiguous_format,
                pin=torch.cuda.is_available(),
            )
            assert decoded.packed > 0.9 * BATCH
            self.packed_bytes.append(arena.nbytes)
            yield arena


def measured(given: Namespace) -> dict[str, Any]:
    """CPU time and bytes of both ways, for both kinds of shards."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind, recoding in {"unpacked": Recoding(unpacked=True), "index": Recoding()}.items():
            convert(str(given.folder), Path(scratch) / kind, ConvertOptions(recoding=recoding), workers=2)
            shards = Shards(Path(scratch) / kind)
            passes = {
                f"{kind}, decoded": partial(shards.epoch, packed=False),
                f"{kind}, packed": partial(shards.epoch, packed=True),
            }
            images = shards.batches * BATCH
            found = compare(passes, f"{kind}, decoded", images=images, rounds=given.rounds)
            found["bytes_of_an_image"] = {
                "packed": float(np.mean(shards.packed_bytes)) / BATCH,
                "pixels": 3 * SIDE * SIDE,
            }
            results[kind] = found
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, folder="folder of images", rounds=15)
