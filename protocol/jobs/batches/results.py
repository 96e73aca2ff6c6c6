"""Results of batches: how the answer to a line is kept, and the lines of the output and error files. Pure.

An answer is kept as it is written: `{"status_code": …, "request_id": …, "body": …}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from protocol.jobs.batches.batch import Batch, TokenUsage
from protocol.jobs.states import JobState
from protocol.jobs.store import Item
from protocol.messages import Buffer

# Why a line has no answer, as OpenAI words it.
_UNANSWERED = {
    JobState.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    JobState.CANCELLED: ("batch_cancelled", "This request was not executed, since the batch was cancelled."),
}


def answer_parts(status: int, request_id: bytes, body: Sequence[Buffer]) -> list[Buffer]:
    """An answer, as it is kept. The body is JSON in one line."""
    head = b'{"status_code":%d,"request_id":%b,"body":' % (status, msgspec.json.encode(request_id.decode("latin-1")))
    return [head, *body, b"}"]


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Answer(msgspec.Struct):
    body: _Body


_read_answer = msgspec.json.Decoder(_Answer).decode


@dataclass(slots=True)
class ResultLines:
    """Makes the lines of one batch's files, for some items after others.

    Attributes:
        usage: of all answers so far.
    """

    batch: Batch
    usage: TokenUsage = field(default_factory=TokenUsage)

    def lines_of(self, items: Sequence[Item]) -> tuple[bytes, bytes]:
        """Those of the output file, and those of the error file."""
        answers: list[bytes] = []
        failures: list[bytes] = []
        for item in items:
            if item.state is JobState.SUCCEEDED and item.result is not None:
                answers.append(self._line(item, item.result, b"null"))
                self._count(item.result)
            elif item.result is not None:
                failures.append(self._line(item, item.result, b"null"))
            else:
                failures.append(self._line(item, b"null", msgspec.json.encode(_error(item))))
        return b"".join(answers), b"".join(failures)

    def _line(self, item: Item, response: Buffer, error: bytes) -> bytes:
        name = f"batch_req_{self.batch.id.removeprefix('batch_')}{item.index:08x}"
        head = b'{"id":"%b","custom_id":%b,"response":' % (name.encode(), msgspec.json.encode(item.custom_id))
        return b"".join((head, response, b',"error":', error, b"}\n"))

    def _count(self, answer: Buffer) -> None:
        try:
            usage = _read_answer(answer).body.usage
        except msgspec.DecodeError:  # none that we know
            return
        if usage is None:
            return
        asked = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
        made = usage.completion_tokens_details or usage.output_tokens_details or _Details()
        self.usage = TokenUsage(
            self.usage.input + (usage.prompt_tokens or usage.input_tokens or 0),
            self.usage.output + (usage.completion_tokens or usage.output_tokens or 0),
            self.usage.cached + (asked.cached_tokens or 0),
            self.usage.reasoning + (made.reasoning_tokens or 0),
        )


def _error(item: Item) -> dict[str, str]:
    if item.error is not None:
        code, message = item.error.kind.lower(), item.error.message
    else:
        code, message = _UNANSWERED.get(item.state, ("unknown", f"This request is {item.state}."))
    return {"code": code, "message": message}
