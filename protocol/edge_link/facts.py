"""Facts of a model that inference asks for: an edge process has them all told at once, before it asks, by a call that
holds up nobody else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from protocol.core import InferenceCore
from protocol.edge_link.errors import NotLinked
from protocol.edge_link.frames import BrokenFrame
from protocol.edge_link.generation import ModelCounts
from protocol.edge_link.operations import (
    MODEL_FACTS,
    QUERIES,
    answer_query,
    decode_result,
    encode_result,
)
from protocol.edge_link.queries import Queries
from protocol.errors import ServerError
from protocol.messages import LATEST_VERSION

# In any case, and of each output of which classes are wanted.
_OF_MODEL = ("is_decoupled", "is_batching", "model_metadata", "model_config")
_OF_OUTPUT = "labels"


def model_facts(core: InferenceCore, name: str, version: int, outputs: tuple[str, ...]) -> list[bytes | None]:
    """In the core's process: the results, as they cross; None in place of an error, which is for who asks for that."""
    found: list[bytes | None] = []
    for query, arguments in _queries(name, version, outputs):
        try:
            found.append(encode_result(answer_query(core, query, arguments)))
        except ServerError:
            found.append(None)
    return found


class ModelFacts:
    """In an edge process. `call` is that of `linked_operations`."""

    def __init__(self, queries: Queries, call: Callable[..., Awaitable[Any]]) -> None:
        self._queries = queries
        self._call = call
        self._asking: dict[tuple[str, int, tuple[str, ...]], trio.Event] = {}

    async def know(self, name: str, version: int = LATEST_VERSION, outputs: tuple[str, ...] = ()) -> None:
        """Have them at hand for a while. Does not raise because of the model: the questions do, when they are asked.

        Raises:
            ServerError: the core is gone.
        """
        asked = _queries(name, version, outputs)
        if all(self._queries.knows(*query) for query in asked):
            return
        key = name, version, outputs
        if (asking := self._asking.get(key)) is not None:
            await asking.wait()  # should that have failed, each asks by itself
            return
        asking = self._asking[key] = trio.Event()
        try:
            counts = self._queries.counts((name,))
            self._keep(asked, await self._call(MODEL_FACTS, name, version, outputs), counts)
        except BrokenFrame as failure:
            raise NotLinked(f"the server's answer is invalid: {failure}") from failure
        finally:
            del self._asking[key]
            asking.set()

    def _keep(self, asked: list[tuple[str, tuple[Any, ...]]], found: list[bytes | None], counts: ModelCounts) -> None:
        if len(found) != len(asked):
            raise BrokenFrame(f"it has {len(found)} facts of {len(asked)}")
        for (query, arguments), result in zip(asked, found, strict=True):
            if result is not None:
                self._queries.keep(query, arguments, decode_result(memoryview(result), QUERIES[query]), counts)


def _queries(name: str, version: int, outputs: tuple[str, ...]) -> list[tuple[str, tuple[Any, ...]]]:
    of_outputs = [(_OF_OUTPUT, (name, version, output)) for output in outputs]
    return [*((fact, (name, version)) for fact in _OF_MODEL), *of_outputs]
