# ruff: noqa: RUF009 (the defaults are fields, made by functions)
"""Flags of the gRPC edge. Part of `trioton.settings`.

Names and units are Triton's where it has the flag; times are in milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from protocol.access.forwarding import HeaderForwarding
from protocol.access.restricted import GRPC_PROTOCOL, Restriction
from protocol.grpc.settings import ConnectionLimits, GrpcSettings, Keepalive
from protocol.reactor.tls import TlsFiles
from trioton.flags.edge import MILLISECONDS, EdgeFlags, check_restrictions, refuse_files_without_tls
from trioton.flags.fields import UsageError, choice, flag, integer
from trioton.machine import core_count

GRPC = "gRPC"

_edge = EdgeFlags(GRPC)

# zlib's levels.
COMPRESSION_LEVELS = {"none": 0, "low": 1, "medium": 6, "high": 9}

_MAX_INT32 = 2**31 - 1


def _milliseconds(default: int, help: str) -> int:
    return _edge.milliseconds(default, help, minimum=0, maximum=_MAX_INT32)


def _without_effect(default: int, help: str, *, minimum: int, maximum: int | None = None) -> int:
    return _edge.count(default, f"Without effect: {help}", minimum=minimum, maximum=maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcFlags:
    """The part of the settings that is about gRPC."""

    allow_grpc: bool = _edge.allow()
    grpc_address: str = _edge.address()
    grpc_port: int = _edge.port(8001)
    reuse_grpc_port: bool = _edge.reuse_port()
    grpc_restricted_protocol: tuple[Restriction, ...] = _edge.restrictions(
        GRPC_PROTOCOL,
        metavar="<protocol>[,<protocol>]:<key>=<value>",
        help="Calls that need the metadata triton-grpc-protocol-<key> with this value.",
    )
    grpc_header_forward_pattern: HeaderForwarding | None = _edge.header_forwarding("Request metadata whose keys")
    grpc_infer_response_compression_level: str = flag(
        "none",
        choice(*COMPRESSION_LEVELS),
        group=GRPC,
        metavar="{none,low,medium,high}",
        help="Compress responses to inference requests for clients that accept it.",
    )

    grpc_use_ssl: bool = _edge.on_off(False, "Serve over TLS, with --grpc-server-cert and --grpc-server-key.")
    grpc_use_ssl_mutual: bool = _edge.on_off(
        False, "Serve over TLS, and only clients with a certificate that --grpc-root-cert vouches for."
    )
    grpc_server_cert: Path | None = _edge.certificate()
    grpc_server_key: Path | None = _edge.key()
    grpc_root_cert: Path | None = _edge.root_certificate()

    grpc_keepalive_time: int = _milliseconds(
        7_200_000, "After so long without a byte from a client it is asked for a sign of life."
    )
    grpc_keepalive_timeout: int = _milliseconds(20_000, "How long it has to give one, before the connection is closed.")
    grpc_keepalive_permit_without_calls: bool = _edge.on_off(
        False, "Ask clients without calls too, and let them ask as often as those with calls."
    )
    grpc_http2_max_pings_without_data: int = _edge.count(
        2, "How often in a row a client is asked while it is sent nothing else; 0 is without limit.", minimum=0
    )
    grpc_http2_min_recv_ping_interval_without_data: int = _milliseconds(
        300_000, "How long a client has to wait between its own PINGs, unless it is sent data."
    )
    grpc_http2_max_ping_strikes: int = _edge.count(
        2,
        "How many PINGs of a client may come too early; one more closes the connection. 0 is without limit.",
        minimum=0,
    )
    grpc_max_connection_age: int | None = flag(
        None,
        integer(0, _MAX_INT32),
        group=GRPC,
        metavar=MILLISECONDS,
        help="After so long, give or take a tenth, a connection takes no more calls, and its client opens a new one. "
        "Where absent, never.",
    )
    grpc_max_connection_age_grace: int | None = flag(
        None,
        integer(0, _MAX_INT32),
        group=GRPC,
        metavar=MILLISECONDS,
        help="How long the calls in progress may still go on then. Where absent, until they end.",
    )
    grpc_max_connection_idle: int = _milliseconds(
        3_600_000, "After so long without a call a connection is closed; 0 is never."
    )

    grpc_max_connections: int = _edge.count(1000, "The most connections at one time; others are turned away.")
    grpc_max_concurrent_streams: int = _edge.count(
        1024, "The most calls at one time on a connection; others are refused.", maximum=_MAX_INT32
    )
    grpc_max_in_flight_per_stream: int = _edge.count(
        128, "The most requests of one ModelStreamInfer stream that are read and not yet answered."
    )
    grpc_max_message_size: int = _edge.count(
        _MAX_INT32, "The most bytes of a request message, also once it is decompressed.", maximum=_MAX_INT32
    )
    grpc_max_receive_memory: int = _edge.count(
        2**32, "The most bytes that the requests in progress on one connection may hold."
    )
    grpc_max_header_size: int = _edge.count(
        16_384, "The most bytes of a call's headers, each counted with 32 more.", minimum=1024, maximum=2**24
    )
    grpc_max_stream_resets: int = _edge.count(
        1000, "The most calls in a second that a client may open only to reset them."
    )
    grpc_max_control_frames: int = _edge.count(
        10_000, "The most frames in a second that carry nothing of a call, and calls too many."
    )
    grpc_handshake_timeout: int = _milliseconds(20_000, "How long TLS, and then HTTP/2, may take to begin.")
    grpc_receive_timeout: int = _milliseconds(
        60_000, "How long a request may take for each 64 KiB of it, once it has begun."
    )
    grpc_send_timeout: int = _milliseconds(60_000, "How long a client may take to read each 64 KiB of a response.")

    grpc_infer_thread_count: int = _without_effect(2, "calls need no threads here.", minimum=2, maximum=128)
    grpc_infer_allocation_pool_size: int = _without_effect(8, "there is no pool of requests here.", minimum=0)
    grpc_max_response_pool_size: int = _without_effect(
        _MAX_INT32, "a model that sends many responses waits while its client reads slowly.", minimum=1
    )

    def check_grpc(self) -> None:
        """Raises UsageError for what cannot be served."""
        self.grpc_tls()
        check_restrictions("--grpc-restricted-protocol", self.grpc_restricted_protocol, GRPC_PROTOCOL)

    def grpc_tls(self) -> TlsFiles | None:
        """What TLS is to use, None without it. Raises UsageError."""
        if not (self.grpc_use_ssl or self.grpc_use_ssl_mutual):
            files = {
                "--grpc-server-cert": self.grpc_server_cert,
                "--grpc-server-key": self.grpc_server_key,
                "--grpc-root-cert": self.grpc_root_cert,
            }
            refuse_files_without_tls(files, "--grpc-use-ssl=true or --grpc-use-ssl-mutual=true")
            return None
        flag_name = "--grpc-use-ssl-mutual" if self.grpc_use_ssl_mutual else "--grpc-use-ssl"
        if self.grpc_server_cert is None or self.grpc_server_key is None:
            raise UsageError(f"{flag_name} needs --grpc-server-cert and --grpc-server-key")
        if self.grpc_use_ssl_mutual and self.grpc_root_cert is None:
            raise UsageError(f"{flag_name} needs --grpc-root-cert, the certificate that vouches for clients")
        root = self.grpc_root_cert if self.grpc_use_ssl_mutual else None
        return TlsFiles(self.grpc_server_cert, self.grpc_server_key, root)

    def grpc_edge(self) -> GrpcSettings:
        """The edge's settings, but for TLS, whose files are not read here."""
        return GrpcSettings(
            host=self.grpc_address,
            port=self.grpc_port,
            reuse_port=self.reuse_grpc_port,
            max_connections=self.grpc_max_connections,
            limits=self._grpc_limits(),
            max_in_flight_per_stream=self.grpc_max_in_flight_per_stream,
            compression_level=COMPRESSION_LEVELS[self.grpc_infer_response_compression_level],
            threads=math.ceil(core_count()),
        )

    def _grpc_limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            max_message_size=self.grpc_max_message_size,
            max_receive_memory=self.grpc_max_receive_memory,
            max_header_size=self.grpc_max_header_size,
            max_concurrent_streams=self.grpc_max_concurrent_streams,
            max_stream_resets=self.grpc_max_stream_resets,
            max_control_frames=self.grpc_max_control_frames,
            handshake_timeout=self.grpc_handshake_timeout / 1000,
            receive_timeout=self.grpc_receive_timeout / 1000,
            send_timeout=self.grpc_send_timeout / 1000,
            max_connection_age=_seconds(self.grpc_max_connection_age),
            max_connection_age_grace=_seconds(self.grpc_max_connection_age_grace),
            max_connection_idle=_seconds(self.grpc_max_connection_idle or None),
            keepalive=Keepalive(
                time=_keepalive_seconds(self.grpc_keepalive_time),
                timeout=_keepalive_seconds(self.grpc_keepalive_timeout),
                permit_without_calls=self.grpc_keepalive_permit_without_calls,
                max_pings_without_data=self.grpc_http2_max_pings_without_data,
                min_recv_ping_interval_without_data=self.grpc_http2_min_recv_ping_interval_without_data / 1000,
                max_ping_strikes=self.grpc_http2_max_ping_strikes,
            ),
        )


def _seconds(milliseconds: int | None) -> float:
    return math.inf if milliseconds is None else milliseconds / 1000


def _keepalive_seconds(milliseconds: int) -> float:
    """The largest number means never, as in gRPC."""
    return math.inf if milliseconds == _MAX_INT32 else milliseconds / 1000
