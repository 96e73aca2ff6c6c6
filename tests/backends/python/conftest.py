"""What a model may count on wherever it runs: tests that take `backend` run in each of these places."""

from __future__ import annotations

from functools import partial

import pytest

from tests.backends.python import models
from tests.backends.python.models import MakeBackend


@pytest.fixture(params=["process", "in_process", "in_loop"])
def backend(request: pytest.FixtureRequest) -> MakeBackend:
    """As `models.backend`."""
    return partial(models.backend, isolation=request.param)
