"""Events of the HTTP/1 state machine: what the bytes of a client mean."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from protocol.errors import ServerError
from protocol.http.head import Head


class Signal(Enum):
    NEEDS_DATA = auto()  # nothing more can be said without more bytes, or the end of input
    END_OF_REQUEST = auto()  # behind the content of a body; a head without a body is a whole request
    PAUSED = auto()  # bytes of a further request are there, which is read behind the present exchange
    HALF_CLOSED = auto()  # the client sends nothing more, and waits for its responses
    CLIENT_GONE = auto()  # the end of input, where no response is awaited


# Bound once, in their order: to look one up in its enumeration takes long before Python 3.12.
NEEDS_DATA, END_OF_REQUEST, PAUSED, HALF_CLOSED, CLIENT_GONE = Signal


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of a request's body, without its framing."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """The bytes are not a request: `error` is to be answered, and the connection ends."""

    error: ServerError


@dataclass(frozen=True, slots=True)
class ChangeToHttp2:
    """The client wants HTTP/2 from here on: `rest` has come already. After an upgrade, which is to be answered with
    `101 Switching Protocols`, there are its settings and the headers of its request; with prior knowledge `rest` begins
    with the connection preface."""

    rest: bytes
    settings: bytes | None = None
    headers: list[tuple[bytes, bytes]] | None = None


Event: TypeAlias = Head | Content | Refusal | ChangeToHttp2 | Signal
