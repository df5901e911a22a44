"""Write the README's table from benchmarks/results/loader.json.

python benchmarks/report.py            # rewrites README.md between the table marks
python benchmarks/report.py --check    # exit status 1 if the README's table is not that of the JSON
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "loader.json"
START, END = "<!-- table -->", "<!-- /table -->"


def readme_table(record: dict[str, Any]) -> str:
    """The Markdown table of a loader.json record, with its conditions below."""
    lines = [
        "| loader | float32: CPU ms/image | times torch | uint8: CPU ms/image | times torch |",
        "|---|---:|---:|---:|---:|",
    ]
    floats, bytes_ = record["results"]["float32"], record["results"]["uint8"]
    for float_row, byte_row in zip(floats["loaders"], bytes_["loaders"], strict=True):
        name = float_row["name"]
        if "synthetic" in name:  # it decodes nothing; a ratio to it says nothing
            continue
        cells = []
        for group, row in ((floats, float_row), (bytes_, byte_row)):
            ratio = group["times_better"][name]["cpu"]
            cells += [f"{row['cpu_ms_per_image']['median']:.2f}", f"{ratio['median']:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    machine = record["machine"]
    return "\n".join(
        [
            *lines,
            "",
            f"{record['data']}; {record['setup']}; {machine['cpu']}, {machine['usable_cpus']} CPUs; torch "
            f"{machine['torch']}, Python {machine['python']}; medians of "
            f"{len(floats['loaders'][0]['cpu_ms_per_image']['values'])} interleaved rounds, {record['date']}.",
        ]
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    given = parser.parse_args()
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(START)
    _, after = rest.split(END)
    text = f"{before}{START}\n{readme_table(json.loads(RESULT.read_text()))}\n{END}{after}"
    if given.check:
        return int(text != readme.read_text())
    readme.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
