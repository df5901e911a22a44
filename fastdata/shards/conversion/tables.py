"""Tables of images as a source: CSV, TSV and JSON lines, whose rows name an image's file, its class and its fields."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastdata.errors import ConversionError, DatasetError
from fastdata.shards.conversion.remote_images import streamed
from fastdata.shards.conversion.samples import Keys, SourcePaths, Split
from fastdata.shards.fields import encoded
from fastdata.shards.format import NO_LABEL, crc32c
from fastdata.shards.labels import LABEL_NAMES, checked_class, class_numbers, classes_for, integer_label
from fastdata.shards.records import Part, Ref, listing
from fastdata.shards.remote_files import RemoteFiles
from fastdata.system.files import read_file

__all__ = ["TABLES", "WHOLE_ROW", "column", "field_columns", "table_split"]

TABLES = (".csv", ".tsv", ".jsonl")
_MOST_CELL = 1 << 30  # characters, as polygons have
WHOLE_ROW = "*"  # place of a field that holds all columns but the image's
_FILE_COLUMNS = ("image", "file_name", "filename", "filepath", "path", "file", "img")  # usual names

Row = dict[str, Any]


def table_split(
    path: str,
    *,
    image_column: str | None,
    label_column: str | None,
    classes: list[str] | None,
    fields: Mapping[str, str],
) -> Split:
    """The samples of a table: a row each, images in files whose paths are relative to the table's folder.

    Args:
        path: a .csv or .tsv file, whose first line names the columns, or a .jsonl file with an object per line; or the
            URL of one, whose images may have URLs elsewhere.
        image_column: column with the paths; None finds it by its name.
        label_column: column with class numbers or names; None finds it by its name, or there are no labels.
        classes: class names by number, for labels that are names; None numbers those that occur, in sorted order.
        fields: column of each field by its name; "" for the column of that name, "*" for all but the image's.

    A row that cannot be read, names no image, or has values that are no label or field, is a sample with a problem.

    Raises:
        ConversionError: the file is damaged, or a column is missing, or no row can be read.
        DatasetError: there are no rows.
    """
    rows = list(_rows(path))
    if not rows:
        raise DatasetError(f"{path} has no rows")
    names = list(dict.fromkeys(name for _, row in rows if not isinstance(row, ConversionError) for name in row))
    if not names:
        raise next(row for _, row in rows if isinstance(row, ConversionError))
    image = column(names, image_column, _FILE_COLUMNS, "image", path)
    places = field_columns(names, fields, path)
    label = label_column or next((name for name in LABEL_NAMES if name in names), None)
    if label is not None:
        label = column(names, label, (), "label", path)
    labels = [_label_of(row, label, where) for where, row in rows]
    known = classes_for(
        ((each, where) for each, (where, _) in zip(labels, rows, strict=True) if not isinstance(each, ConversionError)),
        classes,
    )
    numbers, keys, source_paths, refs = class_numbers(known), Keys(), SourcePaths(), []
    for number, (where, row) in zip(labels, rows, strict=True):
        try:
            if isinstance(row, ConversionError):
                raise row
            if isinstance(number, ConversionError):
                raise number
            file, name, size = _file(path, row.get(image), where)
            parts = tuple(_parts(row, places, image, where))
            ref = Ref("", checked_class(number, numbers, where), file, 0, size, parts=parts)
        except ConversionError as error:
            key = keys.unique(where.removeprefix(f"{path}: "))
            refs.append(Ref(key, NO_LABEL, path, 0, -1, problem=str(error)))
        else:
            key = keys.unique(os.path.splitext(name)[0])
            refs.append(ref._replace(key=key, source_path=source_paths.unique(name)))
    if "://" in path:
        named = crc32c("\n".join(ref.path for ref in refs).encode("utf-8", "backslashreplace"), listing(refs))
        return Split(classes=known, stream=streamed(refs, path), fingerprint=named, is_remote=True)
    return Split(classes=known, refs=refs, fingerprint=listing(refs))


def _label_of(row: Row | ConversionError, column: str | None, where: str) -> int | str | ConversionError:
    """The label of a row, or why it has none."""
    if column is None or isinstance(row, ConversionError):
        return NO_LABEL
    try:
        return _label(row.get(column), where)
    except ConversionError as error:
        return error


def column(names: Sequence[str], given: str | None, usual: Sequence[str], what: str, path: str) -> str:
    """The column that was named, or the first of the usual ones that a table has.

    Raises:
        ConversionError: there is none.
    """
    if given is not None and given not in names:
        raise ConversionError(f"{path} has no column {given!r} for the {what}; its columns are {', '.join(names)}")
    found = given or next((name for name in usual if name in names), None)
    if found is None:
        raise ConversionError(
            f"{path}: cannot tell which column holds the {what}; its columns are {', '.join(names)}; name one with "
            f"--{what}-column"
        )
    return found


def field_columns(names: Sequence[str], fields: Mapping[str, str], path: str) -> dict[str, str]:
    """The column of each field, or `WHOLE_ROW`.

    Raises:
        ConversionError: a column is missing.
    """
    return {
        field: place if place == WHOLE_ROW else column(names, place or field, (), f"field {field}", path)
        for field, place in fields.items()
    }


def _rows(path: str) -> Iterator[tuple[str, Row | ConversionError]]:
    """The rows, or why one cannot be read, each with its place in the file for messages.

    Raises:
        ConversionError: the file cannot be read from some place on.
    """
    try:
        text = (RemoteFiles().read(path) if "://" in path else read_file(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path} is not UTF-8: {error}; convert it with: iconv -t utf-8") from error
    if path.endswith(".jsonl"):
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield f"{path}: line {number}", _object(line, f"{path}: line {number}")
        return
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter="\t" if path.endswith(".tsv") else ",", strict=True
    )
    limit = csv.field_size_limit(_MOST_CELL)
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            raise ConversionError(f"{path} has two columns {twice[0]!r}; rename one of them")
        reader.fieldnames = names
        for row in reader:
            where = f"{path}: line {reader.line_num}"
            if None in row or None in row.values():
                count = len(reader.fieldnames or ())
                yield where, ConversionError(f"{where} does not have the {count} columns of line 1")
            else:
                yield where, dict(row)
    except csv.Error as error:
        raise ConversionError(f"{path}: line {reader.line_num}: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _object(line: str, where: str) -> Row | ConversionError:
    try:
        row = json.loads(line)
    except ValueError as error:
        return ConversionError(f"{where} is not JSON: {error}")
    if not isinstance(row, dict):
        return ConversionError(f"{where} is a {type(row).__name__}; every line must be an object with the same names")
    return row


def _label(value: Any, where: str) -> int | str:
    """A label: a number, also one in text, or a name; no label for nothing."""
    if value is None or value == "":
        return NO_LABEL
    if not isinstance(value, str):
        return integer_label(value, where)
    if re.fullmatch(r"[+-]?\d+", value):
        return integer_label(int(value), where)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+)(e[+-]?\d+)?|nan", value, re.IGNORECASE):
        raise ConversionError(f"{where} has the label {value}; a label must be an integer or a class name")
    return value


def _file(table: str, value: Any, where: str) -> tuple[str, str, int]:
    """Path or URL of an image's file, its name in the table with slashes, and its size (0 for URLs)."""
    if not isinstance(value, str) or not value:
        raise ConversionError(f"{where} names no image; remove the row")
    if "://" in table:
        url = value if "://" in value else RemoteFiles.url_of(table.rpartition("/")[0], value)
        return url, value.partition("://")[2] or value, 0
    if "://" in value:
        raise ConversionError(f"{where} names {value}, but convert reads local files: download the images first")
    file = os.path.join(os.path.dirname(table), value)
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return file, value.replace(os.sep, "/"), -1  # refused when it is read, or skipped
    if not stat.S_ISREG(found.st_mode):
        raise ConversionError(f"{where} names {file}, which is not a file")
    return file, value.replace(os.sep, "/"), found.st_size


def _parts(row: Row, places: Mapping[str, str], image: str, where: str) -> Iterator[Part]:
    for field, place in places.items():
        if place == WHOLE_ROW:
            value: Any = {name: each for name, each in row.items() if name != image}
        elif (value := row.get(place)) is None:
            yield Part(field, 0, -1, path=f"{where}, column {place}")
            continue
        yield Part.made(field, encoded(field, value, where))
