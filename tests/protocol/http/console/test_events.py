"""The event stream of the console, to viewers that do not read, that have to leave, and that leave at any moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.console import sampler
from actors.console.console import LiveConsole
from protocol.http.console.events import LEAVE_SECONDS, events
from protocol.http.exchange import HttpRequest
from protocol.http.reply import Headers
from tests.actors.console.test_sampler import watched
from tests.protocol.http.fake_services import FakeWriter, make_request, make_services


@dataclass
class DeafWriter(FakeWriter):
    """Of a client that reads the head and no event."""

    stuck: trio.Event = field(default_factory=trio.Event)

    async def send(self, data: bytes) -> None:
        self.body += data
        self.stuck.set()
        await trio.sleep_forever()


@dataclass
class SlowWriter(FakeWriter):
    """One whose every call is a checkpoint."""

    async def start(self, status: int, headers: Headers) -> None:
        await trio.lowlevel.checkpoint()
        self.status = status

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.body += data

    async def end(self) -> None:
        await trio.lowlevel.checkpoint()
        self.ended = True


def request_of(console: LiveConsole, writer: FakeWriter) -> HttpRequest:
    made = make_request(replace(make_services(), console=console), path_parameters={})
    return replace(made, headers={b"host": b"localhost"}, writer=writer)


async def test_one_that_does_not_read_is_cut_off_when_it_has_to_leave(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was being sent is not ended: a part of it may be out. One that reads has an end."""
    monkeypatch.setattr(sampler, "MOST_VIEWERS", 2)
    deaf, reading = DeafWriter(), SlowWriter()
    async with watched(tmp_path) as (console, _, _), trio.open_nursery() as nursery:
        nursery.start_soon(events, request_of(console, deaf))
        await deaf.stuck.wait()
        nursery.start_soon(events, request_of(console, reading))
        await wait_all_tasks_blocked()
        began = trio.current_time()
        with console.viewer(), console.viewer() as last:
            while nursery.child_tasks:
                await last.next()
            assert trio.current_time() - began <= LEAVE_SECONDS + 2
    assert not deaf.ended
    assert reading.body.startswith(b"event: snapshot\ndata: {")
    assert reading.ended


async def test_one_that_leaves_at_any_moment_is_no_viewer_any_more(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with watched(tmp_path) as (console, _, _):
        for moment in range(12):
            writer = SlowWriter()
            with trio.CancelScope() as leaving:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(events, request_of(console, writer))
                    for _ in range(moment):
                        await trio.lowlevel.checkpoint()
                    leaving.cancel()
            assert leaving.cancelled_caught
            assert not writer.ended
            await trio.sleep(2)
            found = await console.glance()
            assert found is not None
            assert found.server.viewers == 0
