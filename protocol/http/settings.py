"""What an operator may set on the HTTP edge. Frozen values, read once when a listener starts."""

from __future__ import annotations

from dataclasses import dataclass, field

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds that hold for every connection of a listener, whatever it asks for.

    Attributes:
        backlog: connections that the kernel holds until they are accepted.
        max_header_size: bytes of one request's line and headers; more is answered 431.
        keep_alive_timeout: seconds that a connection may sit without a request, or take over its headers.
        send_timeout: seconds without progress after which a client that does not read its response is cut off.
    """

    backlog: int = 1024
    max_header_size: int = 64 * 1024
    keep_alive_timeout: float = 75.0
    send_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The main HTTP service.

    Attributes:
        host: address or host name to listen on.
        port: 0 takes any free port.
        max_input_size: bytes of a request's JSON part, of one tensor given as JSON, and of a body once it is
            decompressed (Triton's `--http-max-input-size`).
        max_body_size: bytes of a whole request body on the wire. It bounds what `max_input_size` leaves open: the
            binary tensors behind the JSON part of an inference request.
        body_timeout: seconds without a byte after which an unfinished request body is answered 408.
        linger: seconds for which the rest of a refused body is read and dropped, so that the answer reaches a
            client that is still sending.
        connections: bounds of each connection.
    """

    host: str = "0.0.0.0"
    port: int = 8000
    max_input_size: int = 64 * MEBIBYTE
    max_body_size: int = 2048 * MEBIBYTE
    body_timeout: float = 60.0
    linger: float = 5.0
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The metrics listener; `port` 0 takes any free port."""

    host: str = "0.0.0.0"
    port: int = 8002
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
