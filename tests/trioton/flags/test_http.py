"""The flags of the HTTP edge: that each reaches the edge, and what cannot be."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from protocol.access.restricted import HTTP_API, Restriction
from protocol.http.settings import ConnectionLimits, HttpSettings
from protocol.reactor.tls import TlsFiles
from trioton.flags.fields import UsageError
from trioton.machine import memory_size
from trioton.settings import Settings

MODELS = (Path("models"),)
CERT, KEY, ROOT = Path("cert.pem"), Path("key.pem"), Path("root.pem")


def make(**flags: Any) -> Settings:
    return Settings(model_repository=MODELS, **flags)


def test_the_defaults_are_those_of_the_edge() -> None:
    """Whoever embeds the edge gets what the command line gives."""
    assert make().http_edge() == HttpSettings()


@pytest.mark.parametrize(
    ("flag", "value", "name", "expected"),
    [
        ("http_max_input_size", 5, "max_input_size", 5),
        ("http_max_body_size", 6, "max_body_size", 6),
        ("http_body_timeout", 1500, "body_timeout", 1.5),
        ("http_address", "localhost", "host", "localhost"),
        ("http_port", 9000, "port", 9000),
        ("reuse_http_port", True, "reuse_port", True),
    ],
)
def test_flags_of_the_edge(flag: str, value: Any, name: str, expected: Any) -> None:
    assert getattr(make(**{flag: value}).http_edge(), name) == expected


@pytest.mark.parametrize("limit", [field.name for field in fields(ConnectionLimits) if field.name != "backlog"])
def test_every_limit_of_a_connection_has_a_flag(limit: str) -> None:
    """Named as it is; a time in milliseconds."""
    expected = 2500 if limit.startswith("max_") and limit != "max_connection_age" else 2.5
    assert getattr(make(**{f"http_{limit}": 2500}).http_edge().connections, limit) == expected


def test_tls() -> None:
    assert make().http_tls() is None
    flags: dict[str, Any] = {"http_use_ssl": True, "http_server_cert": CERT, "http_server_key": KEY}
    assert make(**flags).http_tls() == TlsFiles(CERT, KEY)
    assert make(**flags, http_root_cert=ROOT).http_tls() == TlsFiles(CERT, KEY, ROOT)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"http_use_ssl": True}, "--http-use-ssl needs --http-server-cert and --http-server-key"),
        ({"http_use_ssl": True, "http_server_cert": CERT}, "--http-use-ssl needs --http-server-cert"),
        ({"http_server_cert": CERT}, "--http-server-cert needs --http-use-ssl=true"),
        ({"http_server_key": KEY}, "--http-server-key needs --http-use-ssl=true"),
        ({"http_root_cert": ROOT}, "--http-root-cert needs --http-use-ssl=true"),
    ],
)
def test_tls_that_cannot_be(flags: dict[str, Any], text: str) -> None:
    """Also certificates that nobody would use: someone believes that they are."""
    with pytest.raises(UsageError, match=text):
        make(**flags)


def test_metrics_over_tls_need_the_certificates_of_http() -> None:
    with pytest.raises(UsageError, match="--metrics-use-ssl needs --http-use-ssl=true"):
        make(metrics_use_ssl=True)
    assert make(metrics_use_ssl=True, http_use_ssl=True, http_server_cert=CERT, http_server_key=KEY).metrics_use_ssl


def test_a_part_of_the_memory_is_for_requests() -> None:
    assert memory_size() // 16 <= make().request_memory() <= memory_size() // 2
    assert make(max_request_memory=7).request_memory() == 7


def test_a_category_is_restricted_once() -> None:
    """The second flag is at fault, which its own value does not show."""
    restrictions = tuple(Restriction.parse(text, HTTP_API) for text in ("health:a=b", "inference,health:c=d"))
    text = "--http-restricted-api: restricted api 'health' can not be specified in multiple config groups"
    with pytest.raises(UsageError, match=text):
        make(http_restricted_api=restrictions)
