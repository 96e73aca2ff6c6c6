"""The format under test."""

from __future__ import annotations

import pytest

from tests.backends.conformance.format import Format


@pytest.fixture
def form(request: pytest.FixtureRequest) -> Format:
    """Skips the test, with the name of the package, where the format's framework is not installed."""
    found: Format = request.param
    for package in found.packages:
        pytest.importorskip(package)
    return found
