"""Renders one of the templates in this folder."""

from __future__ import annotations

from importlib import resources
from typing import Any

from fastdata.system.optional import need

__all__ = ["render"]


def render(template: str, **values: Any) -> str:
    """A page that needs no other file.

    Args:
        template: the name of a file beside this one; it extends base.html.
        values: what it shows; text is escaped.
    """
    jinja2 = need("jinja2", "the page")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.undefined = jinja2.StrictUndefined
    page: str = environment.get_template(template).render(**values)
    return page


def _source(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
