"""Open connections are counted as long as their listener listens."""

from __future__ import annotations

from protocol.open_connections import Open, OpenConnections


def test_listeners_of_one_protocol_count_together() -> None:
    connections = OpenConnections()
    with connections.of("http", lambda: Open(2, 1)), connections.of("grpc", lambda: Open(1, 5)):
        with connections.of("http", lambda: Open(3, 4)):
            assert connections.counts() == {"http": Open(5, 5), "grpc": Open(1, 5)}
        assert connections.counts()["http"] == Open(2, 1)
    assert connections.counts() == {}
