"""Observed calls of generative models, in OpenTelemetry's terms: what a call asks for, how long it takes, and its
tokens; never what it says.

Flow: edge or engine → [observed call] → `GenAi.record` and the trace of the request. There is one for each call of a
client, by who knows most of it: the OpenAI interface of its calls, an engine of all others. Source: OpenTelemetry,
"Semantic conventions for generative AI".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from protocol.errors import Cancelled, Internal, ServerError

if TYPE_CHECKING:
    from protocol.server_settings import Trace

PROVIDER: Final = "trioton"
CHAT, TEXT_COMPLETION, EMBEDDINGS = "chat", "text_completion", "embeddings"
# Not among those of the conventions, which allow others.
SCORE, RERANK = "score", "rerank"

Attribute: TypeAlias = str | int | float | Sequence[str]

# What a request may say, by the names of OpenAI's fields and vLLM's. Texts of its own, as stop strings, are left out.
_REQUESTED = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")


class Generated(msgspec.Struct, frozen=True):
    """What a call has come to; None for counts that nobody knows. `dimensions` are those of vectors."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    dimensions: int | None = None


class EndedCall(msgspec.Struct, frozen=True):
    """What is recorded of a call. `error_type` is empty where it has succeeded; only then are there times of tokens,
    in seconds."""

    operation: str
    request_model: str
    response_model: str
    error_type: str
    seconds: float
    first_token_seconds: float | None = None
    per_token_seconds: float | None = None


class GenAi(Protocol):
    """Where calls are recorded. There only if they are to be observed."""

    def record(self, call: EndedCall) -> None: ...


class _Unrecorded:
    def record(self, call: EndedCall) -> None:
        pass


UNRECORDED: Final[GenAi] = _Unrecorded()
"""For calls that are observed for their tokens alone, or that another process records."""


class GenAiCall:
    """One call, from its arrival (`time.monotonic_ns`) to its end. `result` tells what it has come to once it has
    ended well, and None before."""

    def __init__(
        self,
        gen_ai: GenAi,
        operation: str,
        *,
        model: str,
        arrival_ns: int,
        response_id: str = "",
        result: Callable[[], Generated | None] | None = None,
    ) -> None:
        self.requested: Mapping[str, Attribute] = {}
        self._gen_ai = gen_ai
        self._operation = operation
        self._model = model
        self._arrival_ns = arrival_ns
        self._response_id = response_id
        self._result = result
        self._generated: Generated | None = None
        self._first_ns = 0
        self._error_type = ""
        self._has_ended = False

    def first_token(self) -> None:
        """The first token, or the first response, is there. Later calls do nothing."""
        if not self._first_ns:
            self._first_ns = time.monotonic_ns()

    @property
    def noted(self) -> tuple[int, Generated | None]:
        """When the first token was there, 0 for not yet, and what `succeed` was told."""
        return self._first_ns, self._generated

    def note(self, first_ns: int, generated: Generated | None) -> None:
        """What was `noted` by another process. Of several first tokens the first one counts."""
        if first_ns:
            self._first_ns = min(first_ns, self._first_ns or first_ns)
        self._generated = generated or self._generated

    def succeed(self, generated: Generated) -> None:
        """What it has come to, where no `result` tells."""
        self._generated = generated

    def fail(self, error: Exception) -> None:
        """The first error is that of the call."""
        kind = error.kind if isinstance(error, ServerError) else Internal.kind
        self._error_type = self._error_type or kind

    def end(self, trace: Trace | None) -> None:
        """Record it, once, and annotate the trace. One that has neither failed nor succeeded was given up."""
        if self._has_ended:
            return
        self._has_ended = True
        generated = self._generated if self._result is None else self._result()
        if generated is None:
            self.fail(Cancelled(""))
        self._gen_ai.record(self._ended(generated, time.monotonic_ns()))
        if trace is not None:
            trace.annotate(self._attributes(generated))

    def _ended(self, generated: Generated | None, now: int) -> EndedCall:
        first = per_token = None
        if not self._error_type and self._first_ns:
            first = (self._first_ns - self._arrival_ns) / 1e9
            tokens = 0 if generated is None else generated.output_tokens or 0
            if tokens > 1:
                per_token = (now - self._first_ns) / 1e9 / (tokens - 1)
        seconds = (now - self._arrival_ns) / 1e9
        return EndedCall(self._operation, self._model, self._model, self._error_type, seconds, first, per_token)

    def _attributes(self, generated: Generated | None) -> dict[str, Attribute]:
        found: dict[str, Attribute] = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
            **{f"gen_ai.request.{name}": value for name, value in self.requested.items()},
        }
        if self._error_type:
            found["error.type"] = self._error_type
        if generated is None:
            return found
        found["gen_ai.response.model"] = self._model
        if self._response_id:
            found["gen_ai.response.id"] = self._response_id
        if generated.finish_reasons:
            found["gen_ai.response.finish_reasons"] = generated.finish_reasons
        if generated.input_tokens is not None:
            found["gen_ai.usage.input_tokens"] = generated.input_tokens
        if generated.output_tokens is not None:
            found["gen_ai.usage.output_tokens"] = generated.output_tokens
        if generated.dimensions is not None:
            found["gen_ai.embeddings.dimension.count"] = generated.dimensions
        return found


def requested(fields: object) -> dict[str, Attribute]:
    """What sampling fields say, without the prefix of the names."""
    given = {name: getattr(fields, name, None) for name in _REQUESTED}
    return {name: value for name, value in given.items() if value is not None}
