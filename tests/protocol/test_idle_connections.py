"""What connections hold while they idle: objects without dictionaries.

Ten thousand should fit in 200 MB of the server; `python -m tests.bench.idle_connections` measures that.
"""

from __future__ import annotations

import pytest

from protocol.grpc.connection.call_tasks import CallTasks
from protocol.grpc.connection.calls import Calls
from protocol.grpc.connection.connection import Connection as GrpcConnection
from protocol.grpc.connection.direct_calls import DirectCalls
from protocol.grpc.connection.keepalive import Lifetime, PingPolice
from protocol.grpc.connection.outgoing import Outgoing
from protocol.http.connection import Connection as HttpConnection
from protocol.http.http1.connection import Http1
from protocol.http.http1.fast_path import FastPath
from protocol.http.http2.connection import Http2Connection
from protocol.http.http2.output import HttpOutput
from protocol.http.http2.streams import Http2Streams
from protocol.http2.connection import ServerConnection
from protocol.http2.driver import ConnectionDriver
from protocol.http2.flood_limits import FloodLimits
from protocol.http2.reader import Http2Reader
from protocol.http2.response_headers import ResponseHeaders
from protocol.http2.writer import Writer
from protocol.reactor.tls_wire import TlsWire
from protocol.reactor.transport import PlainWire

OF_EACH_CONNECTION = (
    CallTasks,
    Calls,
    ConnectionDriver,
    DirectCalls,
    FastPath,
    FloodLimits,
    GrpcConnection,
    Http1,
    Http2Connection,
    Http2Reader,
    Http2Streams,
    HttpConnection,
    HttpOutput,
    Lifetime,
    Outgoing,
    PingPolice,
    PlainWire,
    ResponseHeaders,
    ServerConnection,
    TlsWire,
    Writer,
)


@pytest.mark.parametrize("kind", OF_EACH_CONNECTION)
def test_what_each_connection_has_needs_no_dictionary(kind: type) -> None:
    assert not hasattr(object.__new__(kind), "__dict__")
