"""Settings of the HTTP edge. Frozen values, read once when a listener starts."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

MEBIBYTE = 1024 * 1024
# How long a client has to read the last answer and to close its end, before the connection is closed under it.
GOODBYE_SECONDS = 2.0
# How long a connection without a request stays open when its server is stopping: a client whose last answer did not
# tell it to close may be sending the next request, and gets an answer to that.
LEAVE_SECONDS = 1.0

# Told the name of each limit that bites.
OnLimit: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds that hold for every connection of a listener, whatever it asks for.

    Attributes:
        backlog: connections that the kernel holds until they are accepted.
        max_connections: how many there may be; one more is answered 503 and closed.
        max_header_size: bytes of one request's line and headers; more is answered 431.
        max_concurrent_streams: requests in flight on one HTTP/2 connection; one more is answered 429.
        max_requests_per_connection: after so many the connection ends in good order; 0 sets no end.
        max_stream_resets: requests in a second that an HTTP/2 client may open only to give them up; one more ends the
            connection.
        max_control_frames: frames in a second that carry nothing of a request, and requests that are too many; one
            more ends the connection.
        max_connection_age: seconds, give or take a tenth, after which a connection takes no more requests than its
            client has sent by then, and over HTTP/1 one more.
        header_timeout: seconds that the headers of a request may take once they have begun; then 408. Also what a TLS
            handshake may take.
        idle_timeout: seconds that a connection may sit without a request.
        send_timeout: seconds without progress after which a client that does not read its response is cut off.
    """

    backlog: int = 1024
    max_connections: int = 1000
    max_header_size: int = 64 * 1024
    max_concurrent_streams: int = 128
    max_requests_per_connection: int = 0
    max_connection_age: float = math.inf
    max_stream_resets: int = 200
    max_control_frames: int = 1000
    header_timeout: float = 20.0
    idle_timeout: float = 75.0
    send_timeout: float = 60.0


class Interface(Enum):
    """What a listener serves: the inference protocol (KServe's, with Triton's extensions), OpenAI's, or both."""

    ALL = auto()
    INFERENCE = auto()
    OPENAI = auto()


@dataclass(frozen=True, slots=True)
class OpenAISettings:
    """The OpenAI interface.

    Attributes:
        strict: unknown fields are refused, with Triton's status and texts.
        default_max_tokens: the tokens of an answer whose request says nothing; None for all that the context has room
            for.
        lora_separator: what stands between the names of a model and of its adapter; empty where an adapter is named
            alone.
        sleep_mode: models may be put to sleep, and woken.
        keep_alive: seconds without an event of a stream after which a comment is sent.
        max_json_values: values of a large body, which are made in one go.
    """

    strict: bool = False
    default_max_tokens: int | None = None
    lora_separator: str = ""
    sleep_mode: bool = False
    keep_alive: float = 15.0
    max_json_values: int = 400_000


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
        max_file_size: bytes of a file that is uploaded.
        body_timeout: seconds that a request body may pause in all, beside a second for each KiB that has come; then
            it is answered 408.
        linger: seconds for which the rest of a refused body is read and dropped, so that the answer reaches a
            client that is still sending.
        connections: bounds of each connection.
        tls: serve HTTPS, with HTTP/2 by ALPN (see `connections.ALPN_PROTOCOLS`); None serves plain HTTP.
        reuse_port: let other processes listen on the same port.
        has_fast_path: plain inference is served from callbacks, without a task. False gives each request a task; the
            answers are the same.
        openai: the OpenAI interface, which is a part of it.
        interface: what is served.
        console: the live console is a part of it.
        metrics: `/metrics` is a part of it; OpenAI's interface alone has it in any case.
    """

    host: str = "0.0.0.0"
    port: int = 8000
    max_input_size: int = 64 * MEBIBYTE
    max_body_size: int = 2048 * MEBIBYTE
    max_file_size: int = 200 * MEBIBYTE
    body_timeout: float = 60.0
    linger: float = 5.0
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    tls: ssl.SSLContext | None = None
    reuse_port: bool = False
    has_fast_path: bool = True
    openai: OpenAISettings = field(default_factory=OpenAISettings)
    interface: Interface = Interface.ALL
    console: bool = False
    metrics: bool = False


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The metrics listener; `port` 0 takes any free port, and `tls` is as in `HttpSettings`."""

    host: str = "0.0.0.0"
    port: int = 8002
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    tls: ssl.SSLContext | None = None
