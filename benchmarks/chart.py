"""A bar chart of one comparison of rivals.json as SVG, for light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

__all__ = ["DARK", "LIGHT", "Colours", "bars"]


class Colours(NamedTuple):
    """Of a page."""

    text: str
    ours: str
    others: str


LIGHT = Colours(text="#1f2328", ours="#1a7f37", others="#8c959f")
DARK = Colours(text="#e6edf3", ours="#3fb950", others="#6e7681")

_WIDTH, _BAR, _GAP, _TOP, _LEFT, _RIGHT = 760, 24, 10, 52, 232, 120
_FONT = "font-family='system-ui, sans-serif'"


def bars(result: Mapping[str, Any], names: Mapping[str, str], title: str, colours: Colours) -> str:
    """An SVG image, longest bar first.

    Args:
        result: one comparison.
        names: loaders to be shown, and what they are called in the chart.
        title: what is shown.
        colours: of the page that it is for.
    """
    rows = [row for row in result["loaders"] if row["name"] in names]
    rows.sort(key=lambda row: -row["cpu_ms_per_image"]["median"])
    longest = max(row["cpu_ms_per_image"]["max"] for row in rows)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    height = _TOP + len(rows) * (_BAR + _GAP) + 8
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' height='{height}' "
        f"role='img' aria-label='{escape(title)}'>",
        f"<text x='8' y='24' {_FONT} font-size='16' font-weight='600' fill='{colours.text}'>{escape(title)}</text>",
    ]
    for number, row in enumerate(rows):
        cost, top = row["cpu_ms_per_image"], _TOP + number * (_BAR + _GAP)
        is_ours = "fastdata" in row["name"]
        fill, weight = (colours.ours, 600) if is_ours else (colours.others, 400)
        middle, end = top + _BAR / 2, _LEFT + cost["max"] * scale
        times = result["times_better"][row["name"]]["cpu"]["median"]
        told = f"{cost['median']:.2f} ms" + (f", {times:.1f}× less" if times > 1 else "")
        label = f"y='{middle + 5:g}' {_FONT} font-size='14' fill='{colours.text}' font-weight='{weight}'"
        parts += [
            f"<text x='{_LEFT - 10}' {label} text-anchor='end'>{escape(names[row['name']])}</text>",
            f"<rect x='{_LEFT}' y='{top}' width='{cost['median'] * scale:.1f}' height='{_BAR}' rx='3' fill='{fill}'/>",
            f"<line x1='{_LEFT + cost['min'] * scale:.1f}' x2='{end:.1f}' y1='{middle:g}' y2='{middle:g}' "
            f"stroke='{colours.text}' stroke-width='1.5'/>",  # from the least to the most of the rounds
            f"<text x='{end + 8:.1f}' {label}>{told}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])
