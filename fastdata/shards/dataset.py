"""ShardDataset: the images in a converted dataset by number, on a local disk or in a remote store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from fastdata.errors import DatasetError, ShardError
from fastdata.pipeline.getitems import fetch_or_loop
from fastdata.shards.format import NO_LABEL, crc32c
from fastdata.shards.opening import open_shards
from fastdata.shards.store import Shards
from fastdata.sources.protocol import FileRanges, NotASource

__all__ = ["ShardDataset"]


class ShardDataset(Dataset[Any]):
    """A map-style dataset of (image, class) over shards written by `fastdata convert`.

    It goes through fastdata's image pipeline with every backend, and works in torch's own DataLoader.  Opening reads
    the indices, of which 40 bytes a sample stay in memory; tar files are opened when they are read, once for each read,
    so a fork or another process shares nothing.  Every image is checked against its checksum when it is read.

    Args:
        path: a folder that `fastdata convert` made (of one split: DEST/train), a tar file, a pattern of them
            ("shard-{000000..000009}.tar"), a list of any of these, or the URL of any ("s3://...", see fsspec).
        transform: applied to each image, as in torchvision.
        target_transform: applied to each class number.
        cache_dir: where shards of a remote store are kept; None is a folder in the user's cache.
        cache_bytes: most that they may take there; the least recently used go first.

    Attributes:
        classes: class names by number, or None where the shards have none.
        class_to_idx: numbers by name.
        labels: int64, (N,): class numbers; -1 where a sample has none.
        sizes_px: uint32, (N, 2): width and height.
        shard_ends: int64, (S,): where each shard's samples end.

    Raises:
        DatasetError: there are no shards.
        ShardError: an index or the manifest is damaged, or a tar file is not as long as its index says.
        StoreError: the remote store does not answer.

    Example:
        >>> dataset = ShardDataset("imagenet/train", transform)
        >>> loader = DataLoader(dataset, batch_size=256, shuffle=True, num_workers="auto")
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = 100 << 30,
    ) -> None:
        self.transform, self.target_transform = transform, target_transform
        self._shards: Shards = open_shards(path, cache_dir=cache_dir, cache_bytes=cache_bytes)
        self.classes = self._shards.classes
        self.class_to_idx = {name: number for number, name in enumerate(self.classes or [])}
        lengths = []
        columns: dict[str, list[npt.NDArray[Any]]] = {
            name: [] for name in ("offset", "size", "label", "width", "height", "crc32c")
        }
        for number in range(len(self._shards)):
            records = self._shards.read_index(number).records
            lengths.append(len(records))
            for name, parts in columns.items():
                parts.append(records[name].copy())
        whole = {name: np.concatenate(parts) for name, parts in columns.items()}
        self._offsets, self._sizes = whole["offset"].astype(np.int64), whole["size"]
        self.labels, self._crcs = whole["label"], whole["crc32c"]
        self.sizes_px = np.stack([whole["width"], whole["height"]], axis=1)
        self.shard_ends = np.cumsum(np.array(lengths, np.int64))
        if len(self) == 0:
            raise DatasetError(f"no images in {path}")

    @property
    def targets(self) -> list[int]:
        """Class numbers as a list, as torchvision's datasets have them."""
        return self.labels.tolist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return int(self.shard_ends[-1])

    def __repr__(self) -> str:
        return f"ShardDataset({self._shards}, samples={len(self)}, shards={len(self.shard_ends)})"

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """The image at `index` after `transform`, and its target."""
        from fastdata.loaders import pillow

        image = pillow.open_rgb(self.read_encoded(index))
        return (self.transform(image) if self.transform is not None else image), self.read_target(index)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """A batch of samples, for torch's own DataLoader; see `fetch_or_loop`."""
        return fetch_or_loop(self, indices)

    def key(self, index: int) -> str:
        """A sample's name in its tar file, without the extension.  Reads the shard's index again."""
        shard, row = self._place(index)
        return self._shards.read_index(shard).key(row)

    # The source protocol; see sources/protocol.py.

    def check_source(self) -> None:
        """Raises NotASource if samples do not come from `__getitem__` as it is here."""
        for method in ("__getitem__", "__getitems__"):
            if getattr(type(self), method) is not getattr(ShardDataset, method):
                raise NotASource(f"{type(self).__name__} has a {method} of its own")

    def read_encoded(self, index: int) -> bytes:
        """The bytes of the image at `index`.

        Raises:
            ShardError: they are not those that were written, also once a copy of a remote shard was fetched again.
        """
        shard, _ = self._place(index)
        offset, size, expected = int(self._offsets[index]), int(self._sizes[index]), int(self._crcs[index])
        data = self._shards.read(shard, offset, size)
        if crc32c(data) != expected and self._shards.renew(shard):
            data = self._shards.read(shard, offset, size)
        found = crc32c(data)
        if found != expected:
            raise ShardError(
                self._shards.name(shard),
                "damaged image" if len(data) == size else "tar file cut short",
                offset=offset,
                expected=f"checksum {expected:08x}",
                found=f"{found:08x}",
            )
        return data

    def read_target(self, index: int) -> Any:
        """The class number at `index` after `target_transform`; None where a sample has none."""
        label = int(self.labels[index])
        target = None if label == NO_LABEL else label
        return target if self.target_transform is None else self.target_transform(target)

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        """The same for many."""
        labels = self.labels[indices]
        if self.target_transform is not None or (labels == NO_LABEL).any():
            return [self.read_target(index) for index in indices]
        return labels.tolist()  # type: ignore[no-any-return]

    def location(self, index: int) -> str:
        """The shard, the offset and the key of the sample at `index`."""
        shard, row = self._place(index)
        try:
            key = self._shards.read_index(shard).key(row)
        except OSError:
            key = "?"
        return f"{self._shards.name(shard)} at byte {self._offsets[index]}, key {key}"

    def file_range(self, index: int) -> tuple[str, int, int, int]:
        """Path, offset, length and checksum of the image at `index`."""
        shard, _ = self._place(index)
        return self._shards.path(shard), int(self._offsets[index]), int(self._sizes[index]), int(self._crcs[index])

    def file_ranges(self, indices: Sequence[int]) -> FileRanges:
        """The same for many."""
        rows = self._checked(np.asarray(indices, np.int64))
        shards = np.searchsorted(self.shard_ends, rows, side="right").tolist()
        paths = {shard: self._shards.path(shard) for shard in set(shards)}
        return FileRanges(
            [paths[shard] for shard in shards],
            self._offsets[rows],
            self._sizes[rows].astype(np.int64),
            self._crcs[rows].astype(np.int64),
        )

    def expect(self, indices: npt.NDArray[np.int64]) -> None:
        """Says which samples will be read, in order, so that shards of a remote store can be fetched ahead."""
        if self._shards.are_local():
            return
        shards, firsts = np.unique(np.searchsorted(self.shard_ends, indices, side="right"), return_index=True)
        self._shards.expect(shards[np.argsort(firsts)].tolist())

    def near_indices(self, count: int) -> Sequence[int]:
        """So many samples that are quick to read: of one shard where shards must be fetched, else spread."""
        if self._shards.are_local():
            return range(0, len(self), max(1, len(self) // count))[:count]
        return range(min(count, int(self.shard_ends[0])))

    def fits_in_cache(self) -> bool:
        """False for a remote dataset that is larger than its local cache."""
        return self._shards.fit_in_cache()

    def _checked(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if len(rows) and not (-len(self) <= rows.min() and rows.max() < len(self)):
            raise IndexError(f"index out of range for {len(self)} samples")
        return np.where(rows < 0, rows + len(self), rows)

    def _place(self, index: int) -> tuple[int, int]:
        """A sample's shard, and its row there."""
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        shard = int(np.searchsorted(self.shard_ends, row, side="right"))
        return shard, row - (int(self.shard_ends[shard - 1]) if shard else 0)
