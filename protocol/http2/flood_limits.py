"""Flood limits of an HTTP/2 connection: a peer whose frames only make work is sent a GOAWAY (ENHANCE_YOUR_CALM).

Floods are of streams that are opened and reset again (CVE-2023-44487), and of frames that carry nothing of a request
(CVE-2019-9512 and its like). Header lists far over the limit are `ServerConnection`'s to refuse.
"""

from __future__ import annotations

import trio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from protocol.http2.output import FrameOutput
from protocol.limits.flood import FloodGuard


class FloodError(ProtocolError):
    """The peer exceeds a flood limit; a GOAWAY that says so is ready."""


class FloodLimits:
    """Counts what one peer sends. A limit is so many in a second. All methods raise FloodError where it is exceeded,
    which ends the connection (see `reader.EventHandlers`).

    What was received at one time counts for that time, however long it takes to handle: else a server that is busy, and
    handles less in a second than the limit is, would never come to it.

    Attributes:
        received_at: when bytes have come last, in seconds of Trio's clock.
    """

    __slots__ = ("_control_frames", "_out", "_resets", "received_at")

    def __init__(self, out: FrameOutput, *, max_control_frames: int, max_stream_resets: int) -> None:
        self._out = out
        self.received_at = trio.current_time()
        self._control_frames = FloodGuard(max_control_frames)
        self._resets = FloodGuard(max_stream_resets)

    def count_control_frame(self) -> None:
        """One that carries nothing of a request, or one of a request too many."""
        if not self._control_frames.passes(self.received_at):
            self.cut_off("max_control_frames", b"too many control frames")

    def count_window_updates(self, count: int) -> None:
        """So many WINDOW_UPDATE frames have come: those that the client has no reason for are control frames."""
        too_many = count - self._out.window_updates
        self._out.window_updates = max(0, -too_many)
        for _ in range(too_many):
            self.count_control_frame()

    def count_reset(self) -> None:
        """A request was given up by its client."""
        if not self._resets.passes(self.received_at):
            self.cut_off("max_stream_resets", b"too many streams reset")

    def cut_off(self, limit: str, reason: bytes) -> None:
        """The limit of this name is exceeded."""
        self._out.count_refusal(limit)
        self._out.go_away(ErrorCodes.ENHANCE_YOUR_CALM, reason)
        raise FloodError(reason.decode())
