"""The run of one response: from its first event to its last, whoever reads them. It knows nothing of its request."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from protocol.errors import ServerError, told
from protocol.http.openai.chats.chat import Chat
from protocol.http.openai.generation import generate_all
from protocol.http.openai.responses.answer import ResponseAnswer, error_members
from protocol.http.openai.responses.choice import ResponseChoice
from protocol.http.openai.responses.output import OutputWriter
from protocol.text.model import TextModel


class ResponseRun:
    """Attributes:
    answer: the response object, which is complete when the run has ended.
    """

    def __init__(
        self,
        text: TextModel,
        chat: Chat,
        answer: ResponseAnswer,
        on_end: Callable[[ResponseAnswer], None] = lambda answer: None,
    ) -> None:
        """`on_end` is called with the complete answer before its last event is there to be sent."""
        self.answer = answer
        self._on_end = on_end
        self._text = text
        self._chat = chat
        self._writer = OutputWriter()
        self._is_created = False
        self._has_begun = False

    async def run(self, send: Callable[[bytes], Awaitable[None]] | None = None) -> bytes:
        """Returns the last events; those before are sent, from the model's first response on.

        Raises:
            ServerError, Exception: the model fails. Then `failed` gives the last events.
        """
        choice = ResponseChoice(self._chat, self._writer, self.begin, send)
        await generate_all(self._chat.core, self._chat.inferences.requests, self._text.names, [choice])
        last = self.begin() + choice.finish()
        usage = await choice.usage(self._text)
        self.answer.end(self._writer.items, usage, is_cut=choice.is_cut, now=int(time.time()))
        self._on_end(self.answer)
        return last + self._told(f"response.{self.answer.status}")

    def queue(self) -> bytes:
        """The first events of a response that runs in the background, which waits until `begin`."""
        self.answer.queue()
        self._is_created = True
        return self._told("response.created") + self._told("response.queued")

    def begin(self) -> bytes:
        """The first events, once."""
        if self._has_begun:
            return b""
        self._has_begun = True
        self.answer.begin()
        created = b"" if self._is_created else self._told("response.created")
        return created + self._told("response.in_progress")

    def failed(self, error: ServerError, request_id: str) -> bytes:
        """The last events."""
        told(error)
        last = self.begin() + self._writer.finish("incomplete")
        self.answer.fail(self._writer.items, error)
        self._on_end(self.answer)
        return last + self._writer.event("error", error_members(error, request_id)) + self._told("response.failed")

    def cancelled(self) -> None:
        self._writer.finish("incomplete")
        self.answer.cancel(self._writer.items)

    def _told(self, kind: str) -> bytes:
        return self._writer.event(kind, {"response": self.answer.members})
