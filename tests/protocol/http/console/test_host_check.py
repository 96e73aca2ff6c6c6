"""Hosts that a browser may call this server by, and names that only another site can have made."""

from __future__ import annotations

import pytest

from protocol.http.console.host_check import is_own_host

NAMES = frozenset({"gpu-1", "models.example.org"})


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LOCALHOST:8000",
        "app.localhost:8000",
        "127.0.0.1",
        "127.0.0.1:8000",
        "10.1.2.3:8000",
        "[::1]:8000",
        "[::1]",
        "gpu-1:8000",
        "models.example.org",
        "Models.Example.Org.:8000",
    ],
)
def test_own(host: str) -> None:
    assert is_own_host(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example:8000",
        "localhost.evil.example",
        "notlocalhost",
        "gpu-1.evil.example",
        "[evil.example]:8000",
        "127.0.0.1:8000@evil.example",
        "2130706433",
    ],
)
def test_foreign(host: str) -> None:
    assert not is_own_host(host, NAMES)
