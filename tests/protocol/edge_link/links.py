"""Links within one process, over real sockets and memory, for tests of what runs over them."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio
from trio.testing import wait_all_tasks_blocked

from protocol.access.control import KeySource
from protocol.core import InferenceCore
from protocol.edge_link.generation import Generation
from protocol.edge_link.keys import TellingKeys
from protocol.edge_link.limits import LinkLimits
from protocol.edge_link.link_server import LinkServer
from protocol.edge_link.linked_core import LinkedCore
from protocol.failures import CallbackFailures
from protocol.gen_ai import GenAi
from protocol.server_settings import TraceControl


@dataclass
class Link:
    """Both sides of one."""

    core: LinkedCore
    server: LinkServer
    generation: Generation
    failures: CallbackFailures
    server_scope: trio.CancelScope
    edge_scope: trio.CancelScope

    def models_changed(self, names: Collection[str] | None) -> None:
        """As `EdgeProcesses.models_changed`."""
        if names is None:
            self.generation.bump()
        for name in names or ():
            self.generation.bump_model(name)


@asynccontextmanager
async def linked(
    core: InferenceCore,
    limits: LinkLimits = LinkLimits(),  # noqa: B008 (frozen)
    keys: KeySource | None = None,
    tracing: TraceControl | None = None,
    gen_ai: GenAi | None = None,
) -> AsyncIterator[Link]:
    """A core, as edges in another process would have it. Nothing may fail unseen."""
    ours, theirs = socket.socketpair()
    generation, failures = Generation(), CallbackFailures()
    telling = None if keys is None else TellingKeys(keys, generation)
    server = LinkServer(
        *(core, ours),
        limits=limits,
        generation=generation,
        keys=telling,
        tracing=tracing,
        gen_ai=gen_ai,
        failures=failures,
    )
    edge = LinkedCore(theirs, failures=failures)
    link = Link(edge, server, generation, failures, trio.CancelScope(), trio.CancelScope())

    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        with link.server_scope:
            await server.run(task_status=task_status)

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        with link.edge_scope:
            await edge.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        await nursery.start(run)
        edge.queries.wait = partial(answer_queries, server)
        yield link
        nursery.cancel_scope.cancel()
    generation.close()
    assert (dict(failures.counts()), server.problem, edge.problem) == ({}, "", "")


def answer_queries(server: LinkServer, control: socket.socket, events: int, deadline: float) -> None:
    """In place of the edge's wait for the core, which is in the same thread."""
    if time.monotonic() > deadline:
        raise TimeoutError
    server.queries.read()
    server.queries.write_some()


async def settled() -> None:
    """Until nobody has anything to do: what one side has sent is in the other's socket at once, but reading it counts
    as no task's work."""
    for _ in range(10):
        await wait_all_tasks_blocked(0.001)


async def settled_with_threads() -> None:
    """As `settled`, once no thread of Trio is at work any more: a task that waits for one counts as blocked."""
    await settled()
    while trio.to_thread.current_default_thread_limiter().borrowed_tokens:
        await wait_all_tasks_blocked(0.001)
    await settled()
