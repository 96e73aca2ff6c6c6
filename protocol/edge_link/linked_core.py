"""Linked core: the core as the edges of another process see it. Implements `protocol.core.InferenceCore`."""

from __future__ import annotations

import socket

import trio

from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest


class LinkedCore:
    """`control` is the edge process's end of the socket pair, which this owns from now on."""

    def __init__(self, control: socket.socket, *, failures: CallbackFailures | None = None) -> None:
        raise NotImplementedError

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started once the core has answered. Returns when the core is gone: all requests are answered with Unavailable
        then, and the process is to end."""
        raise NotImplementedError

    def can_take(self, request: InferenceRequest) -> bool:
        """Whether the link carries this request; others are to go to the core's own edges."""
        raise NotImplementedError
