"""HTTP/2 flow-control windows, of both directions. No I/O.

Source: RFC 9113, section 5.2.
"""

from __future__ import annotations

from h2.exceptions import FlowControlError

DEFAULT_WINDOW = 65535
LARGEST_WINDOW = 2**31 - 1


def widened(window: int, by: int) -> int:
    """A window after a WINDOW_UPDATE.

    Raises:
        FlowControlError: beyond the largest window.
    """
    window += by
    if window > LARGEST_WINDOW:
        raise FlowControlError(f"May not increment flow control window past {LARGEST_WINDOW}")
    return window


class ReceiveWindow:
    """The window of data that a peer may send. Credit is returned in few large portions."""

    __slots__ = ("_left", "_returned", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._left = size
        self._returned = 0  # bytes that nobody holds any more, and the peer has not been told so

    def consume(self, length: int) -> None:
        """Count received bytes.

        Raises:
            FlowControlError: more than the peer was allowed.
        """
        self._left -= length
        if self._left < 0:
            raise FlowControlError("Flow control window shrunk below 0")

    def give_back(self, length: int) -> int:
        """Return credit for bytes that are not held any more. Returns the increment to send, 0 while it is not worth a
        frame."""
        self._returned += length
        if self._returned <= self._left and 2 * self._returned < self.size:
            return 0
        increment, self._returned = self._returned, 0
        self._left += increment
        return increment
