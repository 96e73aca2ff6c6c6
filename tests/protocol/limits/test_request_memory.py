"""What all requests in flight hold, and who is refused."""

from __future__ import annotations

import pytest

from protocol.errors import Overloaded, PayloadTooLarge
from protocol.limits.request_memory import RequestMemory, RequestShare


def test_a_share_counts_until_its_request_has_ended() -> None:
    memory = RequestMemory(100)
    with RequestShare(memory) as share:
        share.take(60)
        share.take(40)
        assert (memory.held, memory.left, share.size) == (100, 0, 100)
        share.give(30)
        assert memory.left == 30
    assert memory.held == 0


def test_one_request_too_many_is_told_to_come_again() -> None:
    """What it already holds counts until it ends, as for others."""
    memory = RequestMemory(100)
    refusals: list[str] = []
    with RequestShare(memory) as first:
        first.take(70)
        with RequestShare(memory, lambda: refusals.append("second")) as second:
            second.take(20)
            with pytest.raises(Overloaded, match=r"hold the 100 bytes .* Use --max-request-memory"):
                second.take(11)
            assert memory.held == 90
        assert memory.held == 70
    assert refusals == ["second"]


def test_a_request_that_never_fits_is_too_large() -> None:
    memory = RequestMemory(100, "each edge process")
    with RequestShare(memory) as share:
        share.take(60)
        text = "the request of 101 bytes is larger than the 100 bytes that each edge process holds"
        with pytest.raises(PayloadTooLarge, match=text):
            share.take(41)
