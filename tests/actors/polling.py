"""A polling core in virtual time, for the tests of it."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.registry import BackendRegistry
from protocol.errors import Internal
from tests.actors.fakes import FakeBackend, fake_backend

POLL_SECONDS = 15.0
# A poll, the look after it, and some.
SETTLED = 2 * POLL_SECONDS


@contextmanager
def threads_in_line() -> Iterator[None]:
    """Virtual time passes while a thread works; so, what would run in one runs at once."""

    async def run(call: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", run)
        yield


_ticks = itertools.count(1_000_000_000, 1_000_000_000)


def write(path: Path, text: str) -> None:
    """Each time later than before, also on file systems with a coarse clock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    tick = next(_ticks)
    os.utime(path, ns=(tick, tick))


class Weights:
    """Backends that hold what their version's file `weights` says."""

    def __init__(self) -> None:
        self.backend = fake_backend(on_load=self._read)

    @property
    def loaded(self) -> dict[tuple[str, int], str]:
        """By model and version, what the backends hold that are loaded."""
        return {
            (made.spec.source.name, made.spec.source.version): getattr(made, "weights", "")
            for made in self.backend.made
            if made.is_loaded
        }

    def _read(self, backend: FakeBackend) -> None:
        source = backend.spec.source
        path = source.model_directory / str(source.version) / "weights"
        if not path.exists():
            raise Internal("no weights")
        backend.weights = path.read_text()  # type: ignore[attr-defined]  # what this test remembers there


@asynccontextmanager
async def polling(*repositories: Path, backend: type[FakeBackend]) -> AsyncIterator[ServerCore]:
    """A started core in poll mode, stopped at the end."""
    settings = CoreSettings(repositories, control_mode=ControlMode.POLL, poll_seconds=POLL_SECONDS)
    core = ServerCore(settings, BackendRegistry({"fake": backend}))
    with threads_in_line():
        async with trio.open_nursery() as nursery:
            await nursery.start(core.run)
            yield core
            core.stop()
