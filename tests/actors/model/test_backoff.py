"""How long a restart waits, after lives of all kinds."""

from __future__ import annotations

import pytest

from actors.model.backoff import RestartBackoff

# Of each life how long it was, and whether it has worked.
IDLE, WORKED, LONG = (1.0, False), (0.1, True), (60.0, False)


@pytest.mark.parametrize(
    ("lives", "delays"),
    [
        ([IDLE] * 9, [0.5, 1, 2, 4, 8, 16, 30, 30, 30]),
        ([WORKED], [0]),
        ([LONG], [0]),
        ([IDLE, IDLE, WORKED, IDLE], [0.5, 1, 0, 0.5]),
        ([IDLE, IDLE, LONG, IDLE], [0.5, 1, 0, 0.5]),
        ([(0.0, True)] * 23, [0.0] * 20 + [1, 1, 1]),
        ([(1.0, True)] * 100, [0.0] * 100),
        ([(0.5, True)] * 60, [0.0] * 39 + [0.5] * 21),
        ([(0.0, True)] * 21 + [LONG] + [(0.0, True)] * 20, [0.0] * 20 + [1] + [0.0] * 20 + [1]),
    ],
)
def test_delays(lives: list[tuple[float, bool]], delays: list[float]) -> None:
    """Each life begins when the wait for it has ended."""
    backoff, now, found = RestartBackoff(), 1000.0, []
    for seconds, has_worked in lives:
        born, now = now, now + seconds
        found.append(backoff.delay(now=now, born=born, has_worked=has_worked))
        now += found[-1]
    assert found == pytest.approx(delays)
