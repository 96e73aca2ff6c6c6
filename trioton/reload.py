"""`trioton run --reload`: watches the files of a model and reloads it when they change.

Flow: files → [reloader] → core → model manager, which loads the model beside the one that serves, swaps the two, and
lets the old one finish its requests. Files are looked at again and again: that works on every file system, also on
those that containers and networks mount.
"""

from __future__ import annotations

import logging

import trio

from protocol.core import InferenceCore
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from repository.fingerprint import Fingerprint, fingerprint
from repository.layout import ModelDirectory

logger = logging.getLogger(__name__)

# Seconds between two looks.
PAUSE = 0.25
# A look at many files takes longer; this part of the time at most is spent on it.
LARGEST_SHARE = 0.1
_NAMED_FILES = 3


class Reloader:
    """`look` first, then `run`, cancelled at the end. Editors write in steps, and copies take time: a change counts
    when two looks one after the other have seen the same."""

    def __init__(self, core: InferenceCore, model: ModelDirectory, failures: CallbackFailures | None = None) -> None:
        self._core = core
        self._failures = failures or CallbackFailures()
        self._model = model
        self._loaded: Fingerprint = ()
        self._pause = PAUSE

    async def look(self) -> None:
        """Take the files as they are for those that are loaded."""
        self._loaded = await self._fingerprint()

    async def run(self) -> None:
        last = self._loaded
        while True:
            await trio.sleep(self._pause)
            with self._failures.noted("background", f"the files of model '{self._model.name}' could not be looked at"):
                last = await self._follow(last)

    async def _follow(self, last: Fingerprint) -> Fingerprint:
        """One look, after one that has seen `last`; returns what this one sees."""
        now = await self._fingerprint()
        if now == last and now != self._loaded:
            logger.info("changed: %s; loading '%s' again", _changes(self._loaded, now), self._model.name)
            self._loaded = now
            await self._load()
        return now

    async def _load(self) -> None:
        name = self._model.name
        try:
            await self._core.load_model(name)
        except ServerError as error:
            logger.debug("%s", error)  # the model manager has said it
            serves = any(entry.name == name for entry in await self._core.repository_index(ready=True))
            if serves:
                logger.warning("'%s' goes on serving as it was before the change", name)
            else:
                logger.warning("'%s' does not serve until its files are mended", name)

    async def _fingerprint(self) -> Fingerprint:
        began = trio.current_time()
        found = await trio.to_thread.run_sync(lambda: fingerprint(self._model, is_watched=True))
        self._pause = max(PAUSE, (trio.current_time() - began) / LARGEST_SHARE)
        return found


def _changes(before: Fingerprint, after: Fingerprint) -> str:
    """The files that differ, by name; not all where they are many."""
    names = sorted({name for name, _, _ in set(before) ^ set(after)})
    more = len(names) - _NAMED_FILES
    return ", ".join(names[:_NAMED_FILES]) + (f" and {more} more" if more > 0 else "")
