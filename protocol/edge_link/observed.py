"""Observed calls of generative models over a link. Whoever answers the client ends a call, so that is the edge process;
what an engine knows of it is noted in the core, which records each call, once.

    edge: call → each of its requests → core: noted call ← engine
    edge: call ← what was noted, before the answer ← core
    edge: call has ended → core → `GenAi.record`
"""

from __future__ import annotations

import math
from typing import Protocol

import msgspec

from protocol.edge_link.frames import BrokenFrame
from protocol.edge_link.texts import decode_text, encode_text
from protocol.gen_ai import UNRECORDED, EndedCall, GenAiCall, Generated


class TellsCalls(Protocol):
    """The link to the core."""

    def tell_call(self, call: EndedCall) -> None:
        """An observed call has ended."""


class ToldGenAi:
    """In an edge process. Implements `protocol.gen_ai.GenAi`."""

    def __init__(self, link: TellsCalls) -> None:
        self._link = link

    def record(self, call: EndedCall) -> None:
        self._link.tell_call(call)


class NotedText(msgspec.Struct, array_like=True, frozen=True):
    """What an engine knows: when the first token was there, in nanoseconds of `time.monotonic_ns`, 0 if it was not; and
    what the call has come to."""

    first_ns: int
    generated: Generated | None


class NotedCall(GenAiCall):
    """In the core, of one request of such a call: it is never ended, and so never recorded."""

    def __init__(self, model: str) -> None:
        super().__init__(UNRECORDED, "", model=model, arrival_ns=0)
        self._told: tuple[int, Generated | None] = (0, None)

    def take(self) -> bytes:
        """What was noted since this was called last; empty for nothing."""
        if self.noted == self._told:
            return b""
        self._told = self.noted
        return encode_text(NotedText(*self._told))


def note(call: GenAiCall, text: memoryview) -> None:
    """In the edge process. Raises BrokenFrame."""
    found = decode_text(text, NotedText)
    call.note(found.first_ns, found.generated)


def decode_call(text: memoryview) -> EndedCall:
    """Raises BrokenFrame."""
    call = decode_text(text, EndedCall)
    for seconds in (call.seconds, call.first_token_seconds, call.per_token_seconds):
        if seconds is not None and not 0 <= seconds < math.inf:
            raise BrokenFrame(f"its observed call has taken {seconds} s")
    return call
