"""The flags of gRPC: Triton's defaults and units, and what cannot be served."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from protocol.grpc.settings import ConnectionLimits, GrpcSettings, Keepalive
from protocol.reactor.tls import TlsFiles
from trioton.flags.fields import UsageError, read_arguments, rows
from trioton.flags.grpc import GrpcFlags
from trioton.settings import Settings

CERTIFICATE, KEY, ROOT = Path("server.pem"), Path("server.key"), Path("root.pem")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has: as many as the edge's settings have threads by default."""
    monkeypatch.setattr("trioton.flags.grpc.core_count", lambda: 4.0)


def parsed(*arguments: str) -> GrpcFlags:
    return GrpcFlags(**read_arguments(rows(GrpcFlags), arguments))


def test_the_defaults_of_flags_and_edge_are_the_same() -> None:
    """So the edge alone behaves as the server does."""
    assert GrpcFlags().grpc_edge() == GrpcSettings()


@pytest.mark.parametrize(("cores", "threads"), [(0.25, 1), (1.0, 1), (1.5, 2), (64.0, 64)])
def test_as_many_threads_as_the_control_group_leaves_cores(
    monkeypatch: pytest.MonkeyPatch, cores: float, threads: int
) -> None:
    monkeypatch.setattr("trioton.flags.grpc.core_count", lambda: cores)
    assert GrpcFlags().grpc_edge().threads == threads
    assert GrpcFlags().grpc_tls() is None


EDGE: list[tuple[str, str, Any]] = [
    ("--grpc-address=::1", "host", "::1"),
    ("--grpc-port=9", "port", 9),
    ("--reuse-grpc-port=true", "reuse_port", True),
    ("--grpc-max-connections=5", "max_connections", 5),
    ("--grpc-max-in-flight-per-stream=5", "max_in_flight_per_stream", 5),
    ("--grpc-infer-response-compression-level=none", "compression_level", 0),
    ("--grpc-infer-response-compression-level=low", "compression_level", 1),
    ("--grpc-infer-response-compression-level=medium", "compression_level", 6),
    ("--grpc-infer-response-compression-level=high", "compression_level", 9),
]


@pytest.mark.parametrize(("argument", "field", "value"), EDGE)
def test_flags_of_the_edge(argument: str, field: str, value: Any) -> None:
    assert parsed(argument).grpc_edge() == dataclasses.replace(GrpcSettings(), **{field: value})


LIMITS: list[tuple[str, str, float]] = [
    ("--grpc-max-message-size=5", "max_message_size", 5),
    ("--grpc-max-receive-memory=5", "max_receive_memory", 5),
    ("--grpc-max-header-size=5000", "max_header_size", 5000),
    ("--grpc-max-concurrent-streams=5", "max_concurrent_streams", 5),
    ("--grpc-max-stream-resets=5", "max_stream_resets", 5),
    ("--grpc-max-control-frames=5", "max_control_frames", 5),
    ("--grpc-handshake-timeout=1500", "handshake_timeout", 1.5),
    ("--grpc-receive-timeout=1500", "receive_timeout", 1.5),
    ("--grpc-send-timeout=1500", "send_timeout", 1.5),
    ("--grpc-max-connection-age=1500", "max_connection_age", 1.5),
    ("--grpc-max-connection-age-grace=0", "max_connection_age_grace", 0),
    ("--grpc-max-connection-idle=1500", "max_connection_idle", 1.5),
    ("--grpc-max-connection-idle=0", "max_connection_idle", math.inf),
]


@pytest.mark.parametrize(("argument", "field", "value"), LIMITS)
def test_flags_of_each_connection(argument: str, field: str, value: float) -> None:
    """Milliseconds become seconds."""
    changed: dict[str, Any] = {field: value}
    assert parsed(argument).grpc_edge().limits == dataclasses.replace(ConnectionLimits(), **changed)


KEEPALIVE: list[tuple[str, str, Any]] = [
    ("--grpc-keepalive-time=1500", "time", 1.5),
    ("--grpc-keepalive-time=2147483647", "time", math.inf),
    ("--grpc-keepalive-timeout=1500", "timeout", 1.5),
    ("--grpc-keepalive-permit-without-calls=true", "permit_without_calls", True),
    ("--grpc-http2-max-pings-without-data=0", "max_pings_without_data", 0),
    ("--grpc-http2-min-recv-ping-interval-without-data=1500", "min_recv_ping_interval_without_data", 1.5),
    ("--grpc-http2-max-ping-strikes=0", "max_ping_strikes", 0),
]


