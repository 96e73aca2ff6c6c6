# ruff: noqa: RUF009 (the defaults are fields, made by functions)
"""Flags of the HTTP edge. Part of `trioton.settings`.

Names and units are Triton's where it has the flag; times are in milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from protocol.access.forwarding import HeaderForwarding
from protocol.access.restricted import HTTP_API, Restriction
from protocol.http.settings import ConnectionLimits, HttpSettings
from protocol.reactor.tls import TlsFiles
from trioton.flags.edge import MILLISECONDS, EdgeFlags, check_restrictions, refuse_files_without_tls
from trioton.flags.fields import STRING, UsageError, flag, integer, repeatable, switch

HTTP = "HTTP"

_edge = EdgeFlags(HTTP)


def _milliseconds(default: int, help: str) -> int:
    return _edge.milliseconds(default, help, minimum=1)


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have two such parts
class HttpFlags:
    """The part of the settings that is about HTTP."""

    allow_http: bool = _edge.allow()
    http_address: str = _edge.address()
    http_port: int = _edge.port(8000)
    reuse_http_port: bool = _edge.reuse_port()
    http_restricted_api: tuple[Restriction, ...] = _edge.restrictions(
        HTTP_API, metavar="<api>[,<api>]:<header>=<value>", help="Calls that need a header with this value."
    )
    http_header_forward_pattern: HeaderForwarding | None = _edge.header_forwarding("Request headers whose names")

    http_use_ssl: bool = _edge.on_off(False, "Serve HTTPS, with --http-server-cert and --http-server-key.")
    http_server_cert: Path | None = _edge.certificate()
    http_server_key: Path | None = _edge.key()
    http_root_cert: Path | None = _edge.root_certificate("; with it a client needs one of its own (mutual TLS)")

    http_max_input_size: int = _edge.count(
        67108864,
        "The most bytes of a request's JSON part, of a tensor given as JSON, and of a decompressed body.",
    )
    http_max_body_size: int = _edge.count(2**31, "The most bytes of a whole request body, binary tensors included.")
    http_max_header_size: int = _edge.count(65536, "The most bytes of a request's line and headers.", minimum=1024)
    http_max_connections: int = _edge.count(1000, "The most connections at one time; others are answered 503.")
    http_max_concurrent_streams: int = _edge.count(
        128, "The most requests at one time on an HTTP/2 connection; others are answered 429."
    )
    http_max_requests_per_connection: int = _edge.count(
        0, "After so many requests a connection ends, and its client opens a new one; 0 is never.", minimum=0
    )
    http_max_connection_age: int | None = flag(
        None,
        integer(1),
        group=HTTP,
        metavar=MILLISECONDS,
        help="After so long, give or take a tenth, a connection ends behind its next response, and its client opens a "
        "new one. Where absent, never.",
    )
    http_max_stream_resets: int = _edge.count(
        200, "The most requests in a second that a client may open on an HTTP/2 connection only to give them up."
    )
    http_max_control_frames: int = _edge.count(
        1000,
        "The most frames in a second on an HTTP/2 connection that carry nothing of a request, and requests too many.",
    )
    http_header_timeout: int = _milliseconds(
        20_000, "How long TLS, and then the headers of a request, may take once they have begun."
    )
    http_body_timeout: int = _milliseconds(
        60_000, "How long a request's body may pause in all, beside a second for each KiB that has come."
    )
    http_idle_timeout: int = _milliseconds(75_000, "How long a connection may sit without a request.")
    http_send_timeout: int = _milliseconds(
        60_000, "How long a client may take no byte of its response, before it is cut off."
    )

    console: bool = switch(group=HTTP, help="Serve a live console for people at /v2/console.")
    console_host: tuple[str, ...] = repeatable(
        str,
        group=HTTP,
        metavar=STRING,
        help="A name that browsers reach the console by, if there are no keys and it is none of this machine. May be "
        "given several times.",
    )

    http_thread_count: int = _edge.count(8, "Without effect: requests need no threads here.", minimum=0)

    def check_http(self) -> None:
        """Raises UsageError for what cannot be served."""
        self.http_tls()
        check_restrictions("--http-restricted-api", self.http_restricted_api, HTTP_API)

    def http_tls(self) -> TlsFiles | None:
        """What TLS is to use, None without it. Raises UsageError."""
        if not self.http_use_ssl:
            files = {
                "--http-server-cert": self.http_server_cert,
                "--http-server-key": self.http_server_key,
                "--http-root-cert": self.http_root_cert,
            }
            refuse_files_without_tls(files, "--http-use-ssl=true")
            return None
        if self.http_server_cert is None or self.http_server_key is None:
            raise UsageError("--http-use-ssl needs --http-server-cert and --http-server-key")
        return TlsFiles(self.http_server_cert, self.http_server_key, self.http_root_cert)

    def http_edge(self) -> HttpSettings:
        """The edge's settings, but for TLS, whose files are not read here."""
        return HttpSettings(
            self.http_address,
            self.http_port,
            max_input_size=self.http_max_input_size,
            max_body_size=self.http_max_body_size,
            body_timeout=self.http_body_timeout / 1000,
            reuse_port=self.reuse_http_port,
            console=self.console,
            connections=ConnectionLimits(
                max_connections=self.http_max_connections,
                max_header_size=self.http_max_header_size,
                max_concurrent_streams=self.http_max_concurrent_streams,
                max_requests_per_connection=self.http_max_requests_per_connection,
                max_connection_age=math.inf
                if self.http_max_connection_age is None
                else self.http_max_connection_age / 1000,
                max_stream_resets=self.http_max_stream_resets,
                max_control_frames=self.http_max_control_frames,
                header_timeout=self.http_header_timeout / 1000,
                idle_timeout=self.http_idle_timeout / 1000,
                send_timeout=self.http_send_timeout / 1000,
            ),
        )
