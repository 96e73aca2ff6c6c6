"""What lies unread between a load generator and a server, of real sockets."""

from __future__ import annotations

import socket

from tests.bench.stuck import unread


def test_it_says_which_side_does_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as server:
            assert unread(port).startswith("1 connections, 0 with")
            client.sendall(b"request")
            assert unread(port).startswith("1 connections, 1 with")
            server.recv(100)
            server.sendall(b"answer")
            assert unread(port).endswith("has not read, 1 with something that its client has not")
            client.recv(100)
            assert unread(port).endswith("has not read, 0 with something that its client has not")
    assert unread(port).startswith("0 connections")
