"""Bar charts of the open benchmark as SVG, for light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from fastdata.terminal.words import three_digits

__all__ = ["DARK", "LIGHT", "Colours", "bars", "panels"]


class Colours(NamedTuple):
    """Of a page."""

    text: str
    ours: str
    others: str


LIGHT = Colours(text="#1f2328", ours="#1a7f37", others="#8c959f")
DARK = Colours(text="#e6edf3", ours="#3fb950", others="#6e7681")

_WIDTH, _BAR, _GAP, _TOP, _LEFT, _RIGHT = 760, 22, 8, 48, 232, 120
_NOT_EVEN = 1.05
_PANEL, _NAMES, _VALUES = 480, 205, 60
_FONT = "font-family='system-ui, sans-serif'"


def bars(rows: Mapping[str, Mapping[str, Any]], times: Mapping[str, float], title: str, colours: Colours) -> str:
    """An SVG image of CPU milliseconds per image, longest bar first.

    Args:
        rows: what was measured, by the name to be shown.
        times: how many times less than the first of all, by the same name.
        title: what is shown.
        colours: of the page that it is for.
    """
    costs = sorted(((name, row["cpu_ms_per_image"]) for name, row in rows.items()), key=lambda row: -row[1]["median"])
    scale = (_WIDTH - _LEFT - _RIGHT) / max(cost["max"] for _, cost in costs)
    height = _TOP + len(costs) * (_BAR + _GAP) + 8
    parts = [_opening(height, title), _heading(8, 24, title, 16, colours)]
    for number, (name, cost) in enumerate(costs):
        top, fill, weight = _TOP + number * (_BAR + _GAP), *_look(name, colours)
        middle, end = top + _BAR / 2, _LEFT + cost["max"] * scale
        told = f"{cost['median']:.2f} ms" + (f", {times[name]:.1f}× less" if times.get(name, 1) > _NOT_EVEN else "")
        label = f"y='{middle + 5:g}' {_FONT} font-size='14' fill='{colours.text}' font-weight='{weight}'"
        parts += [
            f"<text x='{_LEFT - 10}' {label} text-anchor='end'>{escape(name)}</text>",
            f"<rect x='{_LEFT}' y='{top}' width='{cost['median'] * scale:.1f}' height='{_BAR}' rx='3' fill='{fill}'/>",
            f"<line x1='{_LEFT + cost['min'] * scale:.1f}' x2='{end:.1f}' y1='{middle:g}' y2='{middle:g}' "
            f"stroke='{colours.text}' stroke-width='1.5'/>",  # from the least to the most of the rounds
            f"<text x='{end + 8:.1f}' {label}>{told}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def panels(groups: Mapping[str, Mapping[str, float]], unit: str, colours: Colours) -> str:
    """An SVG image of several comparisons, two beside each other, longest bar first, each with a scale of its own.

    Args:
        groups: values by name, by the title of each comparison.
        unit: of the values.
        colours: of the page that it is for.
    """
    columns: list[list[str]] = [[], []]
    tops = [34.0, 34.0]
    for title, values in groups.items():
        column = tops.index(min(tops))
        left, top = column * _PANEL, tops[column]
        parts = [_heading(left + 8, top + 18, title, 13, colours)]
        scale = (_PANEL - _NAMES - _VALUES) / max(values.values())
        for number, (name, value) in enumerate(sorted(values.items(), key=lambda item: -item[1])):
            y, fill, weight = top + 30 + number * 20, *_look(name, colours)
            label = f"y='{y + 12:g}' {_FONT} font-size='12' fill='{colours.text}' font-weight='{weight}'"
            bar, end = left + _NAMES, left + _NAMES + value * scale
            parts += [
                f"<text x='{bar - 6}' {label} text-anchor='end'>{escape(name)}</text>",
                f"<rect x='{bar}' y='{y}' width='{max(1.0, value * scale):.1f}' height='15' rx='2' fill='{fill}'/>",
                f"<text x='{end + 6:.1f}' {label}>{three_digits(value)}</text>",
            ]
        columns[column] += parts
        tops[column] = top + 30 + len(values) * 20 + 22
    height = round(max(tops))
    opening = [
        _opening(height, f"{unit} by loader", 2 * _PANEL),
        _heading(8, 22, f"{unit}: less is better", 16, colours),
    ]
    return "\n".join([*opening, *columns[0], *columns[1], "</svg>", ""])


def _opening(height: int, title: str, width: int = _WIDTH) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"role='img' aria-label='{escape(title)}'>"
    )


def _heading(x: float, y: float, text: str, size: int, colours: Colours) -> str:
    look = f"{_FONT} font-size='{size}' font-weight='600' fill='{colours.text}'"
    return f"<text x='{x:g}' y='{y:g}' {look}>{escape(text)}</text>"


def _look(name: str, colours: Colours) -> tuple[str, int]:
    """Colour and weight of a loader's bar."""
    return (colours.ours, 600) if "fastdata" in name else (colours.others, 400)
