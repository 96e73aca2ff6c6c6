"""Text models as an edge process knows them: told by the core, and kept until they change.

edge → [linked texts] → call → core: description → live texts: tokenizer and chat template → edge
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import trio

from protocol.core import InferenceCore
from protocol.edge_link.errors import NotLinked
from protocol.edge_link.facts import ModelFacts
from protocol.edge_link.frames import BrokenFrame
from protocol.edge_link.live_texts import LiveTexts
from protocol.edge_link.operations import TEXT_MODEL, TEXT_MODELS, TextAnswer
from protocol.edge_link.queries import Queries
from protocol.edge_link.texts import decode_error, decode_text, encode_error, encode_text
from protocol.errors import ServerError
from protocol.messages import LATEST_VERSION
from protocol.sync.sliced import Sliced, run_sliced
from protocol.text.description import describe
from protocol.text.model import TextFacts, TextModel

T = TypeVar("T")

# How often it is seen whether models are gone of which there are parts.
SWEEP_SECONDS = 10.0
# Names that clients make up are kept for a second, too; not those that are longer.
_LONGEST_NAME = 512


async def text_answer(core: InferenceCore, name: str, version: int) -> TextAnswer:
    """In the core's process: a model as it crosses, or why there is none."""
    try:
        return TextAnswer(describe(await core.text_model(name, version)))
    except ServerError as error:
        return TextAnswer(None, encode_error(error))


async def text_rows(core: InferenceCore) -> list[bytes]:
    """In the core's process: all models as they cross, without their parts."""
    return await run_sliced(_encoded(await core.text_models()))


def _encoded(texts: Sequence[TextFacts]) -> Sliced[list[bytes]]:
    rows: list[bytes] = []
    for text in texts:
        rows.append(encode_text(TextFacts(**text.facts())))
        yield
    return rows


def _decoded(rows: Sequence[bytes]) -> Sliced[list[TextFacts]]:
    """Raises BrokenFrame."""
    texts: list[TextFacts] = []
    for row in rows:
        texts.append(decode_text(memoryview(row), TextFacts))
        yield
    return texts


class LinkedTexts:
    """In an edge process. `call` is that of `linked_operations`."""

    def __init__(
        self, queries: Queries, facts: ModelFacts, call: Callable[..., Awaitable[Any]], live: LiveTexts
    ) -> None:
        self.live = live
        self._queries = queries
        self._facts = facts
        self._call = call
        self._asking: dict[tuple[str, tuple[Any, ...]], trio.Event] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.live.run)
            task_status.started()
            seen = self._queries.counts(())
            while True:
                await trio.sleep(SWEEP_SECONDS)
                if (now := self._queries.counts(())) != seen:
                    seen = now
                    await self.sweep()

    async def model(self, name: str, version: int = LATEST_VERSION) -> TextModel:
        """With all at hand that is asked of the model next.

        Raises:
            ServerError: the core says so.
            NotLinked: it cannot be had here.
        """
        answer = await self._answer(name, version)
        if answer.text is None:
            raise decode_error(memoryview(answer.error))
        await self._facts.know(name, version)
        return await self.live.model(answer.text)

    async def models(self) -> Sequence[TextFacts]:
        """Raises ServerError."""

        async def ask() -> Sequence[TextFacts]:
            return await run_sliced(_decoded(await self._call(TEXT_MODELS)))

        return await self._kept(TEXT_MODELS, (), ask)

    async def _answer(self, name: str, version: int) -> TextAnswer:
        async def ask() -> TextAnswer:
            found: TextAnswer = await self._call(TEXT_MODEL, name, version)
            return found

        if len(name) > _LONGEST_NAME:
            return await ask()
        return await self._kept(TEXT_MODEL, (name, version), ask)

    async def _kept(self, name: str, arguments: tuple[Any, ...], ask: Callable[[], Awaitable[T]]) -> T:
        """What is kept of it, else what the core says now; of all who ask at a time one asks the core."""
        key = name, arguments
        while True:
            kept: T | None = self._queries.recall(name, arguments)
            if kept is not None:
                return kept
            if (asking := self._asking.get(key)) is None:
                break
            await asking.wait()
        asking = self._asking[key] = trio.Event()
        try:
            counts = self._queries.counts(arguments)
            found = await ask()
            self._queries.keep(name, arguments, found, counts)
        except BrokenFrame as failure:
            raise NotLinked(f"the server's answer is invalid: {failure}") from failure
        finally:
            del self._asking[key]
            asking.set()
        return found

    async def sweep(self) -> None:
        """Forget the parts of models that are gone, or others by now."""
        for description in self.live.known:
            with suppress(ServerError):  # the core is gone
                answer = await self._answer(description.name, description.version)
                if answer.text != description:
                    self.live.forget(description)
