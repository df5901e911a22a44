"""How Sphinx makes the documentation: sphinx-build -W docs build/site.  The first page is the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastdata

HOME = "https://github.com/torch-fastdata/torch-fastdata/"
README = Path(__file__).parent.parent / "README.md"

project = "fastdata"
copyright = "the developers of fastdata"  # noqa: A001 - Sphinx asks for this name
release = fastdata.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"fastdata {release}"
html_theme_options = {"source_repository": HOME, "source_branch": "main", "source_directory": "docs/"}
html_extra_path = ["cost-light.svg", "cost-dark.svg"]
myst_heading_anchors = 4  # as GitHub makes them, so that links work there and here
autodoc_typehints = "none"  # docstrings say what arguments are
autodoc_member_order = "bysource"
autoclass_content = "both"
napoleon_google_docstring = True
suppress_warnings = ["misc.highlighting_failure"]  # programs with "..." in them


def readme_is_first(app: Any, name: str, source: list[str]) -> None:
    """Puts the README where index.md asks for it, with links to the other pages."""
    if name == "index":
        text = README.read_text(encoding="utf-8").replace(f"{HOME}blob/main/docs/", "")
        pictures = HOME.replace("github.com", "raw.githubusercontent.com") + "main/docs/"
        source[0] = text.replace(pictures, "") + source[0]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", readme_is_first)
