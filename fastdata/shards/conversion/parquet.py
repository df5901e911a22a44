"""Tables of encoded images as a source, as Hugging Face stores them: Parquet files, a saved dataset's Arrow files."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from fastdata.errors import ConversionError, StoreError
from fastdata.shards.conversion.folders import SPLIT_NAMES
from fastdata.shards.conversion.samples import SourcePaths, Split, Streamed
from fastdata.shards.conversion.tables import WHOLE_ROW, column, field_columns
from fastdata.shards.fields import encoded
from fastdata.shards.format import NO_LABEL, crc32c
from fastdata.shards.labels import LABEL_NAMES, checked_class, class_numbers, classes_for, integer_label
from fastdata.shards.remote_files import RemoteFiles
from fastdata.system.files import NotRegularFile, open_file
from fastdata.system.optional import need

__all__ = ["parquet_splits", "saved_files"]

_IMAGE_COLUMNS = ("image", "img", "jpg", "png", "bytes")
_ROWS_AT_ONCE = 256
_FOOTER_BYTES = 1 << 16


def parquet_splits(
    paths: Sequence[str],
    image_column: str | None,
    label_column: str | None,
    classes: list[str] | None,
    fields: Mapping[str, str],
) -> dict[str, Split]:
    """The splits of Parquet or Arrow files, by their names: train-00000-of-00257.parquet, or train/0000.parquet.

    Args:
        paths: the files, or their URLs.
        image_column: column with encoded images; None finds it.
        label_column: column with labels; None finds it.  Where fields are given, there may be none.
        classes: class names by number, for labels that are names; None numbers those that occur, in sorted order.
        fields: see `tables.table_split`.

    Raises:
        ConversionError: only some files name a split, a file is damaged, or a column is missing or of the wrong type.
    """
    by_split: dict[str, list[str]] = {}
    for path in paths:
        by_split.setdefault(_split_of(path), []).append(path)
    if "" in by_split and len(by_split) > 1:
        named = next(found[0] for name, found in by_split.items() if name)
        raise ConversionError(
            f"{named} names a split, but {by_split[''][0]} names none of {', '.join(SPLIT_NAMES)}; convert one split "
            "at a time, naming its files with a pattern"
        )
    tables = {
        name: [_Table.of(path, image_column, label_column, fields) for path in found]
        for name, found in by_split.items()
    }
    everything = [table for found in tables.values() for table in found]
    with_names = [table for table in everything if table.classes is not None]
    if other := next((table for table in with_names if table.classes != with_names[0].classes), None):
        raise ConversionError(
            f"{with_names[0].path} and {other.path} have different class names for column {other.label!r} "
            f"({_few(with_names[0].classes)}; {_few(other.classes)}), so their labels would not agree: convert them "
            "separately, or cast both to the same ClassLabel"
        )
    known = classes_for(
        ((label, table.path) for table in everything for label in table.kinds()),
        with_names[0].classes if with_names else classes,
    )
    return {name: _split(found, known) for name, found in tables.items()}


def _few(names: list[str] | None) -> str:
    return ", ".join([*(names or ())[:3], *["..."] * (len(names or ()) > 3)])


def saved_files(folder: str) -> list[str]:
    """The Arrow files of a dataset that Hugging Face's `save_to_disk` wrote, or of all its splits; none for others.

    Raises:
        ConversionError: its rows are chosen by an index, which only `datasets` reads.
    """
    found = sorted(glob.glob(f"{glob.escape(folder)}/**/data-*.arrow", recursive=True))
    states = [os.path.join(place, "state.json") for place in sorted({os.path.dirname(path) for path in found})]
    if not all(map(os.path.isfile, states)):
        return []
    for state in states:
        with open_file(state) as file:
            if json.load(file).get("_indices_files"):
                raise ConversionError(
                    f"{state} says that rows are chosen by an index; save the dataset again after flatten_indices()"
                )
    return found


def _split_of(path: str) -> str:
    """The split that a file's name begins with, or that its folder is called; "" for none."""
    beginning = re.split(r"[-_.]", os.path.basename(path))[0]
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return next((name for name in (beginning, folder) if name in SPLIT_NAMES), "")


def _split(tables: Sequence[_Table], classes: list[str] | None) -> Split:
    def stream() -> Iterator[Streamed]:
        rows = (row for table in tables for row in table.rows(classes))
        source_paths = SourcePaths()
        for number, make in enumerate(rows):
            sample = Streamed.of(f"{number:09}", partial(make, f"{number:09}"))
            yield sample._replace(source_path=source_paths.unique(sample.source_path))

    asked = [[table.image, table.label, table.fields] for table in tables], classes
    fingerprint = crc32c(b"".join(_end_of(table.path) for table in tables))
    fingerprint = crc32c(json.dumps(asked).encode(), fingerprint)
    return Split(classes=classes, stream=stream, fingerprint=fingerprint, is_remote="://" in tables[0].path)


