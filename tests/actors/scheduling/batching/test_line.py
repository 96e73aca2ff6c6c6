"""The lines of requests, plain and by rank."""

from __future__ import annotations

import random

import pytest

from actors.mail.messages import QueuedRequest
from actors.scheduling.batching.line import BatchLine, PlainLine, RankedLine, rank_of
from tests.actors.fakes import Caller


def items(count: int) -> list[QueuedRequest]:
    return [Caller(arrival=float(number)).item for number in range(count)]


@pytest.mark.parametrize("kind", [PlainLine, RankedLine])
def test_without_ranks_it_is_a_queue_from_which_any_can_be_taken(kind: type[PlainLine] | type[RankedLine]) -> None:
    line: BatchLine = kind()
    first, second, third, fourth = waiting = items(4)
    for item in waiting:
        line.add(item, 0)
    assert list(line) == waiting
    assert line.discard(second)
    assert not line.discard(second)
    assert (len(line), line.place()[2], line.oldest()) == (3, 0.0, 0.0)
    assert line.take(1) == [first]
    assert line.take(2) == [third, fourth]
    assert (len(line), bool(line), list(line)) == (0, False, [])


def test_a_lower_rank_goes_first_and_the_oldest_may_be_in_any() -> None:
    line = RankedLine()
    first, second, third = items(3)
    line.add(first, 5)
    line.add(second, 2)
    line.add(third, 2)
    assert list(line) == [second, third, first]
    assert (line.place(), line.oldest()) == ((2, 0.0, 1.0), 0.0)
    assert line.take(2) == [second, third]
    assert line.place() == (5, 0.0, 0.0)
    assert line.discard(first)
    assert not line


def test_the_oldest_of_late_requests_need_not_be_their_first() -> None:
    line = RankedLine()
    older, younger, fresh = items(3)
    line.add(younger, rank_of(1, is_late=True))
    line.add(older, rank_of(1, is_late=True))
    line.add(fresh, rank_of(1))
    assert list(line) == [fresh, younger, older]
    assert line.oldest() == older.arrival


def test_a_ranked_line_is_a_stable_sort_of_what_is_in_it() -> None:
    """Adding and taking out at random, against a plain list."""
    rng = random.Random(7)
    line, model = RankedLine(), list[tuple[int, int, QueuedRequest]]()
    for number, item in enumerate(items(400)):
        rank = rng.randrange(4)
        line.add(item, rank)
        model.append((rank, number, item))
        model.sort(key=lambda entry: entry[:2])
        match rng.randrange(4):
            case 0:
                gone = model.pop(rng.randrange(len(model)))
                assert line.discard(gone[2])
            case 1:
                count = rng.randrange(len(model) + 1)
                assert line.take(count) == [entry[2] for entry in model[:count]]
                del model[:count]
        assert list(line) == [entry[2] for entry in model]
        assert len(line) == len(model)
