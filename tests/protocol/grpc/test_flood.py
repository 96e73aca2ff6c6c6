"""Counting events in a second."""

from __future__ import annotations

import pytest

from protocol.grpc.flood import Rate

CASES: list[tuple[int, list[float], list[bool]]] = [
    (2, [0, 0, 0], [False, False, True]),
    (2, [0, 0.5, 1.0], [False, False, True]),
    (2, [0, 0.9, 1.1, 1.2, 1.3], [False, False, False, False, True]),
    (1, [0, 2, 4, 6], [False] * 4),
    (0, [0], [True]),
]


@pytest.mark.parametrize(("limit", "times", "expected"), CASES)
def test_too_many_in_a_second(limit: int, times: list[float], expected: list[bool]) -> None:
    rate = Rate(limit)
    assert [rate.exceeds(now) for now in times] == expected
