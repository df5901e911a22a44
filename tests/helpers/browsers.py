"""The browser that looks at pages."""

from __future__ import annotations

import shutil

__all__ = ["browser"]


def browser() -> str | None:
    """The path of Chromium, if it is here."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
