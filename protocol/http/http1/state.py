"""States of an HTTP/1 connection, server side, and the table of legal transitions.

A request is read and a response is written, one exchange after the other; requests that are pipelined wait in the
buffer. Pure.
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """The state of the current exchange."""

    __hash__ = object.__hash__  # there is one object of each, and `Enum` would hash its name in Python

    IDLE = auto()  # between two requests
    HEAD = auto()  # a request has begun, and its head is not taken yet
    BODY = auto()  # the head is read, and the body is not
    AWAITING = auto()  # the request is read; its response has not begun
    RESPONDING = auto()  # the response has begun, and another request may follow it
    CLOSING = auto()  # the response has begun, and says that it is the last one
    REFUSING = auto()  # as CLOSING, for a request that is not read whole and never will be
    LINGERING = auto()  # all has been said, but the client may be sending still: it is to close first
    CLOSED = auto()  # nothing more is sent or read
    SWITCHED = auto()  # HTTP/2 follows


class Move(Enum):
    """A transition: what happens on the connection."""

    __hash__ = object.__hash__

    REQUEST_BEGUN = auto()
    HEAD_READ = auto()  # of a request with a body
    REQUEST_READ = auto()
    PROTOCOL_SWITCHED = auto()
    RESPONSE_BEGUN = auto()
    LAST_RESPONSE_BEGUN = auto()
    REFUSED = auto()  # a response has begun to what is no request
    RESPONSE_SENT = auto()
    LINGERED = auto()  # no exchange follows, and some of what the client sends is not read
    ENDED = auto()  # no exchange follows, in good order
    LOST = auto()  # the client has left before its request was whole, or the connection broke


# Bound once, in their order: to look one up in its enumeration takes long before Python 3.12.
IDLE, HEAD, BODY, AWAITING, RESPONDING, CLOSING, REFUSING, LINGERING, CLOSED, SWITCHED = State
(
    REQUEST_BEGUN,
    HEAD_READ,
    REQUEST_READ,
    PROTOCOL_SWITCHED,
    RESPONSE_BEGUN,
    LAST_RESPONSE_BEGUN,
    REFUSED,
    RESPONSE_SENT,
    LINGERED,
    ENDED,
    LOST,
) = Move


class IllegalMove(Exception):
    """A transition that is not in the table: a defect of the driver."""

    def __init__(self, state: State, move: Move) -> None:
        super().__init__(f"no {move.name} while {state.name}")


MOVES: dict[tuple[State, Move], State] = {
    (State.IDLE, Move.REQUEST_BEGUN): State.HEAD,
    (State.IDLE, Move.REQUEST_READ): State.AWAITING,  # a whole request in one piece
    (State.IDLE, Move.REFUSED): State.REFUSING,
    (State.IDLE, Move.ENDED): State.CLOSED,
    (State.HEAD, Move.HEAD_READ): State.BODY,
    (State.HEAD, Move.REQUEST_READ): State.AWAITING,
    (State.HEAD, Move.PROTOCOL_SWITCHED): State.SWITCHED,
    (State.HEAD, Move.REFUSED): State.REFUSING,
    (State.BODY, Move.REQUEST_READ): State.AWAITING,
    (State.BODY, Move.LAST_RESPONSE_BEGUN): State.REFUSING,
    (State.BODY, Move.LINGERED): State.LINGERING,
    (State.AWAITING, Move.RESPONSE_BEGUN): State.RESPONDING,
    (State.AWAITING, Move.LAST_RESPONSE_BEGUN): State.CLOSING,
    (State.AWAITING, Move.LINGERED): State.LINGERING,
    (State.AWAITING, Move.ENDED): State.CLOSED,
    (State.RESPONDING, Move.RESPONSE_SENT): State.IDLE,
    (State.RESPONDING, Move.LINGERED): State.LINGERING,
    (State.RESPONDING, Move.ENDED): State.CLOSED,
    (State.CLOSING, Move.LINGERED): State.LINGERING,
    (State.CLOSING, Move.ENDED): State.CLOSED,
    (State.REFUSING, Move.LINGERED): State.LINGERING,
    (State.LINGERING, Move.ENDED): State.CLOSED,
    **{(state, Move.LOST): State.CLOSED for state in State if state is not State.CLOSED},
}


def after(state: State, move: Move) -> State:
    """The state that the move leads to.

    Raises:
        IllegalMove: it is not in the table.
    """
    try:
        return MOVES[state, move]
    except KeyError:
        raise IllegalMove(state, move) from None
