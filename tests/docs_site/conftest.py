"""The modules of `docs/site/`, which are no package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).parents[2] / "docs" / "site"


@pytest.fixture
def site_module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(SITE)
    return importlib.import_module
