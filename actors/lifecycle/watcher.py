"""Repository watcher (`--model-control-mode poll`): polls the repositories, and loads and unloads models as their files
change.

Flow: files → [repository watcher] → model control. Owns the timer and what was last seen. Each change runs in a task of
its own, so a long load delays only further changes of its own model. Cancelled, it stops polling.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from typing import Protocol

import trio

from actors.lifecycle.dependencies import load_levels
from actors.lifecycle.poll_policy import PollPolicy
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from repository.repositories import ModelFiles, Repositories

logger = logging.getLogger("trioton.repository_watcher")

# Seconds between two looks while something changes.
RESTLESS_SECONDS = 1.0
# Looking takes this part of the time at most.
LARGEST_SHARE = 0.1


class PolledModels(Protocol):
    """What the watcher calls; implemented by `actors.lifecycle.control.ModelControl`."""

    @property
    def out_of_reach(self) -> Collection[str]:
        """The models whose last load failed, but may succeed with the same files."""
        ...

    async def needs(self, name: str) -> Sequence[str]:
        """The models that must serve before this one can be loaded."""
        ...

    async def load(self, name: str) -> object:
        """Returns when the model serves as its files are now. Raises ServerError, and then the old version still
        serves."""
        ...

    async def unload(self, name: str) -> None: ...

    def failed_for(self, name: str) -> Sequence[str]:
        """The models whose last load failed, perhaps because this one was missing."""
        ...


class RepositoryWatcher:
    """`begin` before the models are first loaded, then `run`, cancelled at the end.

    Args:
        poll_seconds: between two polls; 0 turns polling off.
    """

    def __init__(
        self,
        repositories: Repositories,
        models: PolledModels,
        *,
        poll_seconds: float,
        failures: CallbackFailures | None = None,
    ) -> None:
        self._failures = failures or CallbackFailures()
        self._repositories = repositories
        self._models = models
        self._poll_seconds = poll_seconds or math.inf
        self._policy: PollPolicy[ModelFiles] = PollPolicy({})
        self._busy: dict[str, trio.Event] = {}

    async def begin(self) -> None:
        """Record the files as they are now for the models that are loaded."""
        self._policy = PollPolicy(await trio.to_thread.run_sync(self._repositories.look, {}, abandon_on_cancel=True))

    async def run(self) -> None:
        pause = self._poll_seconds
        async with trio.open_nursery() as changes:
            while True:
                await trio.sleep(pause)
                began = trio.current_time()
                is_restless = False
                with self._failures.noted("background", "the model repositories could not be looked at"):
                    is_restless = await self._poll(changes)
                least = (trio.current_time() - began) / LARGEST_SHARE
                pause = max(min(self._poll_seconds, RESTLESS_SECONDS) if is_restless else self._poll_seconds, least)

    async def _poll(self, changes: trio.Nursery) -> bool:
        """Returns whether something is still changing."""
        found = await trio.to_thread.run_sync(self._repositories.look, self._policy.found, abandon_on_cancel=True)
        for name in self._models.out_of_reach:
            self._policy.load_again(name)
        wanted = self._policy.look(found, self._busy)
        for name in wanted.unload:
            self._start(changes, name, ())
        try:
            needs = {name: await self._models.needs(name) for name in wanted.load}
            for level in load_levels(wanted.load, needs):
                for name in level:
                    self._start(changes, name, needs[name], is_load=True)
        except Exception:  # the next poll finds no change, and has to load them all the same
            for name in wanted.load:
                if name not in self._busy:
                    self._policy.load_again(name)
            raise
        return wanted.is_restless

    def _start(self, changes: trio.Nursery, name: str, needs: Sequence[str], *, is_load: bool = False) -> None:
        """Start a change after those of the models that it needs."""
        before = [self._busy[needed] for needed in needs if needed in self._busy]
        self._busy[name] = trio.Event()
        if is_load:
            changes.start_soon(self._load, changes, name, before)
        else:
            changes.start_soon(self._unload, name)

    async def _load(self, changes: trio.Nursery, name: str, before: Sequence[trio.Event]) -> None:
        try:
            for event in before:
                await event.wait()
            await self._models.load(name)
            for other in self._models.failed_for(name):
                if other not in self._busy:
                    self._start(changes, other, (), is_load=True)
        except ServerError as error:  # the index has it; what served before serves on
            logger.debug("%s", error)
        except Exception as error:
            self._failures.note("background", error, f"model '{name}', which has changed, could not be loaded")
            self._policy.load_again(name)
        finally:
            self._busy.pop(name).set()

    async def _unload(self, name: str) -> None:
        logger.info("'%s' has gone from the model repository", name)
        try:
            await self._models.unload(name)
        except ServerError as error:
            logger.error("'%s' could not be unloaded: %s", name, error)
        except Exception as error:
            self._failures.note("background", error, f"model '{name}', whose files have gone, could not be unloaded")
        finally:
            self._busy.pop(name).set()
