"""Settings of the gRPC edge. Frozen values, read once when the listener starts."""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass, field

ALPN_PROTOCOL = "h2"


@dataclass(frozen=True, slots=True)
class Keepalive:
    """gRPC's keepalive, in seconds; counts of 0 mean without limit.

    Attributes:
        time: without a byte from the peer, after which a PING asks for a sign of life; 1 second at least.
        timeout: how long the peer has to answer it.
        permit_without_calls: whether PINGs are sent, and accepted more often, while there are no calls.
        max_pings_without_data: how many PINGs in a row are sent without sending anything else.
        min_recv_ping_interval_without_data: how long a peer has to wait between PINGs, unless it gets data.
        max_ping_strikes: how many PINGs may come too early; then the connection is closed.
    """

    time: float = 7200.0
    timeout: float = 20.0
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data: float = 300.0
    max_ping_strikes: int = 2


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection. Sizes are in bytes, times in seconds.

    Attributes:
        max_message_size: of one request message, also once it is decompressed.
        max_receive_memory: of the request messages of all calls together, from their first byte until they are
            answered.
        max_header_size: of one call's headers, each with 32 more (RFC 9113, 6.5.2).
        max_concurrent_streams: calls in progress; others are refused, and may be tried again.
        stream_window, connection_window: what a peer may send before it is read.
        max_stream_resets: per second; a peer that opens calls only to reset them is cut off.
        max_control_frames: per second, of frames that carry nothing of a call and calls too many; a peer that sends
            more is cut off.
        handshake_timeout: for TLS, and then for HTTP/2.
        receive_timeout: without progress of a request message that has begun.
        send_timeout: without progress of a response message.
        max_connection_age: after which a connection takes no more calls.
        max_connection_age_grace: how long its calls may still go on then.
        max_connection_idle: without calls, after which a connection is closed.
    """

    max_message_size: int = 2**31 - 1
    max_receive_memory: int = 2**32
    max_header_size: int = 16384
    max_concurrent_streams: int = 1024
    stream_window: int = 1 << 20
    connection_window: int = 1 << 24
    max_stream_resets: int = 1000
    max_control_frames: int = 10_000
    handshake_timeout: float = 20.0
    receive_timeout: float = 60.0
    send_timeout: float = 60.0
    max_connection_age: float = math.inf
    max_connection_age_grace: float = math.inf
    max_connection_idle: float = 3600.0
    keepalive: Keepalive = field(default_factory=Keepalive)


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """`port` 0 takes any free one.

    Attributes:
        reuse_port: other processes may listen on the same port.
        tls: for `ALPN_PROTOCOL` (RFC 9113, 3.3), which clients must agree on; None serves without.
        max_connections: open at one time; others are turned away.
        max_in_flight_per_stream: requests of one ModelStreamInfer stream that are read and not yet answered.
        compression_level: of zlib, for responses to inference requests; 0 leaves them as they are.
        threads: that compress and decompress at one time.
        has_fast_path: plain inference is served from callbacks, without a task. False gives each request a task; the
            answers are the same.
    """

    host: str = "0.0.0.0"
    port: int = 8001
    reuse_port: bool = False
    tls: ssl.SSLContext | None = None
    max_connections: int = 1000
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_in_flight_per_stream: int = 128
    compression_level: int = 0
    threads: int = 4
    has_fast_path: bool = True