@pytest.mark.parametrize(("argument", "field", "value"), KEEPALIVE)
def test_flags_of_keepalive(argument: str, field: str, value: Any) -> None:
    assert parsed(argument).grpc_edge().limits.keepalive == dataclasses.replace(Keepalive(), **{field: value})


def test_every_limit_of_a_connection_has_a_flag_of_its_name() -> None:
    """The metric of refusals names limits by their flags."""
    names = {row.field_name for row in rows(GrpcFlags)}
    internal = {"stream_window", "connection_window", "keepalive"}
    limits = {field.name for field in dataclasses.fields(ConnectionLimits)} - internal
    assert {f"grpc_{name}" for name in limits} <= names


FILES = ("--grpc-server-cert=server.pem", "--grpc-server-key=server.key", "--grpc-root-cert=root.pem")


def test_tls_is_asked_for_by_a_flag_of_its_own() -> None:
    """Mutual TLS takes precedence."""
    assert parsed("--grpc-use-ssl=true", *FILES).grpc_tls() == TlsFiles(CERTIFICATE, KEY)
    mutual = TlsFiles(CERTIFICATE, KEY, ROOT)
    assert parsed("--grpc-use-ssl-mutual=true", *FILES).grpc_tls() == mutual
    assert parsed("--grpc-use-ssl=true", "--grpc-use-ssl-mutual=true", *FILES).grpc_tls() == mutual


MISSING: list[tuple[dict[str, Any], str]] = [
    ({"grpc_use_ssl": True}, "--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key"),
    ({"grpc_use_ssl": True, "grpc_server_cert": CERTIFICATE}, "--grpc-use-ssl needs --grpc-server-cert and"),
    ({"grpc_server_cert": CERTIFICATE}, "--grpc-server-cert needs --grpc-use-ssl=true or --grpc-use-ssl-mutual=true"),
    ({"grpc_server_key": KEY}, "--grpc-server-key needs --grpc-use-ssl=true or"),
    ({"grpc_root_cert": ROOT}, "--grpc-root-cert needs --grpc-use-ssl=true or"),
    (
        {"grpc_use_ssl_mutual": True, "grpc_server_cert": CERTIFICATE, "grpc_server_key": KEY},
        "--grpc-use-ssl-mutual needs --grpc-root-cert, the certificate that vouches for clients",
    ),
]


@pytest.mark.parametrize(("values", "message"), MISSING)
def test_tls_needs_its_files(values: dict[str, Any], message: str) -> None:
    """And files need TLS: who gives them believes that they are used."""
    with pytest.raises(UsageError) as caught:
        Settings(model_repository=(Path("/models"),), **values)
    assert message in str(caught.value)


WITHOUT_EFFECT = ["grpc-infer-thread-count", "grpc-infer-allocation-pool-size", "grpc-max-response-pool-size"]


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_some_of_tritons_flags_are_taken_without_effect(name: str) -> None:
    """Their help says so."""
    assert parsed(f"--{name}=9").grpc_edge() == GrpcSettings()
    (row,) = [row for row in rows(GrpcFlags) if row.name == name]
    assert row.help.startswith("Without effect: ")


WRONG = [
    ("--grpc-infer-thread-count=1", "from 2 to 128"),
    ("--grpc-max-response-pool-size=0", "at least 1"),
    ("--grpc-infer-response-compression-level=best", "expected none or low or medium or high"),
    ("--grpc-max-message-size=2147483648", "from 1 to 2147483647"),
    ("--grpc-keepalive-time=-1", "from 0 to 2147483647"),
]


@pytest.mark.parametrize(("argument", "message"), WRONG)
def test_values_that_are_none(argument: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(argument)


def test_a_category_is_restricted_once() -> None:
    """The second flag is at fault, which its own value does not show."""
    flags = parsed("--grpc-restricted-protocol=health:a=b", "--grpc-restricted-protocol=inference,health:c=d")
    text = "--grpc-restricted-protocol: restricted protocol 'health' can not be specified in multiple config groups"
    with pytest.raises(UsageError, match=text):
        flags.check_grpc()
