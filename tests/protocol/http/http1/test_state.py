"""Every legal move of HTTP/1's table is made by what a client sends or a driver does; every other one raises."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.http.http1.events import Signal
from protocol.http.http1.protocol import Http1Protocol
from protocol.http.http1.state import MOVES, IllegalMove, Move, State, after

DATE = b"date: now\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


class Recorded(Http1Protocol):
    """Notes each move that it makes."""

    def __init__(self) -> None:
        super().__init__(1000)
        self.moves: list[tuple[State, Move]] = []

    def move(self, move: Move) -> None:
        before = self.state
        super().move(move)
        self.moves.append((before, move))


def take(protocol: Recorded, data: bytes) -> None:
    protocol.receive(data)
    while not isinstance(protocol.next_event(), Signal):
        pass


def respond(protocol: Recorded) -> None:
    protocol.begin_response(200, (), DATE, 0)


def respond_last(protocol: Recorded) -> None:
    protocol.closes = True
    respond(protocol)


def refuse(protocol: Recorded) -> None:
    protocol.begin_refusal(400, (), DATE, 0)


def end_behind_the_last(protocol: Http1Protocol) -> None:
    protocol.receive(b"")
    protocol.end_response()


def end_behind_more(protocol: Recorded) -> None:
    protocol.receive(b"more")
    protocol.end_exchange()


def switch(protocol: Recorded) -> None:
    protocol.buffer = b""
    protocol.receive(b"PRI * HTTP/2.0\r\n\r\n")
    protocol.next_event()


def at(*steps: Callable[[Recorded], None]) -> Recorded:
    protocol = Recorded()
    for step in steps:
        step(protocol)
    return protocol


def get(protocol: Recorded) -> None:
    take(protocol, GET)


def head(protocol: Recorded) -> None:
    take(protocol, b"GET / HT")


def post(protocol: Recorded) -> None:
    take(protocol, POST)


# How each state is reached.
WAYS: dict[State, tuple[Callable[[Recorded], None], ...]] = {
    State.IDLE: (),
    State.HEAD: (head,),
    State.BODY: (post,),
    State.AWAITING: (get,),
    State.RESPONDING: (get, respond),
    State.CLOSING: (get, respond_last),
    State.REFUSING: (head, refuse),
    State.LINGERING: (post, Http1Protocol.end_exchange),
    State.CLOSED: (Http1Protocol.lose,),
    State.SWITCHED: (switch,),
}


def end_of(data: bytes) -> Callable[[Recorded], None]:
    return lambda protocol: take(protocol, data)


# What makes each move.
CAUSES: dict[tuple[State, Move], Callable[[Recorded], None]] = {
    (State.IDLE, Move.REQUEST_BEGUN): head,
    (State.IDLE, Move.REQUEST_READ): lambda protocol: protocol.move(Move.REQUEST_READ),  # the fast path's
    (State.IDLE, Move.REFUSED): refuse,
    (State.IDLE, Move.ENDED): Http1Protocol.end,
    (State.HEAD, Move.HEAD_READ): end_of(b"TP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"),
    (State.HEAD, Move.REQUEST_READ): end_of(b"TP/1.1\r\nHost: x\r\n\r\n"),
    (State.HEAD, Move.PROTOCOL_SWITCHED): switch,
    (State.HEAD, Move.REFUSED): refuse,
    (State.BODY, Move.REQUEST_READ): end_of(b"ab"),
    (State.BODY, Move.LAST_RESPONSE_BEGUN): respond,
    (State.BODY, Move.LINGERED): Http1Protocol.end_exchange,
    (State.AWAITING, Move.RESPONSE_BEGUN): respond,
    (State.AWAITING, Move.LAST_RESPONSE_BEGUN): respond_last,
    (State.AWAITING, Move.LINGERED): end_behind_more,
    (State.AWAITING, Move.ENDED): Http1Protocol.end_exchange,
    (State.RESPONDING, Move.RESPONSE_SENT): Http1Protocol.end_response,
    (State.RESPONDING, Move.LINGERED): end_behind_more,
    (State.RESPONDING, Move.ENDED): Http1Protocol.end_exchange,
    (State.CLOSING, Move.LINGERED): end_behind_more,
    (State.CLOSING, Move.ENDED): end_behind_the_last,
    (State.REFUSING, Move.LINGERED): Http1Protocol.end_response,
    (State.LINGERING, Move.ENDED): Http1Protocol.end,
    **{(state, Move.LOST): Http1Protocol.lose for state in State if state is not State.CLOSED},
}


@pytest.mark.parametrize("state", State)
def test_every_state_is_reached(state: State) -> None:
    assert at(*WAYS[state]).state is state


@pytest.mark.parametrize(("state", "move"), [*product(State, Move)], ids=lambda each: each.name)
def test_every_move_is_in_the_table_or_raises(state: State, move: Move) -> None:
    protocol = at(*WAYS[state])
    if (state, move) in MOVES:
        CAUSES[state, move](protocol)
        assert (state, move) in protocol.moves
        return
    with pytest.raises(IllegalMove, match=f"{move.name} while {state.name}"):
        protocol.move(move)
    assert protocol.state is state


CALLS: dict[str, Callable[[Recorded], object]] = {
    "some of a head": lambda protocol: protocol.receive(GET[:10]),
    "a request": lambda protocol: protocol.receive(GET),
    "a head": lambda protocol: protocol.receive(POST),
    "a body": lambda protocol: protocol.receive(b"ab"),
    "garbage": lambda protocol: protocol.receive(b"\0"),
    "the end of input": lambda protocol: protocol.receive(b""),
    "next event": Http1Protocol.next_event,
    "more events": lambda protocol: [protocol.next_event() for _ in range(3)],
    "response": respond,
    "last response": respond_last,
    "response in chunks": lambda protocol: protocol.begin_response(200, (), DATE),
    "refusal": refuse,
    "end of response": Http1Protocol.end_response,
    "end of exchange": Http1Protocol.end_exchange,
    "end": Http1Protocol.end,
    "lose": Http1Protocol.lose,
}


@given(st.lists(st.sampled_from(sorted(CALLS)), max_size=30))
def test_no_calls_in_any_order_leave_the_table(calls: list[str]) -> None:
    """What cannot be done raises, and changes nothing of where the exchange is."""
    protocol = Recorded()
    for call in calls:
        before, made = protocol.state, len(protocol.moves)
        try:
            CALLS[call](protocol)
        except IllegalMove:
            assert protocol.state is (before if len(protocol.moves) == made else after(*protocol.moves[-1]))
        for state, move in protocol.moves[made:]:
            assert state is before
            before = MOVES[state, move]
        assert protocol.state is before
