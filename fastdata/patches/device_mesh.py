"""Process groups that a device mesh of torch holds, and lets go of too late.

torch's caches of sharded operators hold meshes for as long as the process lives, and a mesh its groups in the private
attribute `_pg_registry` (since torch 2.9).  gloo's threads end with the last reference to a group; those that outlive
the interpreter abort it now and then.
"""

from __future__ import annotations

from typing import Any

__all__ = ["release_groups"]


def release_groups(mesh: Any) -> None:
    """Lets a mesh go of its process groups, when nobody will use it any more."""
    getattr(mesh, "_pg_registry", {}).clear()
