"""Command-line parsers whose help fits the terminal."""

from __future__ import annotations

import argparse
import re
from typing import Any

from fastdata.errors import OptionError
from fastdata.terminal.wrap import columns, wrapped

__all__ = ["HelpFormatter", "Parser"]

# Not a part of a path, a URL or something quoted.
_ARGUMENT = re.compile(
    r"(?<![\w./\\?&='\"-])(?P<name>[a-z]\w*)\b(?:=(?P<value>'[^']*'|[^\s,;:)'/\\]+))?(?![\w/\\'-]|\.\w)"
)
_TERM = re.compile(r"[A-Z]+ {2,}")  # what a paragraph explains, such as "SOURCE  one of: ..."


class HelpFormatter(argparse.HelpFormatter):
    """argparse's, which keeps paragraphs apart and indents those that explain a term."""

    def __init__(self, prog: str, **options: Any) -> None:
        options.setdefault("width", columns() - 2)
        super().__init__(prog, **options)

    def _format_usage(self, *arguments: Any, **options: Any) -> str:
        """Argparse does not wrap a usage that is given."""
        return wrapped(super()._format_usage(*arguments, **options), hanging=len("usage: "), width=self._width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs: list[str] = []
        for line in text.strip().split("\n"):
            is_new = not line.strip() or _TERM.match(line) is not None
            if is_new or not paragraphs or not paragraphs[-1]:
                paragraphs.append(line.rstrip())
            else:
                paragraphs[-1] += f" {line.strip()}"
        terms = [_TERM.match(each) for each in paragraphs]
        lines = [
            wrapped(indent + each, hanging=len(indent) + (len(term.group()) if term else 0), width=width)
            for each, term in zip(paragraphs, terms, strict=True)
        ]
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """argparse's parser with that formatter; parsers of subcommands are of the same class."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(*arguments, **options)
        self.set_defaults(parser=self)  # a subcommand's is its own

    def in_options(self, error: BaseException) -> str:
        """An error's message; that of an OptionError has the command's own options, such as --quality 101."""
        if not isinstance(error, OptionError):
            return str(error)
        options = {
            each.dest: name for each in self._actions for name in each.option_strings if not name.startswith("--no-")
        }

        def named(found: re.Match[str]) -> str:
            option, value = options.get(found["name"]), found["value"]
            if option is None or (value is None and "_" not in found["name"]):  # another word
                return found[0]
            if value == "False":
                return f"no {option}"
            return option if value in (None, "True") else f"{option} {value.strip(chr(39))}"

        return _ARGUMENT.sub(named, str(error))
