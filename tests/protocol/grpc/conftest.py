"""Every test of a whole edge runs twice: plain requests are answered alike by callbacks and by tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocol.grpc.drivers import driver


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = metafunc.definition.iter_markers("parametrize")
    if "serving" in vars(metafunc.module) and not any(mark.args[0] == "has_fast_path" for mark in marks):
        by_tasks = pytest.param(False, marks=pytest.mark.slow, id="task")
        metafunc.parametrize("has_fast_path", [pytest.param(True, id="fast"), by_tasks], indirect=True)


@pytest.fixture(autouse=True)
def has_fast_path(request: pytest.FixtureRequest) -> Iterator[bool]:
    driver.has_fast_path = getattr(request, "param", True)
    yield driver.has_fast_path
    driver.has_fast_path = True
