"""Add a run of some workloads to the results of an earlier one."""

from __future__ import annotations

from typing import Any

from peers import VARIANTS

__all__ = ["added"]


def added(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The results of a run, so far without workloads, with those of an earlier record in them.

    Rows of one workload are of one run: where machines differ, so would their milliseconds.

    Args:
        before: the earlier record.
        new: versions, what could not be installed, and how variants are set up.
    """
    old = before["results"]
    there = old["variants"].keys() | new["variants"].keys()
    failed = {**old["not_installed"], **new["not_installed"]}
    return {
        "versions": {**old["versions"], **new["versions"]},
        "not_installed": {name: problem for name, problem in failed.items() if name not in new["versions"]},
        "variants": {name: variant.told for name, variant in VARIANTS.items() if name in there},
        "workloads": dict(old["workloads"]),
        "added_to": [*old.get("added_to", []), {key: before[key] for key in ("command", "date", "commit")}],
    }
