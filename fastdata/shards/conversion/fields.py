"""The fields that a conversion is asked for beside image and class, and where each is found."""

from __future__ import annotations

from collections.abc import Iterable

from fastdata.errors import OptionError
from fastdata.shards.fields import CLASS, IMAGE, KEY, is_field

__all__ = ["parse_fields"]


def parse_fields(given: Iterable[str]) -> dict[str, str]:
    """Reads fields as the command line has them: NAME, or NAME=PLACE.

    Args:
        given: NAME is the extension of the members that hold the field: "txt", "json", "mask.png".  PLACE is a column
            of a table, or a folder with a file per image; by default the column, or the file beside the image, of that
            name.

    Returns:
        Place of each field by its name; "" for the default.

    Raises:
        OptionError: a name cannot be an extension, is that of image or class, or was given twice.
    """
    fields: dict[str, str] = {}
    for each in given:
        name, _, place = each.partition("=")
        if not is_field(name.lower()):
            raise OptionError(
                f"fields: {each!r} is not NAME or NAME=PLACE with a NAME like txt, json or mask.png (letters, digits, "
                "_ and -, with dots between them)"
            )
        if name.lower() in (IMAGE, CLASS, KEY):
            raise OptionError(f"fields: {name} is stored anyway; name only what lies beside image and class")
        if name.lower() in fields:
            raise OptionError(f"fields: {name} was given twice")
        fields[name.lower()] = place
    return fields
