"""Aspect-ratio buckets: batches of images of one size, each near the shape that its images have.

Source: NovelAI, "Improvements on Stable Diffusion", 2022, which groups images by aspect ratio so that little of them is
cut off.  Sizes come from the index of shards, so no image is opened for the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from fastdata.errors import OptionError
from fastdata.order.epoch_sampler import ranks_and_rank
from fastdata.views.philox import Key, random_words
from fastdata.views.streams import Stream

__all__ = ["AspectBuckets", "BucketBatchSampler"]

Ints: TypeAlias = npt.NDArray[np.int64]

_BICUBIC = 3  # PIL.Image.Resampling.BICUBIC


class AspectBuckets:
    """Sizes that images are brought to, of which each image takes that with the nearest aspect ratio.

    As a transform it takes a PIL image, cuts off what does not fit the shape of its bucket, evenly on both sides, and
    resizes the rest (bicubic) to the bucket's size.

    Args:
        sizes_px: (width, height) of each bucket.

    Raises:
        OptionError: there are none, one is no pair of positive integers, or two have the same aspect ratio.

    Example:
        >>> buckets = AspectBuckets.around(512)
        >>> dataset = ShardDataset("shards", Compose([buckets, ToTensor()]), fields=("image", "txt"))
        >>> loader = DataLoader(dataset, batch_sampler=BucketBatchSampler(dataset, buckets, batch_size=32))
    """

    def __init__(self, sizes_px: Sequence[tuple[int, int]]) -> None:
        sizes = [tuple(size) for size in sizes_px]
        if not sizes or not all(
            len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size) for size in sizes
        ):
            raise OptionError(f"sizes_px={sizes_px!r} is not a list of (width, height) in pixels")
        self.sizes_px = sorted((width, height) for width, height in sizes)
        self.sizes_px.sort(key=lambda size: size[0] / size[1])
        self._ratios = np.log([width / height for width, height in self.sizes_px])
        if (np.diff(self._ratios) == 0).any():
            raise OptionError(f"sizes_px={sizes_px!r} has two buckets of one aspect ratio; leave one of them out")

    @classmethod
    def around(cls, side: int, *, step: int = 64, widest: float = 2.0) -> AspectBuckets:
        """Buckets of at most side x side pixels each, with sides that are multiples of a step.

        Args:
            side: side of the square bucket in pixels.
            step: the sides' common divisor, such as a model needs.
            widest: largest ratio of the long side to the short one.

        Raises:
            OptionError: `side` is not a multiple of `step`, or `widest` is below 1.
        """
        if step < 1 or side < step or side % step or widest < 1:
            raise OptionError(f"side={side} is no multiple of step={step}, or widest={widest} is below 1")
        sizes: dict[float, tuple[int, int]] = {}
        for width in range(step, int(side * widest) + 1, step):
            height = side * side // width // step * step
            if height and max(width, height) <= widest * min(width, height):
                known = sizes.get(width / height, (0, 0))
                sizes[width / height] = max(known, (width, height))
        return cls(list(sizes.values()))

    def __len__(self) -> int:
        return len(self.sizes_px)

    def __repr__(self) -> str:
        return f"AspectBuckets({self.sizes_px})"

    def of(self, sizes_px: npt.ArrayLike) -> Ints:
        """Bucket of each of N images of (width, height), by the nearest logarithm of the aspect ratio: int64, (N,)."""
        sizes = np.maximum(np.asarray(sizes_px, np.float64).reshape(-1, 2), 1)  # zeros: an image that cannot be opened
        ratios = np.log(sizes[:, 0] / sizes[:, 1])
        above = np.clip(np.searchsorted(self._ratios, ratios), 1, max(1, len(self) - 1))
        if len(self) == 1:
            return np.zeros(len(ratios), np.int64)
        is_below = ratios - self._ratios[above - 1] <= self._ratios[above] - ratios
        return np.where(is_below, above - 1, above).astype(np.int64)

    def __call__(self, image: Any) -> Any:
        """The middle of a PIL image, in the size of its bucket."""
        width, height = image.size
        target = self.sizes_px[int(self.of([(width, height)])[0])]
        scale = min(width / target[0], height / target[1])
        wide, high = max(1, round(target[0] * scale)), max(1, round(target[1] * scale))
        left, top = (width - wide) // 2, (height - high) // 2
        return image.crop((left, top, left + wide, top + high)).resize(target, _BICUBIC)


class BucketBatchSampler(Sampler[list[int]]):
    """Yields batches of indices, each from one bucket, in a random order, for one rank.

    fastdata's DataLoader sets the epoch by itself, and its state goes on in the middle of one with as many ranks; with
    torch's, call `set_epoch` before each.  Every rank has as many batches as the others.

    Args:
        dataset: a dataset of shards, whose index knows the sizes; or anything, with `sizes_px`.
        buckets: the buckets.
        batch_size: samples in a batch.
        num_replicas: number of ranks; None asks torch.distributed, and is 1 where it is not in use.
        rank: number of this rank; None asks torch.distributed, and is 0 where it is not in use.
        seed: the order is a function of it and of the epoch.
        drop_last: leave out what does not fill a batch in each bucket, and batches that do not divide evenly among
            ranks, other samples in each epoch; otherwise batches may be smaller, and ranks repeat some.
        sizes_px: (N, 2): width and height of each sample's image, for datasets that do not know them.

    Raises:
        OptionError: the sizes are not known or not those of the dataset, or another argument cannot work.
    """

    def __init__(
        self,
        dataset: Any,
        buckets: AspectBuckets,
        batch_size: int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        drop_last: bool = True,
        sizes_px: npt.ArrayLike | None = None,
    ) -> None:
        sizes = sizes_px if sizes_px is not None else getattr(dataset, "sizes_px", None)
        if sizes is None:
            raise OptionError(f"{type(dataset).__name__} does not know the sizes of its images; pass sizes_px, (N, 2)")
        if np.shape(sizes) != (len(dataset), 2):
            raise OptionError(f"sizes_px has shape {np.shape(sizes)}, but the dataset has {len(dataset)} samples")
        if batch_size < 1:
            raise OptionError(f"batch_size={batch_size} is not a positive integer")
        self.num_replicas, self.rank = ranks_and_rank(num_replicas, rank)
        self.buckets, self.batch_size, self.seed, self.drop_last = buckets, batch_size, seed, drop_last
        self.epoch = 0
        self._bucket_of = buckets.of(sizes)
        if len(self) == 0:
            raise OptionError(
                f"no bucket fills a batch of {batch_size} on each of {self.num_replicas} ranks; take fewer buckets, a "
                "smaller batch_size or drop_last=False"
            )

    def __repr__(self) -> str:
        return (
            f"BucketBatchSampler({self.buckets}, batch_size={self.batch_size}, num_replicas={self.num_replicas}, "
            f"seed={self.seed}, drop_last={self.drop_last})"
        )

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration is for."""
        self.epoch = epoch

    def __len__(self) -> int:
        counts = np.bincount(self._bucket_of, minlength=len(self.buckets))
        batches = int((counts // self.batch_size if self.drop_last else -(-counts // self.batch_size)).sum())
        return batches // self.num_replicas if self.drop_last else -(-batches // self.num_replicas)

    def __iter__(self) -> Iterator[list[int]]:
        key = Key(seed=self.seed, epoch=self.epoch)
        order = np.argsort(random_words(np.arange(len(self._bucket_of)), Stream.SAMPLES, key), kind="stable")
        batches: list[list[int]] = []
        for bucket in range(len(self.buckets)):
            inside = order[self._bucket_of[order] == bucket].tolist()
            end = len(inside) // self.batch_size * self.batch_size if self.drop_last else len(inside)
            batches += [inside[begin : begin + self.batch_size] for begin in range(0, end, self.batch_size)]
        turns = np.argsort(random_words(np.arange(len(batches)), Stream.SHARDS, key), kind="stable")
        shared = np.resize(turns, len(self) * self.num_replicas)  # without drop_last the first ones come again
        for turn in shared[self.rank :: self.num_replicas].tolist():
            yield batches[turn]
