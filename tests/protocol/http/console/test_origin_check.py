"""Whose pages may change the server: browsers say it, programs that are none say nothing."""

from __future__ import annotations

import pytest

from protocol.http.console.origin_check import is_foreign

NAMES = frozenset({"gpu-1"})


def headers(host: str, site: str | None = None, origin: str | None = None) -> dict[bytes, bytes]:
    found = {b"host": host, b"sec-fetch-site": site, b"origin": origin}
    return {name: value.encode() for name, value in found.items() if value is not None}


@pytest.mark.parametrize(
    "given",
    [
        headers("localhost:8000"),
        headers("any.name.of.a.service:8000"),
        headers("localhost:8000", "same-origin", "http://localhost:8000"),
        headers("localhost:8000", "none"),
        headers("10.0.0.1:8000", None, "http://10.0.0.1:8000"),
        headers("GPU-1:8000", None, "https://gpu-1:8000"),
        headers("127.0.0.1:8000", "same-origin", "https://behind.a.proxy"),
    ],
)
def test_own(given: dict[bytes, bytes]) -> None:
    assert not is_foreign(given, NAMES)


@pytest.mark.parametrize(
    "given",
    [
        headers("localhost:8000", "cross-site", "http://evil.example"),
        headers("localhost:8000", "same-site", "http://localhost:3000"),
        headers("localhost:8000", "cross-site"),
        headers("localhost:8000", "", None),
        headers("localhost:8000", None, "http://evil.example"),
        headers("localhost:8000", None, "null"),
        headers("localhost:8000", None, ""),
        headers("10.0.0.1:8000", None, "http://10.0.0.1:8001"),
        headers("evil.example:8000", "same-origin", "http://evil.example:8000"),
        headers("evil.example:8000", None, "http://evil.example:8000"),
    ],
)
def test_foreign(given: dict[bytes, bytes]) -> None:
    assert is_foreign(given, NAMES)
