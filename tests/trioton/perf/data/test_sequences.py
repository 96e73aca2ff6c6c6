"""Sequences: order, ids, lengths and ends, whatever becomes of their calls."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioton.perf.caller import Call, DataError, Part, Payload, Result
from trioton.perf.data.sequences import Sequences, SequenceSource, share_of

STEP = [Payload()]


def source(streams: list[list[Payload]] | None = None, part: Part = Part(), **more: Any) -> SequenceSource:  # noqa: B008
    is_generated = more.pop("is_generated", False)
    return SequenceSource(
        streams or [STEP], lambda payload: payload, Sequences(**more), part=part, is_generated=is_generated
    )


def end(found: SequenceSource, call: Call, error: str = "", is_cancelled: bool = False) -> None:
    found.ended(Result(call, 0, 0, 0, 0, error=error, is_cancelled=is_cancelled))


def taken(found: SequenceSource) -> Call:
    call = found.take()
    assert call is not None
    return call


def flags(call: Call) -> tuple[int, bool, bool]:
    return call.data.sequence_id, call.data.sequence_start, call.data.sequence_end


def run(found: SequenceSource, count: int) -> list[tuple[int, bool, bool]]:
    """One call at a time."""
    seen = []
    for _ in range(count):
        call = taken(found)
        seen.append(flags(call))
        end(found, call)
    return seen


def test_a_sequence_is_as_long_as_its_stream() -> None:
    found = source([STEP * 3, STEP])
    assert run(found, 5) == [
        (1, True, False),
        (1, False, False),
        (1, False, True),
        (2, True, True),
        (3, True, False),
    ]


def test_a_length_goes_round_the_stream() -> None:
    stream = [Payload(id="a"), Payload(id="b")]
    found = source([stream], length=3, variation=0)
    names = []
    for _ in range(4):
        call = taken(found)
        names.append(call.data.id)
        end(found, call)
    assert names == ["a", "b", "a", "a"]


def test_lengths_vary() -> None:
    found = source(is_generated=True, length=10, variation=0.2)
    seen = run(found, 2000)
    lengths = [sum(each[0] == number for each in seen) for number in range(1, seen[-1][0])]
    assert set(lengths) == {8, 9, 10, 11, 12}


def test_no_step_before_the_answer_to_the_one_before() -> None:
    found = source([STEP * 3], active=2)
    first, second = taken(found), taken(found)
    assert found.take() is None
    end(found, second)
    assert flags(taken(found)) == (second.data.sequence_id, False, False)
    assert found.take() is None
    end(found, first)
    assert flags(taken(found)) == (first.data.sequence_id, False, False)


def test_as_many_as_are_in_flight() -> None:
    found = source([STEP * 3])
    assert [taken(found).data.sequence_id for _ in range(50)] == list(range(1, 51))


@pytest.mark.parametrize("how", [{"error": "no"}, {"is_cancelled": True}])
def test_a_call_that_fails_ends_its_sequence(how: dict[str, Any]) -> None:
    found = source([STEP * 3], active=1)
    end(found, taken(found), **how)
    assert flags(taken(found)) == (2, True, False)


def test_ids_of_a_range_are_taken_again_when_they_are_free() -> None:
    found = source(first_id=5, end_id=7)
    first, second = taken(found), taken(found)
    assert found.take() is None
    end(found, second)
    assert flags(taken(found)) == (6, True, True)
    end(found, first)
    assert flags(taken(found)) == (5, True, True)


def test_a_range_that_is_too_small() -> None:
    with pytest.raises(DataError, match="3 sequences at a time need as many ids, got 5 to 6"):
        source(first_id=5, end_id=7, active=3)


def test_senders_share_sequences_and_ids() -> None:
    ids = []
    for index in range(3):
        found = source([STEP * 2], part=Part(index, 3), active=5)
        while (call := found.take()) is not None:
            ids.append(call.data.sequence_id)
    assert len(ids) == len(set(ids)) == 5
    assert sum(share_of(5, Part(index, 3)) for index in range(3)) == 5


def test_there_is_nothing_to_send() -> None:
    with pytest.raises(DataError, match="no request to send"):
        source([[]])


@given(st.randoms(use_true_random=False), st.integers(0, 4), st.integers(0, 3))
def test_a_server_sees_sequences_that_are_in_order(drawn: random.Random, active: int, failing: int) -> None:
    """Whatever the order of answers, each id goes from start to end, one call at a time."""
    found = source([STEP * 3, STEP, STEP * 2], active=active, end_id=10)
    in_flight: list[Call] = []
    steps: defaultdict[int, int] = defaultdict(int)
    for _ in range(200):
        call = found.take() if drawn.random() < 0.6 else None
        if call is not None:
            number, is_start, is_end = flags(call)
            assert is_start == (steps[number] == 0)
            assert number not in {other.data.sequence_id for other in in_flight}
            in_flight.append(call)
            steps[number] = 0 if is_end else steps[number] + 1
        elif in_flight:
            call = in_flight.pop(drawn.randrange(len(in_flight)))
            has_failed = drawn.randrange(10) < failing
            if has_failed:
                steps[call.data.sequence_id] = 0
            end(found, call, "no" if has_failed else "")
    assert len(in_flight) <= (active or 9)
