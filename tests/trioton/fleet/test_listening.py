"""Where replicas listen."""

from __future__ import annotations

from trioton.fleet.listening import free_address


def test_ports_that_are_given_are_those_of_their_service() -> None:
    address = free_address("127.0.0.1", 0, 9, 0)
    assert (address.host, address.grpc_port) == ("127.0.0.1", 9)
    assert len({address.http_port, address.grpc_port, address.metrics_port}) == 3
