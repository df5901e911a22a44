"""Packages that only some options need."""

from __future__ import annotations

import pytest

from fastdata import OptionError
from fastdata.errors import ConversionError
from fastdata.system.optional import need


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(OptionError, match="engine='x' needs no_such_package; install it with: pip install no_such_pac"):
        need("no_such_package.inside", "engine='x'")
    with pytest.raises(ConversionError, match="pip install other-name"):
        need("no_such_package", "reading", package="other-name", error=ConversionError)
    assert need("json", "nothing").dumps([1]) == "[1]"
