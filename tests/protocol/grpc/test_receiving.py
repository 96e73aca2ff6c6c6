"""The bound on what request messages hold."""

from __future__ import annotations

import trio

from protocol.grpc.receiving import ReceiveMemory


async def test_bytes_count_while_they_are_held() -> None:
    """Also those that pass the limit, until they are given back."""
    memory = ReceiveMemory(100, trio.CapacityLimiter(1))
    assert memory.take(60)
    assert memory.take(40)
    assert memory.left == 0
    assert not memory.take(1)
    assert memory.left == 0
    memory.give(61)
    assert memory.left == 60
    assert memory.take(60)


async def test_the_refusal_names_the_limit() -> None:
    assert "limit of 100 bytes" in ReceiveMemory(100, trio.CapacityLimiter(1)).refusal().message
