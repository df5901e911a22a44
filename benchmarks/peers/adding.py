"""Add a run of some loaders to the results of an earlier one."""

from __future__ import annotations

from typing import Any

from peers import REFERENCE, REFERENCE_OF_PIXELS, VARIANTS

__all__ = ["added", "merged"]


def added(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The results of a run, so far without workloads, with everything of an earlier record in them.

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
        "added_to": {key: before[key] for key in ("command", "date", "commit")},
    }


def merged(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A workload's results with those loaders of an earlier run that the new one did not try.

    Each loader keeps the ratios to torch of its own run; torch's own figures stay those of the earlier one.

    Raises:
        SystemExit: the runs differ in images, batches or threads.
    """
    if any(before[key] != new[key] for key in ("images", "batch")) or before["threads"].keys() != new["threads"].keys():
        raise SystemExit(f"{new['told']}: cannot be added to a run of other images, batches or threads")
    tried = {row["name"] for result in new["threads"].values() for row in result["loaders"]} | new["absent"].keys()
    tried -= {REFERENCE, REFERENCE_OF_PIXELS}
    threads = {}
    for count, result in new["threads"].items():
        old = before["threads"][count]
        rows = [row for row in old["loaders"] if row["name"] not in tried]
        rows += [row for row in result["loaders"] if row["name"] in tried]
        both = old["times_better"] | {name: times for name, times in result["times_better"].items() if name in tried}
        threads[count] = {"loaders": rows, "times_better": {row["name"]: both[row["name"]] for row in rows}}
    absent = {name: reason for name, reason in before["absent"].items() if name not in tried}
    return {**new, "threads": threads, "absent": {**absent, **new["absent"]}}
