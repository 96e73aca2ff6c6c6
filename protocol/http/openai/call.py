"""What the handlers of chat, completions and embeddings have in common: ids, traces, headers, errors in streams."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from protocol.http.codec.json_values import has_more_values
from protocol.http.errors import BodyTooLarge
from protocol.http.exchange import HttpRequest, header_text
from protocol.http.openai.codec.long_bodies import PicturePlaces, read_long_body
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.errors import FieldError
from protocol.http.openai.limit_headers import limit_headers
from protocol.http.openai.streams.event_stream import OPENAI_STREAM, EventStream, StreamForm
from protocol.http.openai.streams.streaming import stream_events
from protocol.http.openai.targets import Target, find_target
from protocol.http.openai.threads import LARGE_ABOVE, in_thread
from protocol.http.reply import JSON_CONTENT, Headers, Reply
from protocol.load_report import load_report_headers
from protocol.log.request_ids import REQUEST_ID
from protocol.messages import InferenceRequest
from protocol.quotas.quota import Unit
from protocol.sync.sliced import run_sliced

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
Made = TypeVar("Made")

# What a body of more bytes holds is converted in a thread; a longer prompt is tokenized in one.
CONVERT_IN_THREAD_ABOVE = 1 << 14
TOKENIZE_IN_THREAD_ABOVE = 1 << 11


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client: `id` is that of the answer, and of each inference, by which it may be cancelled. A stream
    has the request's own in `x-request-id`, and in a header `id_header` too if there is one."""

    request: HttpRequest
    target: Target
    id: str
    request_id: str
    created: int
    id_header: bytes = b""

    @property
    def headers(self) -> Headers:
        """Those of a stream. A reply gets all but the load report from the application, as every reply does."""
        named = [(name, self.request_id.encode()) for name in (REQUEST_ID, self.id_header) if name]
        return (*named, *self._limits(), *self._load_report())

    def reply(self, value: object) -> Reply:
        return self.reply_in_parts([msgspec.json.encode(value)])

    def reply_in_parts(self, parts: Sequence[bytes]) -> Reply:
        """One whose JSON is written already."""
        return Reply(200, (*JSON_CONTENT, *self._load_report()), parts[0], parts[1:])

    def _load_report(self) -> Headers:
        return load_report_headers(self.request.headers, self.request.services.load_report, self.target.model)

    def _limits(self) -> Headers:
        return () if self.request.limits is None else self.request.limits()

    def begin(self, inferences: Sequence[InferenceRequest]) -> None:
        """What will run: the first one is traced, if it is a traced one's turn, and named where the call fails."""
        request = self.request
        request.end_turn()
        request.inference = inferences[0]
        for inference in inferences:
            inference.origin = request.origin
        self.charge(inferences)
        control = request.services.trace
        if control.is_sampling:
            parent, state = (header_text(request.headers, name) or "" for name in ("traceparent", "tracestate"))
            context = {"traceparent": parent, "tracestate": state} if control.follows_context else {}
            trace = request.take_trace(control.sample(self.target.model, **context))
            if trace is not None:
                trace.stamp("HTTP_RECV_START", request.arrival_ns)
                trace.stamp("HTTP_RECV_END")
        inferences[0].trace = request.trace

    def charge(self, inferences: Sequence[InferenceRequest], count_tokens: Callable[[], float] | None = None) -> None:
        """Charge the inferences to the client's key, if there are keys. `count_tokens` tells at the end what they have
        come to, where no engine counts."""
        charge = self.request.charge
        if charge is not None:
            charge.inferences = max(charge.inferences, len(inferences))
            charge.count_tokens = count_tokens or charge.count_tokens
            for inference in inferences:
                inference.charge = charge

    def settle_tokens(self, tokens: int) -> None:
        """What the call has come to, where that is known at its end."""
        if self.request.charge is not None:
            self.request.charge.settle(Unit.TOKENS, tokens)

    async def stream(self, run: Callable[[EventStream], Awaitable[bytes]], form: StreamForm = OPENAI_STREAM) -> None:
        """As `streaming.stream_events`."""
        charge = self.request.charge

        async def run_charged(events: EventStream) -> bytes:
            try:
                return await run(events)
            finally:
                if charge is not None:
                    charge.end_inferences()

        await stream_events(self.request, lambda: self.headers, run_charged, form)


async def read_body(request: HttpRequest, reader: BodyReader[T], places: PicturePlaces[T] | None = None) -> T:
    """With `places` long pictures there stay in the body.

    Raises:
        BodyTooLarge: it would be made of too many objects in one go.
        ServerError: as `reader.read`.
    """
    settings = request.settings.openai
    read = partial(reader.read, request.body, strict=settings.strict)
    if len(request.body) <= LARGE_ABOVE:
        return read()
    if await run_sliced(has_more_values(memoryview(request.body), settings.max_json_values)):
        raise too_many_values(settings.max_json_values)
    if places is not None:
        found = await run_sliced(read_long_body(request.body, reader, places, strict=settings.strict))
        if found is not None:
            return found
    return await in_thread(request, read)


def too_many_values(most: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has more than {most} JSON values, the maximum: a long prompt is shorter as text than as token ids. "
        "Use --openai-max-json-values to increase the limit.",
        "openai_max_json_values",
    )


async def converted(request: HttpRequest, convert: Callable[[], Made], more: int = 0) -> Made:
    """What `convert` makes of the request's body, and of so many bytes more, in a thread where that may take long."""
    is_long = len(request.body) + more > CONVERT_IN_THREAD_ABOVE
    return await in_thread(request, convert) if is_long else convert()


async def open_call(
    request: HttpRequest, model: str | None, given_id: str | None, prefix: str, separator: str = "-"
) -> Call:
    """Raises ServerError: there is no such model, or the client's key has no quota left for it."""
    request.rename(given_id)
    target = await find_target(request.core, model, request.settings.openai.lora_separator)
    request.limits = partial(limit_headers, request.core, target.model, request.charge)
    if request.charge is not None:
        await request.charge.name_model_when_known(target.model)
    request_id = request.request_id.decode()
    return Call(request, target, f"{prefix}{separator}{request_id}", request_id, int(time.time()))


def queue_priority(priority: int | None) -> int:
    """As Triton counts it: 1 goes first, 0 is the model's default."""
    if priority is not None and priority < 0:
        raise FieldError(f"'priority': expected 0 for the default, or a level from 1 on, got {priority}", "priority")
    return priority or 0
