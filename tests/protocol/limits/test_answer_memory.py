"""Responses that wait for their clients: one connection leaves others room, and each goes on."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Overloaded
from protocol.limits.answer_memory import SMALL, AnswerMemory
from protocol.limits.request_memory import LIMIT_NAME, RequestMemory

LIMIT = 100 * SMALL


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, LIMIT), st.booleans()), max_size=60))
def test_accounts_agree_and_each_connection_may_have_one(steps: list[tuple[int, int, bool]]) -> None:
    server = RequestMemory(LIMIT)
    connections = [AnswerMemory(server) for _ in range(3)]
    taken: list[list[int]] = [[], [], []]
    for number, size, takes in steps:
        connection, sizes = connections[number], taken[number]
        if not takes:
            if sizes:
                connection.give(sizes.pop(0))
        else:
            with suppress(Overloaded):
                connection.take(size)
                sizes.append(size)
            assert sizes, "a connection that holds nothing goes on"
        assert [each.held for each in connections] == [sum(each) for each in taken]
        assert server.held == sum(map(sum, taken))


def test_a_connection_alone_holds_half() -> None:
    refusals: list[str] = []
    server = RequestMemory(LIMIT)
    connection = AnswerMemory(server, refusals.append)
    for _ in range(25):
        connection.take(2 * SMALL)
    with pytest.raises(Overloaded, match="would wait behind 819200 bytes that the client has not read"):
        connection.take(2 * SMALL)
    assert connection.held == LIMIT // 2
    assert refusals == [LIMIT_NAME]
    AnswerMemory(server).take(LIMIT // 2)  # another one's first
    connection.take(SMALL)  # as small as an error


def test_of_several_each_leaves_as_much_as_it_holds() -> None:
    server = RequestMemory(LIMIT)
    connections = [AnswerMemory(server) for _ in range(4)]
    for _ in range(200):
        for connection in connections:
            with suppress(Overloaded):
                connection.take(SMALL + 1)
    assert all(connection.held == pytest.approx(LIMIT / 5, abs=2 * SMALL) for connection in connections)
