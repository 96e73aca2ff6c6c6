"""Link calls: answers what an edge process asks of the core beside inference, by messages and by queries.

edge process -> socket -> link server -> [link calls] -> core
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from protocol.core import InferenceCore
from protocol.edge_link.answers import AnswerWriter
from protocol.edge_link.facts import model_facts
from protocol.edge_link.frames import BrokenFrame, Burst, Frame
from protocol.edge_link.keys import TellingKeys
from protocol.edge_link.linked_texts import text_answer, text_rows
from protocol.edge_link.operations import (
    ADMIT,
    CALLS,
    KEY_TABLE,
    MODEL_FACTS,
    QUERIES,
    TEXT_MODEL,
    TEXT_MODELS,
    answer_call,
    answer_query,
    decode_operation,
    encode_result,
)
from protocol.edge_link.records import QUERY
from protocol.edge_link.texts import encode_error
from protocol.errors import Internal, ServerError
from protocol.failures import CallbackFailures


class LinkCalls:
    """Of one edge process; `wake` is called when there is an answer to send.

    Attributes:
        scopes: of the calls that are under way, by their numbers.
    """

    def __init__(
        self,
        core: InferenceCore,
        keys: TellingKeys | None,
        failures: CallbackFailures,
        name: str,
        wake: Callable[[], None],
    ) -> None:
        self.scopes: dict[int, trio.CancelScope] = {}
        self._core = core
        self._keys = keys
        self._failures = failures
        self._name = name
        self._wake = wake

    def begin(self, number: int, text: memoryview, answers: AnswerWriter, nursery: trio.Nursery) -> None:
        """Raises BrokenFrame."""
        name, arguments = decode_operation(text, CALLS)
        scope = self.scopes[number] = trio.CancelScope()
        nursery.start_soon(self._run, number, scope, name, arguments, answers)

    async def _run(
        self, number: int, scope: trio.CancelScope, name: str, arguments: tuple[Any, ...], answers: AnswerWriter
    ) -> None:
        try:
            with scope:
                try:
                    answers.write_return(number, encode_result(await self._answered(name, arguments)))
                except ServerError as error:
                    answers.write_error(number, error)
                except Exception as error:
                    answers.write_error(number, self.defect(name, error))
        finally:
            del self.scopes[number]
        self._wake()

    async def _answered(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Raises ServerError."""
        if name == KEY_TABLE:
            return None if self._keys is None else self._keys.table()
        if name == ADMIT:
            return None if self._keys is None else await self._keys.admit(*arguments)
        if name == MODEL_FACTS:
            return model_facts(self._core, *arguments)
        if name == TEXT_MODEL:
            return await text_answer(self._core, *arguments)
        if name == TEXT_MODELS:
            return await text_rows(self._core)
        return await answer_call(self._core, name, arguments)

    def answer(self, frame: Frame) -> Burst:
        """The answer to the next query of a frame. Raises BrokenFrame."""
        kind, number, size = frame.take(3)
        if kind != QUERY:
            raise BrokenFrame(f"its query is of kind {kind}")
        name, arguments = decode_operation(frame.take_text(size), QUERIES)
        is_good = True
        try:
            text = encode_result(answer_query(self._core, name, arguments))
        except ServerError as error:
            is_good, text = False, encode_error(error)
        except Exception as error:
            is_good, text = False, encode_error(self.defect(name, error))
        burst = Burst()
        burst.numbers += QUERY, number, is_good, burst.add_text(text)
        return burst

    def defect(self, what: str, error: Exception) -> Internal:
        """What the edge is told of something that has failed."""
        self._failures.note("edge link", error, f"{self._name}: {what} has failed")
        return Internal(f"{what} failed unexpectedly; the server's log has the details")
