"""Stopping requests by their id, called through the application."""

from __future__ import annotations

import pytest

from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.messages import LATEST_VERSION
from tests.protocol.http.asgi import call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services


@pytest.mark.parametrize(
    ("path", "request_id", "version"),
    [
        ("echo/requests/a/cancel", "a", LATEST_VERSION),
        ("echo/versions/1/requests/a/cancel", "a", 1),
        ("echo/requests/a%2Fb%20c%3F/cancel", "a/b c?", LATEST_VERSION),
        ("echo/requests/gr%C3%B6%C3%9Fe/cancel", "größe", LATEST_VERSION),
        ("echo/requests/cancel/cancel", "cancel", LATEST_VERSION),
    ],
)
async def test_requests_are_stopped_by_their_id(path: str, request_id: str, version: int) -> None:
    """Ids may hold any character, percent-encoded."""
    core = FakeCore()
    answer = await call(HttpApp(make_services(core), HttpSettings()), "POST", f"/v2/models/{path}")
    assert (answer.status, answer.json) == (200, {"cancelled": 2})
    assert core.calls == [("cancel", "echo", request_id, version)]


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("nope/requests/a/cancel", 404, "Request for unknown model: 'nope' is not found"),
        ("echo/versions/7/requests/a/cancel", 404, "Request for unknown model: 'echo' version 7 is not found"),
        ("echo/requests//cancel", 404, "Not Found"),
        ("echo/requests/cancel", 404, "Not Found"),
    ],
)
async def test_what_is_not_there(path: str, status: int, error: str) -> None:
    core = FakeCore()
    answer = await call(HttpApp(make_services(core), HttpSettings()), "POST", f"/v2/models/{path}")
    assert (answer.status, answer.error) == (status, error)
    assert core.calls == []
