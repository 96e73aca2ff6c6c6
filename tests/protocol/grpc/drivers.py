"""Which driver the edges of these tests use for plain requests: callbacks (the fast path) or tasks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass
class Driver:
    """`has_fast_path` is as in `GrpcSettings`; `conftest` sets it for each test."""

    has_fast_path: bool = True


driver = Driver()
# For tests of what only the fast path does.
only_fast_path = pytest.mark.parametrize("has_fast_path", [True], indirect=True, ids=["fast"])
