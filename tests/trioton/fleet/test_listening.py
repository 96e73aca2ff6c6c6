"""Free ports for replicas."""

from __future__ import annotations

import pytest

from trioton.fleet.listening import free_address


def test_ports_that_are_given_are_kept() -> None:
    address = free_address("127.0.0.1", 0, 9, 0)
    assert address.grpc_port == 9
    assert len({address.http_port, address.grpc_port, address.metrics_port}) == 3
    with pytest.raises(OSError, match="Cannot assign"):
        free_address("192.0.2.1", 0, 0, 0)
