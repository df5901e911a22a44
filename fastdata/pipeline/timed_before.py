"""What timing has shown on this machine, so that it is not repeated for the same dataset and transform.

What is timed while the machine does other work takes longer, so it is timed twice, on two occasions, and of both the
least counts.  Kept for some weeks in a small file, `$XDG_CACHE_HOME/fastdata/backends.json`; whoever cannot write there
times again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.loaders import Backend
from fastdata.sources.protocol import ImageSource, location_of
from fastdata.system.cpus import usable_cpus
from fastdata.system.files import cache_folder
from fastdata.views.plan import Plan

__all__ = ["Timed", "key_of", "recall", "remember"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of a function or an object, another in every process
_DAYS = 30
_MOST = 200
_APART_S = 600.0  # of two occasions: what keeps a machine busy may last a while


class Timed(NamedTuple):
    """What is known of a case.

    Attributes:
        ms: milliseconds per image by backend, or what else was timed.
        settled: it was timed on two occasions and need not be again.
        at: when it was timed first, or settled, in seconds since 1970.
    """

    ms: dict[str, float]
    settled: bool
    at: float


def key_of(source: ImageSource, plan: Plan, backends: Sequence[Backend], **circumstances: object) -> str | None:
    """Names a case: a dataset by its size and where its samples are, a transform, a machine, and what is installed.

    None where it cannot be named.
    """
    try:
        return _key_of(source, plan, backends, **circumstances)
    except Exception:  # noqa: BLE001 - sources, backends and steps are the user's
        return None


def _key_of(source: ImageSource, plan: Plan, backends: Sequence[Backend], **circumstances: object) -> str:
    names = [location_of(source, index) for index in (0, len(source) // 2, len(source) - 1)]
    parts = [
        type(source).__qualname__,
        len(source),
        names,
        plan.ops,
        plan.output,
        plan.normalisation,
        len(plan.all_effects),
        [(stage.ops, len(stage.steps)) for stage in plan.later],
        [_ADDRESS.sub("", repr(step)) for step in plan.tail],
        [(backend.name, backend.version()) for backend in backends],
        sorted(circumstances.items()),
        (platform.node(), platform.machine(), usable_cpus()),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def recall(key: str) -> Timed | None:
    """What was timed, if it is known."""
    kept = _read().get(key)
    try:
        if kept is None or not 0 <= time.time() - kept["at"] < _DAYS * 86_400:
            return None
        ms = {str(name): float(each) for name, each in kept["ms_per_image"].items()}
        return Timed(ms, kept.get("times", 1) > 1, float(kept["at"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def remember(key: str, ms_per_image: Mapping[str, float], before: Timed | None = None) -> None:
    """Keeps what was timed, if there is a place for it; before: what was known then."""
    kept, file = _read(), _file()
    settled = before is not None and time.time() - before.at >= _APART_S
    at = before.at if before is not None and not settled else time.time()
    entry = {"at": at, "times": 2 if settled else 1, "ms_per_image": dict(ms_per_image)}
    kept.pop(key, None)  # what is newest comes last
    newest = dict([*kept.items(), (key, entry)][-_MOST:])
    if file is None:
        return
    partial = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(newest, indent=1))
        partial.replace(file)  # of several writers one wins, and nobody reads half a file


def _file() -> Path | None:
    """Where it is kept; None for users without a home."""
    try:
        return cache_folder() / "backends.json"
    except RuntimeError:
        return None


def _read() -> dict[str, Any]:
    file = _file()
    try:
        kept = json.loads(file.read_bytes()) if file is not None else {}
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
