"""Parquet files with encoded images and labels as a source, as Hugging Face stores them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastdata.errors import ConversionError
from fastdata.shards.conversion.folders import SPLIT_NAMES
from fastdata.shards.conversion.samples import SourcePaths, Split, Streamed
from fastdata.shards.format import crc32c
from fastdata.shards.labels import LABEL_NAMES, class_number, class_numbers, classes_for, integer_label
from fastdata.system.files import NotRegularFile, open_file
from fastdata.system.optional import need

__all__ = ["parquet_splits"]

_IMAGE_COLUMNS = ("image", "img", "jpg", "png", "bytes")
_ROWS_AT_ONCE = 256
_FOOTER_BYTES = 1 << 16


def parquet_splits(
    paths: Sequence[str], image_column: str | None, label_column: str | None, classes: list[str] | None
) -> dict[str, Split]:
    """The splits of Parquet files, by their names: train-00000-of-00257.parquet, or train/0000.parquet.

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
    tables = {name: [_Table.of(path, image_column, label_column) for path in found] for name, found in by_split.items()}
    everything = [table for found in tables.values() for table in found]
    in_schema = next((table.classes for table in everything if table.classes is not None), None)
    known = classes_for(
        ((label, table.path) for table in everything for label in table.kinds()),
        in_schema if in_schema is not None else classes,
    )
    return {name: _split(found, known) for name, found in tables.items()}


def _split_of(path: str) -> str:
    """The split that a file's name begins with, or that its folder is called; "" for none."""
    beginning = re.split(r"[-_.]", os.path.basename(path))[0]
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return next((name for name in (beginning, folder) if name in SPLIT_NAMES), "")


def _split(tables: Sequence[_Table], classes: list[str] | None) -> Split:
    def stream() -> Iterator[Streamed]:
        rows = (row for table in tables for row in table.rows(classes))
        source_paths = SourcePaths()
        for number, (data, label, path) in enumerate(rows):
            yield Streamed(f"{number:09}", data, label, source_paths.unique(path))

    fingerprint = crc32c(b"".join(_end_of(table.path) for table in tables))
    return Split(classes=classes, stream=stream, fingerprint=fingerprint)


@dataclass(frozen=True)
class _Table:
    """One file: its columns of images and of labels, whether labels are names, and class names in its schema."""

    path: str
    image: str
    label: str
    has_names: bool
    classes: list[str] | None

    @classmethod
    def of(cls, path: str, image_column: str | None, label_column: str | None) -> _Table:
        """Reads the file's schema."""
        pyarrow = need("pyarrow", "reading Parquet", error=ConversionError)
        parquet = need("pyarrow.parquet", "reading Parquet", error=ConversionError)
        try:
            with open_file(path) as file:
                schema = parquet.read_schema(file)
        except NotRegularFile as error:
            raise ConversionError(str(error)) from error
        except pyarrow.ArrowException as error:
            raise ConversionError(f"{path} is not a Parquet file, or damaged: {error}") from error
        image = _column(schema.names, image_column, _IMAGE_COLUMNS, "image", path)
        label = _column(schema.names, label_column, LABEL_NAMES, "label", path)
        kind, types = schema.field(label).type, pyarrow.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        has_names = types.is_string(kind) or types.is_large_string(kind)
        if not has_names and not types.is_integer(kind):
            raise ConversionError(
                f"{path}: column {label!r} holds {kind}; labels must be integers, or strings with class names: cast "
                "the column (pyarrow.compute.cast, to int64), or name another column with --label-column"
            )
        return cls(path, image, label, has_names, _class_names(schema.metadata, label))

    def kinds(self) -> list[int | str]:
        """Every name that occurs, or a number where labels are numbers."""
        if not self.has_names:
            return [0]
        column = need("pyarrow.parquet", "reading Parquet").read_table(self.path, columns=[self.label])[self.label]
        return [name for name in column.unique().to_pylist() if name is not None]

    def rows(self, classes: list[str] | None) -> Iterator[tuple[bytes, int, str]]:
        """Encoded images, class numbers, and paths of the images' files where they are noted, else ""."""
        parquet = need("pyarrow.parquet", "reading Parquet", error=ConversionError)
        row, numbers = 0, class_numbers(classes)
        with parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[self.image, self.label]):
                for value, label in zip(batch[self.image].to_pylist(), batch[self.label].to_pylist(), strict=True):
                    yield self._sample(value, label, row, numbers)
                    row += 1

    def _sample(self, value: Any, label: Any, row: int, numbers: dict[str, int]) -> tuple[bytes, int, str]:
        where = f"{self.path}: row {row}"
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise ConversionError(f"{where} holds {type(data).__name__} in column {self.image!r}, not an encoded image")
        if label is None:
            raise ConversionError(
                f"{where} has no label (null in column {self.label!r}); add the label, or remove the row"
            )
        path = value.get("path") if isinstance(value, dict) else None
        path = (os.path.basename(path) if os.path.isabs(path) else path) if isinstance(path, str) else ""
        return data, class_number(label, numbers, where) if self.has_names else integer_label(label, where), path


def _end_of(path: str) -> bytes:
    """A Parquet file's size and its end, which holds the statistics of all its columns."""
    size = os.path.getsize(path)
    with open_file(path) as file:
        file.seek(max(0, size - _FOOTER_BYTES))
        return str(size).encode() + file.read()


def _column(names: Sequence[str], given: str | None, usual: Sequence[str], what: str, path: str) -> str:
    if given is not None and given not in names:
        raise ConversionError(f"{path} has no column {given!r} for the {what}; its columns are {', '.join(names)}")
    found = given or next((name for name in usual if name in names), None)
    if found is None:
        raise ConversionError(
            f"{path}: cannot tell which column holds the {what}; its columns are {', '.join(names)}; name one with "
            f"--{what}-column"
        )
    return found


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> list[str] | None:
    """The names that Hugging Face's ClassLabel keeps in a file's schema."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]
        return list(feature["names"])
    except (KeyError, ValueError, TypeError):
        return None
