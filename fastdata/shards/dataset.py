"""ShardDataset: a map-style dataset over shards, on a local disk or in a remote store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from fastdata.errors import DatasetError, FieldError, OptionError, ShardError, in_words
from fastdata.loaders.unpacked import as_file, is_unpacked
from fastdata.pipeline.batched_getitem import FetchesMany
from fastdata.shards.fields import CLASS, IMAGE, KEY, decoded, has_format, names_image
from fastdata.shards.format import NO_LABEL, crc32c
from fastdata.shards.opening import open_shards
from fastdata.shards.part_files import check_part
from fastdata.shards.parts import PartTable
from fastdata.shards.store import Shards
from fastdata.sources.protocol import FileRanges, NotASource

__all__ = ["MemberPlace", "ShardDataset"]


class ShardDataset(FetchesMany, Dataset[Any]):
    """A map-style dataset of (image, class) over shards written by `fastdata convert`.

    It works with fastdata's image pipeline and every backend, and with torch's own DataLoader.  Opening it reads the
    index files, which take 40 bytes of memory per sample.  Tar files are opened for each read, so forked and other
    processes share no open files.  Every image is checked against its checksum when it is read.

    With `fields` a sample is a tuple of what they name: captions, masks, boxes and whatever else lies in the tar files
    under the sample's key.  Images stay encoded on the way through its transforms, as those of any dataset do.

    Args:
        path: a folder written by `fastdata convert` (with several splits the folder of one: DEST/train), a tar file, a
            pattern of tar files ("shard-{000000..000009}.tar"), a list of any of these, or their URLs ("s3://...", see
            fsspec).
        transform: applied to each image, as in torchvision.
        target_transform: applied to each class number.
        fields: names of what a sample has, in this order: "image", or the extension of its format, for the image as
            RGB; "cls" for the class; "__key__" for the key; for others the extension of the member, such as "json",
            "txt" or "mask.png".  JSON is parsed, text decoded, npy an array, other images are opened in the mode of
            their file; anything else is bytes.  None for (image, class).
        transforms: called with all values of a sample, instead of `transform` and `target_transform`, as the argument
            of torchvision's datasets; its result is the sample.
        cache_dir: cache folder for shards of a remote store; None for a folder in the user's cache.
        cache_bytes: largest total size of the cached shards; the least recently used are removed first.

    Attributes:
        classes: class names by number, or None if the shards have no class names.
        class_to_idx: class numbers by name.
        labels: int64, (N,): class numbers; -1 for samples without a label.
        sizes_px: uint32, (N, 2): width and height of each image.
        shard_ends: int64, (S,): index after the last sample of each shard.

    Raises:
        DatasetError: there are no shards, no images in them, or no sample has a field.
        OptionError: `transforms` was given together with `transform` or `target_transform`.
        ShardError: an index or the manifest is damaged, or a tar file does not have the length in its index.
        StoreError: the remote store cannot be read.

    Example:
        >>> dataset = ShardDataset("imagenet/train", transform)
        >>> loader = DataLoader(dataset, batch_size=256, shuffle=True, num_workers="auto")
        >>> captions = ShardDataset("coco/train", transform, fields=("image", "txt"))
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        fields: Sequence[str] | None = None,
        transforms: Callable[..., Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = 100 << 30,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise OptionError("give either transforms, or transform and target_transform, not both")
        if isinstance(fields, str):
            raise OptionError(f"fields={fields!r} is one name; write fields=({fields!r},)")
        self.transform, self.target_transform, self.transforms = transform, target_transform, transforms
        self.fields = tuple(fields) if fields is not None else None
        self._shards: Shards = open_shards(path, cache_dir=cache_dir, cache_bytes=cache_bytes)
        self.classes = self._shards.classes
        self.class_to_idx = {name: number for number, name in enumerate(self.classes or [])}
        lengths = []
        parts: list[PartTable] = []
        columns: dict[str, list[npt.NDArray[Any]]] = {
            name: [] for name in ("offset", "size", "label", "width", "height", "crc32c")
        }
        for number in range(len(self._shards)):
            index = self._shards.read_index(number)
            lengths.append(len(index))
            parts.append(index.parts)
            for name, column in columns.items():
                column.append(index.records[name].copy())
        whole = {name: np.concatenate(parts) for name, parts in columns.items()}
        self._offsets, self._sizes = whole["offset"].astype(np.int64), whole["size"]
        self.labels, self._crcs = whole["label"], whole["crc32c"]
        self.sizes_px = np.stack([whole["width"], whole["height"]], axis=1)
        self.shard_ends = np.cumsum(np.array(lengths, np.int64))
        if len(self) == 0:
            raise DatasetError(f"no images in {path}")
        self._keys = list(self.keys()) if KEY in (self.fields or ()) else None
        self._members = {name: _places_of(name, parts, lengths) for name in self._stored_fields(parts)}

    def _stored_fields(self, parts: Sequence[PartTable]) -> list[str]:
        """The fields that are members of their own, beside image, class and key."""
        known = dict.fromkeys(name for table in parts for name in table.fields)
        others = [name for name in self.fields or () if name not in (CLASS, KEY)]
        missing = [name for name in others if name not in known and not names_image(name)]
        if missing:
            raise DatasetError(
                f"no sample of {self._shards} has a field {missing[0]!r}; there are {', '.join([IMAGE, CLASS, *known])}"
                + ("" if known else "; fastdata index --force lists other members of tar files in their indexes")
            )
        return [name for name in others if name in known]

    @property
    def targets(self) -> list[int]:
        """Class numbers as a list, as in torchvision's datasets."""
        return self.labels.tolist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return int(self.shard_ends[-1])

    def __repr__(self) -> str:
        return f"ShardDataset({self._shards}, samples={len(self)}, shards={len(self.shard_ends)})"

    def __getitem__(self, index: int) -> Any:
        """The sample at `index`, after the transforms: (image, target), or a tuple of the fields."""
        sample = tuple(self._value(name, index) for name in self.fields or (IMAGE, CLASS))
        return self.transforms(*sample) if self.transforms is not None else sample

    def _value(self, field: str, index: int) -> Any:
        if field == CLASS:
            return self.read_target(index)
        if field == KEY:
            return self._keys[index] if self._keys is not None else self.key(index)
        if (places := self._members.get(field)) is not None and (places["size"][index] >= 0 or not names_image(field)):
            return self._read_member(field, MemberPlace(*places[index].tolist()), index)
        from fastdata.loaders import pillow

        data = self._read_whole(index)
        if field != IMAGE and not has_format(field, data):
            raise self._field_error(index, f"there is no {field!r}, and its image has another format")
        image = _left_encoded(data) or pillow.open_rgb(self._as_file(data, index))
        return self.transform(image) if self.transform is not None else image

    def read_member(self, index: int, place: MemberPlace) -> bytes:
        """The bytes of a member at `index` that `members` has named.

        Raises:
            ShardError: their checksum is wrong, even after downloading a remote shard again.
        """
        return self._read_checked(self._place(index)[0], place.offset, place.size, place.crc32c, what="member")

    def _read_member(self, field: str, place: MemberPlace, index: int) -> Any:
        """The value of a field that is a member of its own.

        Raises:
            FieldError: the sample does not have it, or it is not what its extension says.
            ShardError: its checksum is wrong, even after downloading a remote shard again.
        """
        if place.size < 0:
            raise self._field_error(index, f"there is no {field!r}")
        data = self._read_checked(self._place(index)[0], *place, what=field)
        try:
            return decoded(field, data)
        except (ValueError, OSError, RecursionError, MemoryError) as error:
            raise self._field_error(index, f"{field!r} cannot be read: {in_words(error)}") from error

    def _field_error(self, index: int, reason: str) -> FieldError:
        return FieldError(index=index, location=self.location(index), backend="shards", reason=reason)

    def key(self, index: int) -> str:
        """A sample's key: its name in the tar file, without the extension.  Reads the shard's index file again."""
        shard, row = self._place(index)
        return self._shards.read_index(shard).key(row)

    def keys(self) -> Iterator[str]:
        """The keys of all samples, in order.  Reads the index files again."""
        for shard in range(len(self._shards)):
            index = self._shards.read_index(shard)
            yield from map(index.key, range(len(index)))

    def members(self) -> Iterator[dict[str, MemberPlace]]:
        """Each sample's other members, by the names of their fields, in order.  Reads the index files again."""
        for shard in range(len(self._shards)):
            index = self._shards.read_index(shard)
            for row in range(len(index)):
                parts = index.parts.of_row(row)
                yield {index.parts.fields[field]: MemberPlace(*place) for _, field, *place in parts.tolist()}

    def source_paths(self) -> Iterator[str]:
        """Each image's path in the source that was converted, in order; "" where it is not known.

        Reads the index files again.
        """
        for shard in range(len(self._shards)):
            yield from self._shards.read_index(shard).source_paths()

    # The source protocol; see sources/protocol.py.

    def check_source(self) -> None:
        """Raises NotASource if a subclass changes how samples are read."""
        if self.fields is not None or self.transforms is not None:
            raise NotASource("samples have fields of their own, or transforms that take all of them")
        for method in ("__getitem__", "__getitems__"):
            if getattr(type(self), method) is not getattr(ShardDataset, method):
                raise NotASource(f"{type(self).__name__} has a {method} of its own")

    def read_encoded(self, index: int) -> bytes:
        """The bytes of the image at `index`; of an unpacked JPEG those of the file that it was made of.

        Raises:
            ShardError: their checksum is wrong, even after downloading a remote shard again; or an unpacked JPEG was
                made wrong.
            BackendUnavailable: an unpacked JPEG, and there is no native core.
        """
        return self._as_file(self._read_whole(index), index)

    def _read_whole(self, index: int) -> bytes:
        """The bytes of the image at `index`, whose checksum is right."""
        shard, _ = self._place(index)
        place = int(self._offsets[index]), int(self._sizes[index]), int(self._crcs[index])
        return self._read_checked(shard, *place, what="image")

    def _read_checked(self, shard: int, offset: int, size: int, expected: int, *, what: str) -> bytes:
        check_part(size, self._shards.name(shard), what=f"the {what} at byte {offset}")
        data = self._shards.read(shard, offset, size)
        if crc32c(data) != expected and self._shards.renew(shard):
            data = self._shards.read(shard, offset, size)
        found = crc32c(data)
        if found != expected:
            raise ShardError(
                self._shards.name(shard),
                f"damaged {what}" if len(data) == size else "tar file cut short",
                offset=offset,
                expected=f"checksum {expected:08x}",
                found=f"{found:08x}",
            )
        return data

    def _as_file(self, data: bytes, index: int) -> bytes:
        try:
            return as_file(data)
        except OSError as error:
            shard, _ = self._place(index)
            raise ShardError(self._shards.name(shard), str(error), offset=int(self._offsets[index])) from error

    def read_target(self, index: int) -> Any:
        """The class number at `index` after `target_transform`; None for a sample without a label."""
        label = int(self.labels[index])
        target = None if label == NO_LABEL else label
        return target if self.target_transform is None else self.target_transform(target)

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        """`read_target` for many indices."""
        labels = self.labels[indices]
        if self.target_transform is not None or (labels == NO_LABEL).any():
            return [self.read_target(index) for index in indices]
        return labels.tolist()  # type: ignore[no-any-return]

    def location(self, index: int) -> str:
        """Shard, offset and key of the sample at `index`, as text for messages; its record's number without a key."""
        shard, row = self._place(index)
        place = f"{self._shards.name(shard)} at byte {self._offsets[index]}"
        try:
            return f"{place}, key {self._shards.read_index(shard).key(row)}"
        except OSError:
            return f"{place}, record {row} of its index, which cannot be read again to say the key"

    def file_range(self, index: int) -> tuple[str, int, int, int]:
        """Path, offset, length and checksum of the image at `index`."""
        shard, _ = self._place(index)
        return self._shards.path(shard), int(self._offsets[index]), int(self._sizes[index]), int(self._crcs[index])

    def file_ranges(self, indices: Sequence[int]) -> FileRanges:
        """`file_range` for many indices."""
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
        """Announces which samples will be read, in order, so that shards of a remote store can be fetched ahead."""
        if self._shards.are_local():
            return
        shards, firsts = np.unique(np.searchsorted(self.shard_ends, indices, side="right"), return_index=True)
        self._shards.expect(shards[np.argsort(firsts)].tolist())

    def near_indices(self, count: int) -> Sequence[int]:
        """Indices of `count` samples that are quick to read: from one shard if shards are remote, else spread out."""
        if self._shards.are_local():
            return range(0, len(self), max(1, len(self) // count))[:count]
        return range(min(count, int(self.shard_ends[0])))

    def fits_in_cache(self) -> bool:
        """False if the dataset is remote and larger than its local cache."""
        return self._shards.fit_in_cache()

    def _checked(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if len(rows) and not (-len(self) <= np.min(rows) and np.max(rows) < len(self)):
            raise IndexError(f"index out of range for {len(self)} samples")
        return np.where(rows < 0, rows + len(self), rows)

    def _place(self, index: int) -> tuple[int, int]:
        """A sample's shard, and its row there."""
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        shard = int(np.searchsorted(self.shard_ends, row, side="right"))
        return shard, row - (int(self.shard_ends[shard - 1]) if shard else 0)


class MemberPlace(NamedTuple):
    """Place of a member in a tar file: its first byte, its size in bytes, and its checksum."""

    offset: int
    size: int
    crc32c: int


_PLACE = np.dtype([("offset", np.uint64), ("size", np.int64), ("crc32c", np.uint32)])


def _places_of(name: str, tables: Sequence[PartTable], lengths: Sequence[int]) -> npt.NDArray[np.void]:
    """Places of a field's members, by sample, from the tables of all shards; size -1 where a sample has none.

    Args:
        name: name of the field.
        tables: tables of the shards.
        lengths: number of samples in each shard.
    """
    places = np.array([(0, -1, 0)], _PLACE).repeat(sum(lengths))
    for table, first in zip(tables, np.cumsum([0, *lengths[:-1]]), strict=True):
        records = table.of_field(name)
        places[first + records["row"]] = records[list(MemberPlace._fields)]
    return places


def _left_encoded(data: bytes) -> Any:
    """An image that the core decodes later, of a record, where images stay encoded in this thread; else None."""
    if not is_unpacked(data):
        return None
    from fastdata.lazy.opening import open_record  # imports Pillow

    return open_record(data)
