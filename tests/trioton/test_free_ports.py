"""Ports that are free: those that are given are kept, and all differ."""

from __future__ import annotations

import pytest

from trioton.free_ports import free_ports


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_ports_that_are_given_are_kept(host: str) -> None:
    ports = free_ports(host, (0, 9, 0))
    assert ports[1] == 9
    assert len(set(ports)) == 3
    assert all(ports)


def test_a_host_of_elsewhere() -> None:
    with pytest.raises(OSError, match="Cannot assign"):
        free_ports("192.0.2.1", (0,))
