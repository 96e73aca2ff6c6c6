"""Half-close probes: find out whether a client that has sent FIN still reads, by sending the response's first bytes
early.

TCP shows the same for both: a FIN. They differ when data reaches them, which a closed socket answers with a reset. So a
response that is waited for is begun early: the first bytes of its status line, which all responses have in common, are
sent one by one, at growing intervals. A body in chunks is probed by zeros before the size of its next chunk (RFC 9112,
7.1). Who reads gets the same response as ever; who has gone resets the connection, and the request is cancelled. Pure.
"""

from __future__ import annotations

STATUS_LINE_START = b"HTTP/1.1 "

# Clients' parsers take sixteen digits of a chunk's size, of which it needs fewer than half.
_MOST_ZEROS = 8
# Seconds between the first two probes; each further one waits for twice as long.
_FIRST_PAUSE = 1.0


class HalfClose:
    """The probes of one connection, whose last request is in flight."""

    __slots__ = ("_next", "_pause", "_sent", "_zeros")

    def __init__(self) -> None:
        self._sent = 0
        self._zeros = 0
        self._next = 0.0
        self._pause = _FIRST_PAUSE

    def probe(self, now: float) -> bytes:
        """What can be sent now, before the head of the response; empty while it is too early, or nothing is left.
        `note_sent` is called if it was."""
        return STATUS_LINE_START[self._sent : self._sent + 1] if now >= self._next else b""

    def chunk_probe(self, now: float) -> bytes:
        """As `probe`, between two chunks of the body."""
        return b"0" if now >= self._next and self._zeros < _MOST_ZEROS else b""

    def note_sent(self, now: float, *, has_head: bool = False) -> None:
        """The last probe was sent."""
        if has_head:
            self._zeros += 1
        else:
            self._sent += 1
        self._next = now + self._pause
        self._pause *= 2

    def note_chunk(self) -> None:
        """The size of a chunk was sent, so its probing zeros are complete."""
        self._zeros = 0

    def rest_of(self, head: bytes) -> bytes:
        """The part of a response's head that is not yet sent."""
        sent, self._sent = self._sent, 0
        return head[sent:]
