"""The log of an edge process: its lines go to the core's log, over the socket pair."""

from __future__ import annotations

import logging

from trioton.edge_processes.channel import MOST_BYTES, Channel, ChannelFull
from trioton.edge_processes.messages import LogLine, ToCore, ToEdge
from trioton.log.server_log import PACKAGES, verbose_level

# Lines that wait for the core; others are counted, and lost.
_MOST_QUEUED = 500
_MOST_TEXT = MOST_BYTES // 4


class ChannelHandler(logging.Handler):
    """Lines of other threads than Trio's go out with the next of its own."""

    def __init__(self, channel: Channel[ToCore, ToEdge]) -> None:
        super().__init__()
        self._channel = channel
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._channel.queued >= _MOST_QUEUED:
                self._lost += 1
                return
            text = self.format(record)[:_MOST_TEXT]
            tags = {name: str(value) for name, value in getattr(record, "tags", {}).items()}
            self._channel.send(LogLine(record.name, record.levelno, text, tags, self._lost))
            self._lost = 0
        except ChannelFull:
            self._lost += 1
        except Exception:
            self.handleError(record)


def log_to(channel: Channel[ToCore, ToEdge], verbosity: int) -> None:
    """For the life of this process. What the core's log leaves out at its start is not sent."""
    handler = ChannelHandler(channel)
    handler.setFormatter(logging.Formatter("%(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    level = verbose_level(verbosity) if verbosity else logging.INFO
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level)
