"""A folder of JPEGs with a table of their labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_tables import make_table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen JPEGs, grey and progressive ones among them, for `own_tables.Table` and for ImageFolder."""
    return make_table(tmp_path_factory.mktemp("table"))
