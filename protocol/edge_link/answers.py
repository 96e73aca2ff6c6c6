"""Answers to one edge process: from replies that actors have sent to records of the next frame.

Flow: actor -> [answers] -> link server -> socket
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.edge_link.charges import LinkCharge, encode_left
from protocol.edge_link.frames import Burst
from protocol.edge_link.observed import NotedCall
from protocol.edge_link.records import (
    ANSWER,
    ANSWERS,
    END,
    ERROR,
    EVENTS,
    FINAL,
    INLINE,
    INLINE_BYTES,
    LEFT,
    NOTED,
    RELEASE,
    RETURN,
    STREAM,
    STREAMED,
    TEMPLATE,
    TRACED,
)
from protocol.edge_link.segments import COPIED_AT_ONCE, WrittenSegment
from protocol.edge_link.served import LinkedRequest, LinkedStream, response_size
from protocol.edge_link.templates import SentTemplates, Template, response_text
from protocol.edge_link.texts import LinkedTrace, ResponseExtras, encode_error, encode_text
from protocol.errors import Internal, ServerError
from protocol.failures import CallbackFailures
from protocol.gen_ai import GenAiCall
from protocol.messages import Buffer, InferenceResponse

# In place of the size of a response that was not written.
NOT_WRITTEN = -1


class AnswerWriter:
    """Writes the records of the next frame. `ready` are requests whose reply has come, which `write_ready` writes.

    Large tensors are put into the segment; what has to wait for room there, or takes a thread, goes to `put_aside`."""

    def __init__(
        self,
        segment: WrittenSegment,
        put_aside: Callable[[int, InferenceResponse, str], None],
        failures: CallbackFailures,
    ) -> None:
        self.ready: list[LinkedRequest] = []
        self.answered = 0  # so far
        self.segment = segment
        self._burst = Burst()
        self._put_aside = put_aside
        self._failures = failures
        self._templates: SentTemplates[None] = SentTemplates()
        self._last_key: list[object] = []
        self._last: Template | None = None  # of the last answer that was no plain one, if the next of its kind may be
        self._run: Template | None = None  # of the last record, if that is a run
        self._run_kind = ANSWERS
        self._count_at = 0

    @property
    def has_written(self) -> bool:
        return bool(self._burst.numbers)

    def write_ready(self, pending: dict[int, LinkedRequest]) -> None:
        """Write the answers that are ready, and end their requests, but for those that were given up meanwhile."""
        ready, self.ready = self.ready, []
        self.answered += len(ready)
        burst = self._burst
        for entry in ready:
            number = entry.number
            submitted, entry.submitted = entry.submitted, None  # the two know each other
            if pending.pop(number, None) is None or submitted is None:
                continue
            try:
                submitted.end()
                reply, request = entry.reply, submitted.request
                if request.trace is not None:
                    self.write_events(number, request.trace)
                if request.gen_ai is not None:
                    self.write_noted(number, request.gen_ai)
                if entry.charge is not None:
                    if isinstance(reply, InferenceResponse):
                        self.write_left(number, entry.charge)
                    entry.end_charge()
                if not isinstance(reply, InferenceResponse):
                    assert reply is not None
                    self.write_error(number, reply)
                    continue
                last = self._last
                key: list[object] = [reply.model_name, reply.model_version]  # as of `_key_of`
                parts: list[Buffer] = []
                size = 0
                for output in reply.outputs:
                    key += output.name, output.datatype, output.shape
                    data = output.data
                    parts.append(data)
                    size += len(data)
                if (
                    last is not None
                    and key == self._last_key
                    and size == last.size
                    and reply.id == request.id
                    and reply.is_final
                    and not reply.parameters
                ):
                    if self._run is not last or self._run_kind != ANSWERS:
                        self._begin_run(ANSWERS, last)
                    numbers = burst.numbers
                    numbers[self._count_at] += 1
                    numbers.append(number)
                    burst.data += parts
                    burst.data_size += size
                elif response_size(reply) <= INLINE_BYTES or not self.write_placed(number, reply, request.id):
                    self.write_response(number, reply, request.id)
            except Exception as error:
                entry.end_charge()
                self.write_failed(number, submitted.request.model_name, error)

    def _begin_run(self, kind: int, template: Template) -> None:
        numbers = self._burst.numbers
        numbers += kind, template.id, 0
        self._count_at = len(numbers) - 1
        self._run, self._run_kind = template, kind

    def write_placed(self, number: int, response: InferenceResponse, own_id: str, flags: int = 0) -> bool:
        """Write a response whose tensors are large, or put it aside; False where it has to go in the frame, because the
        segment is too small for it."""
        size = response_size(response)
        if size > self.segment.blocks.size:
            return False
        if size <= COPIED_AT_ONCE and (place := self.segment.take(size)) is not None:
            self.segment.write(place, [output.data for output in response.outputs])
            self.write_response(number, response, own_id, flags, place)
        else:
            self._put_aside(number, response, own_id)
        return True

    def write_response(
        self, number: int, response: InferenceResponse, own_id: str, flags: int = 0, place: int = INLINE
    ) -> None:
        """Any response, whose tensors are in this place of the segment, or go in the frame. Where it cannot be written
        the place is free again."""
        try:
            template = self._made(response)
            sizes: list[int] = []
            parts = template.parts_of(response.outputs, sizes)
            assert parts is not None
            self._write(template, number, response, own_id, flags, place, parts, sizes)
        except Exception:
            if place != INLINE:
                self.segment.give(place)
            raise
        self._last = template if template.is_plain else None
        self._last_key = _key_of(response)

    def _made(self, response: InferenceResponse) -> Template:
        """Its template, which crosses before it if it is a new one."""
        templates = self._templates
        era = templates.era
        template = templates.made(response_text(response))
        for fresh, text in templates.fresh:
            self._burst.numbers += TEMPLATE, fresh.id, self._burst.add_text(text)
            self._run = None
        templates.fresh.clear()
        if templates.era != era:
            self._last = None
        return template

    def _write(
        self,
        template: Template,
        number: int,
        response: InferenceResponse,
        own_id: str,
        flags: int,
        place: int,
        parts: list[Buffer],
        sizes: list[int],
    ) -> None:
        extras = b""
        if response.parameters or response.id != own_id:
            extras = encode_text(ResponseExtras(response.id, response.parameters))
        burst, size = self._burst, sum(map(len, parts))
        burst.numbers += (
            *(ANSWER, template.id, number, flags | (FINAL if response.is_final else 0)),
            *(burst.add_text(extras), place, size, *sizes),
        )
        if place == INLINE:
            burst.data += parts
            burst.data_size += size
        self._run = None

    def put_streamed(self, stream: LinkedStream, response: InferenceResponse) -> int:
        """Write a response of a stream; its size, or NOT_WRITTEN where that takes a thread, or a wait for room in the
        segment."""
        template, row = stream.template, [stream.number]
        parts = None
        if (
            template is not None
            and stream.era == self._templates.era
            and response.model_version == template.model_version
            and response.model_name == template.model_name
        ):
            parts = template.parts_of(response.outputs, row)
        if template is None or parts is None:
            stream.template = template = self._made(response)
            stream.era = self._templates.era
            row = [stream.number]
            parts = template.parts_of(response.outputs, row)
            assert parts is not None
        size = sum(map(len, parts))
        if size > INLINE_BYTES or response.is_final or response.parameters or response.id != stream.own_id:
            return self._put_alone(template, stream, response, parts, row[1:], size)
        if self._run is not template or self._run_kind != STREAMED:
            self._begin_run(STREAMED, template)
        burst = self._burst
        burst.numbers[self._count_at] += 1
        burst.numbers += row
        burst.data += parts
        burst.data_size += size
        return size

    def _put_alone(
        self,
        template: Template,
        stream: LinkedStream,
        response: InferenceResponse,
        parts: list[Buffer],
        sizes: list[int],
        size: int,
    ) -> int:
        place = INLINE
        if INLINE_BYTES < size <= self.segment.blocks.size:
            found = self.segment.take(size) if size <= COPIED_AT_ONCE else None
            if found is None:
                return NOT_WRITTEN
            place = found
            self.segment.write(place, parts)
        try:
            self._write(template, stream.number, response, stream.own_id, STREAM, place, parts, sizes)
        except Exception:
            if place != INLINE:
                self.segment.give(place)
            raise
        return size

    def write_first(self, stream: LinkedStream) -> None:
        """What is known of a stream before its first response."""
        if stream.charge is not None:
            self.write_left(stream.number, stream.charge)
        if stream.call is not None:
            self.write_noted(stream.number, stream.call)

    def write_noted(self, number: int, call: GenAiCall) -> None:
        """What an engine has noted so far of the observed call that a request belongs to."""
        if isinstance(call, NotedCall) and (text := call.take()):
            self._write_text(NOTED, number, text)

    def write_events(self, number: int, trace: object) -> None:
        """What a trace has recorded, before the answer that it belongs to."""
        if isinstance(trace, LinkedTrace) and (text := trace.take()):
            self._write_text(EVENTS, number, text)

    def write_traced(self, number: int) -> None:
        self._burst.numbers += TRACED, number
        self._run = None

    def write_left(self, number: int, charge: LinkCharge) -> None:
        """What is left of its quota, before its answer."""
        self._write_text(LEFT, number, encode_left(charge))

    def write_error(self, number: int, error: ServerError) -> None:
        self._write_text(ERROR, number, encode_error(error))

    def write_failed(self, number: int, model: str, error: Exception) -> None:
        """In place of an answer that cannot be written."""
        what = f"an answer of model '{model}' could not be sent"
        self._failures.note("edge link", error, what)
        self.write_error(number, Internal(f"{what}; the server's log has the details"))

    def write_return(self, number: int, text: bytes) -> None:
        self._write_text(RETURN, number, text)

    def write_end(self, number: int, *, is_final: bool) -> None:
        self._burst.numbers += END, number, is_final
        self._run = None

    def write_release(self, place: int) -> None:
        self._burst.numbers += RELEASE, place
        self._run = None

    def take(self) -> tuple[list[Buffer], int]:
        """What was written, as a frame in parts, and its size."""
        self._run = None
        size = self._burst.size
        return self._burst.take(), size

    def _write_text(self, kind: int, number: int, text: bytes) -> None:
        self._burst.numbers += kind, number, self._burst.add_text(text)
        self._run = None


def _key_of(response: InferenceResponse) -> list[object]:
    """Equal for responses with the same template, where no size varies."""
    key: list[object] = [response.model_name, response.model_version]
    for output in response.outputs:
        key += output.name, output.datatype, output.shape
    return key
