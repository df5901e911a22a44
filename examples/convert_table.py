"""A table of images as shards: CSV with the columns "path", "label" (a class's name) and "caption".

    fastdata convert --from convert_table:samples SHARDS

In the folder of this file, with TABLE=images.csv; paths begin at the table's folder.  For Parquet use
`pandas.read_parquet(TABLE).to_dict("records")`, for JSON lines `map(json.loads, file)`.
"""

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLE = Path(os.environ["TABLE"])


def rows() -> list[dict[str, str]]:
    """The lines of the table, by the names of its columns."""
    with open(TABLE, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


CLASSES = sorted({row["label"] for row in rows()})


def samples() -> Iterator[dict[str, Any]]:
    """Every row."""
    for row in rows():
        image = {"__key__": row["path"], "img": TABLE.parent / row["path"], "cls": CLASSES.index(row["label"])}
        yield {**image, "txt": row["caption"]}


samples.classes = CLASSES
