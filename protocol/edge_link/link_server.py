"""Link server: serves one edge process where the core runs."""

from __future__ import annotations

import socket

import trio

from protocol.core import InferenceCore
from protocol.edge_link.generation import Generation
from protocol.edge_link.limits import LinkLimits
from protocol.failures import CallbackFailures


class LinkServer:
    """One for each edge process; `control` is its end of the socket pair, which it owns from now on.

    `generation` is the core's, which moves it at every change of its models; without one, edges keep nothing.
    """

    def __init__(
        self,
        core: InferenceCore,
        control: socket.socket,
        *,
        limits: LinkLimits = LinkLimits(),  # noqa: B008 (frozen)
        generation: Generation | None = None,
        failures: CallbackFailures | None = None,
        name: str = "edge",
    ) -> None:
        raise NotImplementedError

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the edge until it is gone, or sends what is invalid. Then, as when cancelled, all of its requests are
        given up and its memory is unmapped. Does not raise because of the edge."""
        raise NotImplementedError
