"""The ring: a bound in bytes, points by their time, and nothing where nothing was written."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from actors.console.ring import Ring


def test_points_are_read_by_their_time() -> None:
    ring = Ring(("a", "b"), step=1.0, size=4)
    ring.write((1, None), now=10.2)
    ring.write((2, 5), now=12.9)
    values = ring.read(ring.slots(12.9)).tolist()
    assert [row[0] for row in values[1::2]] == [1, 2]
    assert math.isnan(values[1][1])
    assert values[3][1] == 5
    assert all(math.isnan(value) for row in values[::2] for value in row)


def test_a_later_point_of_the_same_time_replaces_the_first() -> None:
    ring = Ring(("a",), step=5.0, size=3)
    ring.write((1,), now=5)
    ring.write((2,), now=9)
    assert ring.read(ring.slots(9)).tolist()[-1] == [2]


@given(st.lists(st.floats(0, 1e6), min_size=1).map(sorted))
def test_it_has_what_was_written_last_and_stays_as_large(times: list[float]) -> None:
    ring = Ring(("a",), step=1.0, size=8)
    size = ring.nbytes
    kept = {}
    for time in times:
        ring.write((time,), now=time)
        kept[int(time)] = time
    slots = ring.slots(times[-1])
    for slot, (value,) in zip(slots.tolist(), ring.read(slots).tolist(), strict=True):
        if slot in kept:
            assert math.isclose(value, kept[slot], rel_tol=1e-6, abs_tol=1e-6)
        else:
            assert math.isnan(value)
    assert ring.nbytes == size
