"""The format under test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.conformance.format import Format


@pytest.fixture
def form(request: pytest.FixtureRequest, run_folder: Path) -> Format:
    """Skips the test, with the name of the package, where the format's framework is not installed."""
    found: Format = request.param
    found.run_folder = run_folder
    for package in found.packages:
        pytest.importorskip(package)
    return found
