"""How many requests of jobs go along with live ones, by what that has cost these."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.jobs.live_times import MANY
from actors.jobs.pace import PIECES
from actors.jobs.riding import LATE, MOST_CREDIT, MOST_DEBT, Riding

Seconds = Callable[[int], float]
ROOM = 7


class OneClient:
    """Asks again as soon as it is answered; what may go along does."""

    def __init__(self, seconds: Seconds) -> None:
        self.riding, self.seconds, self.now = Riding(), seconds, 0.0

    def rounds(self, count: int) -> list[int]:
        """How many went with each request."""
        went = []
        for _ in range(count):
            along = self.riding.beside(1, ROOM, ROOM + 1, self.now, is_running=False)
            if along:
                self.riding.went(self.now)
            began, self.now = self.now, self.now + self.seconds(1 + along)
            self.riding.ran(began, self.now, [began], 1, along)
            went.append(along)
        return went


def test_nothing_goes_before_anything_is_known() -> None:
    assert set(OneClient(lambda rows: 0.05).rounds(20)) == {0}


def test_a_model_that_takes_as_long_for_a_full_batch_takes_along_what_there_is_room_for() -> None:
    went = OneClient(lambda rows: 0.05).rounds(400)
    assert sorted(went[100:])[50] == ROOM
    assert min(went[100:]) == 0  # now and then it is looked what a batch takes without


def test_of_a_model_that_takes_as_long_for_each_few_live_requests_wait() -> None:
    went = OneClient(lambda rows: 0.01 * rows).rounds(5000)
    late = sum(map(bool, went))
    assert 1 <= late <= 5000 * LATE + MOST_CREDIT
    assert max(went) == 1


def test_what_goes_along_adds_a_part_at_most() -> None:
    went = OneClient(lambda rows: 0.1 + 0.01 * rows).rounds(1000)
    assert sorted(went[200:])[400] == 1


def test_it_is_seen_when_the_model_takes_another_time_and_when_it_is_as_before() -> None:
    client = OneClient(lambda rows: 0.05)
    client.rounds(300)
    client.seconds = lambda rows: 0.05 * rows
    client.rounds(600)
    assert sum(map(bool, client.rounds(2000))) <= 2000 * LATE + MOST_CREDIT
    client.seconds = lambda rows: 0.05
    client.rounds(2000)
    assert ROOM in client.rounds(20)


def of_quick() -> Riding:
    """Of a model whose live requests take 0.2 ms."""
    riding, now = Riding(), 0.0
    for number in range(2 * MANY):
        riding.ran(now, now + 0.0002, [now], 1, number % 4)
        now += 0.0002
    return riding


def test_of_a_quick_model_many_go_at_a_time_and_seldom() -> None:
    """One would make those late that meet it; so may many. In their batch none is seen to be, which is given back."""
    riding, now, went, rounds = of_quick(), 100.0, [], 20_000
    for _ in range(rounds):
        if along := riding.beside(1, 63, 64, now, is_running=False):
            riding.went(now)
            went.append(along)
        riding.ran(now, now + 0.0002, [now], 1, along)
        now += 0.0003
    assert min(went) > 30
    assert 1 <= (PIECES - 1) * len(went) <= rounds * LATE + MOST_CREDIT + PIECES


def test_the_more_live_requests_there_are_the_fewer_starts_are_paid_for() -> None:
    def price(live: int) -> float:
        riding = of_quick()
        riding._credit = MOST_CREDIT
        assert riding.beside(live, 63, 64, 100.0, is_running=False)
        riding.went(100.0)
        return MOST_CREDIT - riding._credit

    assert price(4) == pytest.approx(4 * price(1))


def test_rows_of_another_model_have_a_price_too() -> None:
    riding = of_quick()
    riding._credit = MOST_CREDIT
    assert riding.aside(8, 1, 100.0) == 8
    riding.went(100.0)
    assert riding._credit == pytest.approx(MOST_CREDIT - PIECES)
    riding._credit = 0.0
    assert riding.aside(8, 1, 101.0) == 0
    slow = OneClient(lambda rows: 0.05)
    slow.rounds(100)
    assert slow.riding.aside(8, 1, slow.now) == 8
    assert slow.riding.is_free


def test_one_at_a_time_goes_to_another_while_nothing_is_known() -> None:
    assert Riding().aside(8, 1, 0.0) == 1


def test_what_live_requests_take_beside_rows_says_nothing_of_them() -> None:
    riding = of_quick()
    limit, now = riding.times.limit, 100.0
    for _ in range(1000):
        riding.ran(now, now + 0.002, [now], 1, 0, is_clean=False)
        now += 0.002
    assert riding.times.limit == limit


@pytest.mark.parametrize(("seconds", "most", "count"), [(0.01, 8, 7), (0.0, 8, 1), (0.01, 1, 1)])
def test_batches_of_jobs_alone_are_worthwhile(seconds: float, most: int, count: int) -> None:
    """`seconds` is what a batch takes of its own; with none, one row is as good as many."""
    client = OneClient(lambda rows: seconds or 0.01 * rows)
    client.rounds(400)
    assert client.riding.worthwhile(most) == count


def test_in_a_gap_rows_go_if_those_that_may_come_can_wait() -> None:
    client = OneClient(lambda rows: 0.01 * rows)
    client.rounds(400)
    assert client.riding.in_gap(8, 100.0, client.now) == 1
    client.riding._credit = 0.0
    assert client.riding.in_gap(8, 0.01, client.now) == 0


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 0.2), st.lists(st.floats(0.0, 1.0), max_size=8), st.integers(0, 8), st.floats(0.0, 0.05)
        ),
        max_size=120,
    ),
    st.integers(1, 20),
    st.integers(-8, 20),
)
def test_what_it_says_is_always_possible(
    batches: list[tuple[float, list[float], int, float]], live: int, room: int
) -> None:
    """Whatever a model has run: it never gives more than there is room for, and its account is bounded."""
    riding, now = Riding(), 0.0
    for seconds, ages, jobs, pause in batches:
        started, now = now + pause, now + pause + seconds
        riding.ran(started, now, [started - age for age in ages], len(ages), jobs)
        count = riding.beside(live, room, 8, now, is_running=bool(jobs))
        assert 0 <= count <= max(room, 8 if room <= 0 and not jobs else 0)
        if count:
            riding.went(now)
        assert riding.in_gap(8, pause, now) in range(9)
        riding.went(now)
        assert -MOST_DEBT <= riding._credit <= MOST_CREDIT


def test_what_goes_in_place_of_what_was_allowed_has_no_price() -> None:
    riding = of_quick()
    riding._credit = MOST_CREDIT
    assert riding.aside(8, 1, 100.0) == 8
    riding.withdraw()
    riding.went(100.0)
    assert riding._credit == MOST_CREDIT