@dataclass(frozen=True)
class _Table:
    """One file.

    Attributes:
        path: the file.
        image: column of images.
        label: column of labels; None for none.
        has_names: labels are class names.
        classes: class names in the schema, or None.
        fields: column of each field, or `WHOLE_ROW`.
        others: the columns that `WHOLE_ROW` stands for.
    """

    path: str
    image: str
    label: str | None
    has_names: bool
    classes: list[str] | None
    fields: dict[str, str]
    others: tuple[str, ...]

    @classmethod
    def of(cls, path: str, image_column: str | None, label_column: str | None, fields: Mapping[str, str]) -> _Table:
        """Reads the file's schema."""
        types = need("pyarrow", "reading Parquet", error=ConversionError).types
        with _opened(path) as file:
            schema = file.schema_arrow if _is_parquet(path) else file.schema
        image = column(schema.names, image_column, _IMAGE_COLUMNS, "image", path)
        places = field_columns(schema.names, fields, path)
        others = tuple(name for name in schema.names if name != image)
        unlabelled = cls(path, image, None, False, None, places, others)
        needs_label = not fields or label_column is not None
        if not needs_label and not set(LABEL_NAMES) & set(schema.names):
            return unlabelled
        label = column(schema.names, label_column, LABEL_NAMES, "label", path)
        kind = schema.field(label).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        has_names = types.is_string(kind) or types.is_large_string(kind)
        if not has_names and not types.is_integer(kind):
            if not needs_label:  # a column that only has a usual name
                return unlabelled
            raise ConversionError(
                f"{path}: column {label!r} holds {kind}; labels must be integers, or strings with class names: cast "
                "the column (pyarrow.compute.cast, to int64), or name another column with --label-column"
            )
        return cls(path, image, label, has_names, _class_names(schema.metadata, label), places, others)

    def kinds(self) -> list[int | str]:
        """Every name that occurs, or a number where labels are numbers."""
        if not self.has_names or self.label is None:
            return [0]
        occurring = (name for batch in self._batches([self.label]) for name in batch[self.label].unique().to_pylist())
        return [name for name in dict.fromkeys(occurring) if name is not None]

    def rows(self, classes: list[str] | None) -> Iterator[Callable[[str], Streamed]]:
        """For each row a function that makes its sample, with a key, or raises ConversionError."""
        wanted = [self.image, *([self.label] if self.label is not None else []), *self.fields.values()]
        if WHOLE_ROW in wanted:
            wanted = [self.image, *self.others]
        row, numbers = 0, class_numbers(classes)
        for batch in self._batches(list(dict.fromkeys(wanted))):
            for values in batch.to_pylist():
                yield partial(self._sample, values, row, numbers)
                row += 1

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        with _opened(self.path) as file:
            if _is_parquet(self.path):
                yield from file.iter_batches(_ROWS_AT_ONCE, columns=columns)
                return
            for whole in file:
                for begin in range(0, len(whole), _ROWS_AT_ONCE):
                    yield whole.select(columns).slice(begin, _ROWS_AT_ONCE)

    def _sample(self, values: dict[str, Any], row: int, numbers: dict[str, int], key: str) -> Streamed:
        where, value = f"{self.path}: row {row}", values[self.image]
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise ConversionError(f"{where} holds {type(data).__name__} in column {self.image!r}, not an encoded image")
        path = value.get("path") if isinstance(value, dict) else None
        path = (os.path.basename(path) if os.path.isabs(path) else path) if isinstance(path, str) else ""
        label, parts = self._label(values, where, numbers), tuple(self._parts(values, where))
        return Streamed(key, data, label, path, parts, where=where)

    def _label(self, values: dict[str, Any], where: str, numbers: dict[str, int]) -> int:
        if self.label is None:
            return NO_LABEL
        label = values[self.label]
        if label is None:
            raise ConversionError(
                f"{where} has no label (null in column {self.label!r}); add the label, or remove the row"
            )
        return checked_class(label if self.has_names else integer_label(label, where), numbers, where)

    def _parts(self, values: dict[str, Any], where: str) -> Iterator[tuple[str, bytes]]:
        for field, place in self.fields.items():
            if place == WHOLE_ROW:
                value: Any = {name: values[name] for name in self.others}
            elif (value := values[place]) is None:
                raise ConversionError(f"{where} has no field {field!r} (null in column {place!r}); remove the row")
            elif isinstance(value, dict) and isinstance(value.get("bytes"), bytes):  # Hugging Face's Image
                value = value["bytes"]
            yield field, encoded(field, value, where)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """A Parquet file, or the stream of batches in an Arrow file.

    Raises:
        ConversionError: it is not what its name says, or damaged.
    """
    pyarrow = need("pyarrow", "reading Parquet", error=ConversionError)
    parquet = need("pyarrow.parquet", "reading Parquet", error=ConversionError)
    what = "a Parquet file" if _is_parquet(path) else "an Arrow file"
    try:
        with _bytes_of(path) as file:
            yield parquet.ParquetFile(file) if _is_parquet(path) else pyarrow.ipc.open_stream(file)
    except NotRegularFile as error:
        raise ConversionError(str(error)) from error
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, StoreError) or getattr(error, "errno", None) is not None:
            raise
        raise ConversionError(f"{path} is not {what}, or damaged: {error}") from error


def _is_parquet(path: str) -> bool:
    return path.endswith(".parquet")


def _end_of(path: str) -> bytes:
    """A Parquet file's size and its end, which holds the statistics of all its columns."""
    with _bytes_of(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _FOOTER_BYTES))
        return str(size).encode() + file.read()


def _bytes_of(path: str) -> AbstractContextManager[IO[bytes]]:
    return RemoteFiles().opened(path) if "://" in path else open_file(path)


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> list[str] | None:
    """The names that Hugging Face's ClassLabel keeps in a file's schema."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]
        return list(feature["names"])
    except (KeyError, ValueError, TypeError):
        return None
