"""The watch of the Redis job store: a thread that says this server is there, sees which others have ended, and hears
what happens to jobs at them.

It has a connection of its own, on which it waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import redis
import trio

from actors.jobs.redis.commands import run_commands
from actors.jobs.redis.script import Argument, command
from protocol.jobs.store import JobChange

logger = logging.getLogger(__name__)

# Between two signs of life; of a short lease a quarter.
BEAT_SECONDS = 1.0
# Until Redis is tried again.
_AGAIN_SECONDS = 0.5
# Jobs of which changes are held that nobody has taken; above it any may have changed.
MOST_HELD = 10_000
_READ_AT_ONCE = 1000
_ANY = JobChange("", has_items=True)


class Recover(Protocol):
    """Makes the arguments of the call `recover` for a server that has ended."""

    def __call__(self, server: str) -> Sequence[Argument]: ...


@dataclass(frozen=True, slots=True)
class WatchedStore:
    """What the watch needs to know: what keys begin with, this server's name, its lease, and what others are told of
    items that were interrupted too often."""

    prefix: str
    server: str
    lease_seconds: float
    recover: Recover


class Watch:
    """Started and closed by the store, which is called on one Trio loop."""

    def __init__(self, client: redis.Redis, store: WatchedStore) -> None:
        self._client = client
        self._store = store
        self._beat_seconds = min(BEAT_SECONDS, store.lease_seconds / 4)
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._held: dict[str, JobChange] = {}
        self._has_come = trio.Event()
        self._last = "0-0"

    def open(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._run, name="job-store-watch", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """When it was told to stop, and a change that is of nothing has woken it."""
        if self._thread is not None:
            await trio.to_thread.run_sync(self._thread.join)

    def stop(self) -> None:
        self._is_closed.set()

    async def changes(self) -> Sequence[JobChange]:
        await self._has_come.wait()
        self._has_come = trio.Event()
        held, self._held = self._held, {}
        return list(held.values())

    # In the thread.

    def _run(self) -> None:
        steady_since = last_beat = time.monotonic()
        is_new = True
        while not self._is_closed.is_set():
            try:
                ended = self._beat()
                now = time.monotonic()
                if now - last_beat > self._store.lease_seconds / 2:
                    steady_since = now  # others could not say that they are there, either
                last_beat = now
                if now - steady_since >= self._store.lease_seconds:
                    for server in ended:
                        self._recover(server)
                if is_new:
                    self._last = self._newest()
                    self._tell([_ANY])
                is_new = False
                self._listen(now + self._beat_seconds)
            except Exception as error:
                if not isinstance(error, redis.RedisError | OSError):  # of these tells whoever needs the store
                    logger.exception("the watch of the job store failed, and goes on")
                is_new = True
                self._is_closed.wait(_AGAIN_SECONDS)
        self._client.close()

    def _call(self, name: str, *arguments: Argument) -> Any:
        sent = command(self._store.prefix, name, _nonce(), self._store.server, arguments)
        (answer,) = run_commands(self._client, [sent])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _beat(self) -> Sequence[str]:
        """The servers that have ended. Jobs that are being cancelled are told again: a change may have been missed."""
        ended, cancelled = self._call("beat", int(self._store.lease_seconds * 1000))
        self._tell([JobChange(job_id.decode(), is_cancelled=True) for job_id in cancelled])
        return [server.decode() for server in ended if server.decode() != self._store.server]

    def _recover(self, server: str) -> None:
        requeued = 0
        while True:
            some, is_done = self._call("recover", *self._store.recover(server))
            requeued += some
            if is_done:
                break
        logger.info("a server of this job store has ended; %d requests of jobs that it ran are queued again", requeued)

    def _newest(self) -> str:
        found: Any = self._client.xrevrange(f"{self._store.prefix}changes", count=1)
        return found[0][0].decode() if found else "0-0"

    def _listen(self, until: float) -> None:
        key = f"{self._store.prefix}changes"
        while not self._is_closed.is_set() and (left := until - time.monotonic()) > 0:
            # Answered when something has come, or that time is over.
            read: Any = self._client.xread({key: self._last}, count=_READ_AT_ONCE, block=max(int(left * 1000), 1))
            for _, entries in read or ():
                self._last = entries[-1][0].decode()
                own = self._store.server.encode()
                self._tell([_change(fields) for _, fields in entries if fields[b"j"] and fields[b"s"] != own])

    def _tell(self, changes: Sequence[JobChange]) -> None:
        if changes and self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._hold, changes)

    # On the loop.

    def _hold(self, changes: Sequence[JobChange]) -> None:
        for change in changes:
            known = self._held.get(change.job_id, change)
            self._held[change.job_id] = JobChange(
                change.job_id,
                is_cancelled=known.is_cancelled or change.is_cancelled,
                has_items=known.has_items or change.has_items,
            )
        if len(self._held) > MOST_HELD:
            cancelled = {job_id: change for job_id, change in self._held.items() if change.is_cancelled}
            self._held = {"": _ANY, **dict(list(cancelled.items())[:MOST_HELD])}
        self._has_come.set()


def _change(fields: dict[bytes, bytes]) -> JobChange:
    what = fields[b"w"]
    return JobChange(fields[b"j"].decode(), is_cancelled=what == b"c", has_items=what == b"n")


def _nonce() -> str:
    return f"{time.monotonic_ns():x}"
