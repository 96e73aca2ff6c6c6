"""The one choice of a response: its output items, and what they cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from protocol.http.openai.call import TOKENIZE_IN_THREAD_ABOVE
from protocol.http.openai.chats.chat import Chat
from protocol.http.openai.chats.choice import ChatChoice
from protocol.http.openai.responses.answer import ResponseUsage
from protocol.http.openai.responses.output import OutputWriter
from protocol.text.deltas import Delta
from protocol.text.model import TextModel


class ResponseChoice(ChatChoice):
    """Writes output items. `send` gets the events of each response of the model, after what `begin` gives; without it
    they are dropped."""

    def __init__(
        self,
        chat: Chat,
        writer: OutputWriter,
        begin: Callable[[], bytes],
        send: Callable[[bytes], Awaitable[None]] | None,
    ) -> None:
        super().__init__(chat.answers, chat.inferences.choices[0])
        self._chat = chat
        self.writer = writer
        self._begin = begin
        self._send = send

    @property
    def is_cut(self) -> bool:
        return self.text.finish_reason == "length"

    async def show(self, deltas: Sequence[Delta]) -> None:
        entries, self.entries = self.entries, []
        logprobs = self.answers.logprobs(entries)
        first = b"" if self._send is None else self._begin()
        data = first + self.writer.write(deltas, logprobs["content"] if logprobs else ())
        if data and self._send is not None:
            await self._send(data)

    def finish(self) -> bytes:
        """The end of the last item."""
        return self.writer.finish("incomplete" if self.is_cut else "completed")

    async def usage(self, text: TextModel) -> ResponseUsage | None:
        """Once all has ended; None where nobody can count."""
        usage = await self._chat.inferences.usage(text)
        if usage is None:
            return None
        return ResponseUsage(usage, self.text.cached_tokens, await self._reasoning_tokens(text))

    async def _reasoning_tokens(self, text: TextModel) -> int:
        """As the tokenizer counts them: a model tells all its tokens together."""
        thoughts, tokenizer = "".join(self.writer.reasoning), text.tokenizer
        if tokenizer is None or not thoughts:
            return 0

        def count() -> int:
            return len(tokenizer.encode(thoughts, add_special_tokens=False))

        return await trio.to_thread.run_sync(count) if len(thoughts) > TOKENIZE_IN_THREAD_ABOVE else count()
