"""Parquet files with encoded images and labels, as Hugging Face stores them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence

from fastdata.errors import ConversionError
from fastdata.optional import need
from fastdata.shards.folders import SPLIT_NAMES
from fastdata.shards.format import crc32c
from fastdata.shards.samples import Split

__all__ = ["LABEL_COLUMNS", "parquet_splits"]

LABEL_COLUMNS = ("label", "labels", "cls", "target", "fine_label")

_IMAGE_COLUMNS = ("image", "img", "jpg", "png", "bytes")
_ROWS_AT_ONCE = 256
_FOOTER_BYTES = 1 << 16


def parquet_splits(paths: Sequence[str], image_column: str | None, label_column: str | None) -> dict[str, Split]:
    """Files are split by the beginning of their names, as Hugging Face names them: train-00000-of-00257.parquet."""
    by_split: dict[str, list[str]] = {}
    for path in paths:
        name = re.split(r"[-_.]", os.path.basename(path))[0]
        by_split.setdefault(name if name in SPLIT_NAMES else "", []).append(path)
    if "" in by_split:
        by_split = {"": list(paths)}
    return {name: _parquet(found, image_column, label_column) for name, found in by_split.items()}


def _parquet(paths: Sequence[str], image_column: str | None, label_column: str | None) -> Split:
    pyarrow = need("pyarrow", "reading Parquet", error=ConversionError)
    parquet = need("pyarrow.parquet", "reading Parquet", error=ConversionError)
    try:
        schema = parquet.read_schema(paths[0])
    except pyarrow.ArrowException as error:
        raise ConversionError(f"{paths[0]} is no Parquet file, or damaged: {error}") from error
    image = _column(schema.names, image_column, _IMAGE_COLUMNS, "image", paths[0])
    label = _column(schema.names, label_column, LABEL_COLUMNS, "label", paths[0])

    def stream() -> Iterator[tuple[str, bytes, int]]:
        number = 0
        for path in paths:
            for batch in parquet.ParquetFile(path).iter_batches(_ROWS_AT_ONCE, columns=[image, label]):
                for value, given in zip(batch[image].to_pylist(), batch[label].to_pylist(), strict=True):
                    data = value["bytes"] if isinstance(value, dict) else value
                    if not isinstance(data, bytes) or not isinstance(given, int):
                        kinds = f"{type(data).__name__} and {type(given).__name__}"
                        raise ConversionError(f"{path}: row {number} holds {kinds}, not bytes and an integer")
                    yield f"{number:09}", data, given
                    number += 1

    fingerprint = crc32c(b"".join(map(_end_of, paths)))
    return Split(classes=_class_names(schema.metadata, label), stream=stream, fingerprint=fingerprint)


def _end_of(path: str) -> bytes:
    """A Parquet file's size and its end, which holds the statistics of all its columns."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        file.seek(max(0, size - _FOOTER_BYTES))
        return str(size).encode() + file.read()


def _column(names: Sequence[str], given: str | None, usual: Sequence[str], what: str, path: str) -> str:
    if given is not None and given not in names:
        raise ConversionError(f"{path} has no column {given!r} for the {what}; it has {', '.join(names)}")
    found = given or next((name for name in usual if name in names), None)
    if found is None:
        raise ConversionError(
            f"{path}: which column is the {what}? It has {', '.join(names)}; name it with --{what}-column"
        )
    return found


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> list[str] | None:
    """The names that Hugging Face's ClassLabel keeps in a file's schema."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]
        return list(feature["names"])
    except (KeyError, ValueError, TypeError):
        return None
