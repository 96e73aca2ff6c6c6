"""Requests that an edge process answers with errors, as the console of the core's process is told of them."""

from __future__ import annotations

from collections.abc import Callable

from actors.console.recent import kind_and_text
from protocol.console.records import LONGEST_NAME, cut
from protocol.log.failure_log import FailedRequest
from trioton.edge_processes.channel import Channel, ChannelFull
from trioton.edge_processes.messages import FailedCall, ToCore, ToEdge

# That wait for the core; others are left out: it shows the last ones only.
_MOST_QUEUED = 500


class FailureTeller:
    """Is told of each, as `protocol.log.failure_log.OnFailure` says."""

    def __init__(self, channel: Channel[ToCore, ToEdge]) -> None:
        self._channel = channel

    def note(self, call: str, status: object, error: Exception, describe: Callable[[], FailedRequest]) -> None:
        if self._channel.queued >= _MOST_QUEUED:
            return
        failed = describe()
        kind, text = kind_and_text(error)
        names = [cut(each, LONGEST_NAME) for each in failed[:3]]
        try:
            self._channel.send(FailedCall(call, str(status), kind, cut(text), *names))
        except ChannelFull:
            return
