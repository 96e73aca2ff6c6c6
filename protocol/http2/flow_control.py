"""Flow control: how many bytes either side may still send. No I/O.

Source: RFC 9113, section 5.2.
"""

from __future__ import annotations

from h2.exceptions import FlowControlError

DEFAULT_WINDOW = 65535
LARGEST_WINDOW = 2**31 - 1


def widened(window: int, by: int) -> int:
    """A window that its receiver opens further.

    Raises:
        FlowControlError: beyond what a window may be.
    """
    window += by
    if window > LARGEST_WINDOW:
        raise FlowControlError(f"May not increment flow control window past {LARGEST_WINDOW}")
    return window


class ReceiveWindow:
    """What a peer may send us. Its `size` is given back in few large portions."""

    __slots__ = ("_left", "_returned", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._left = size
        self._returned = 0  # bytes that nobody holds any more, and the peer has not been told so

    def consume(self, length: int) -> None:
        """Bytes have come.

        Raises:
            FlowControlError: more than the peer was allowed.
        """
        self._left -= length
        if self._left < 0:
            raise FlowControlError("Flow control window shrunk below 0")

    def give_back(self, length: int) -> int:
        """Bytes need not be held any more. Returns how far to open the window, 0 while it is not worth a frame."""
        self._returned += length
        if self._returned <= self._left and 2 * self._returned < self.size:
            return 0
        increment, self._returned = self._returned, 0
        self._left += increment
        return increment
