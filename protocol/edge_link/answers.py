"""Answers to one edge process: from replies that actors have sent to records of the next frame.

Flow: actor -> [answers] -> link server -> socket
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.datatypes import DataType
from protocol.edge_link.charges import LinkCharge, encode_left
from protocol.edge_link.frames import Burst
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
    RELEASE,
    RETURN,
    STREAM,
    TEMPLATE,
    TRACED,
)
from protocol.edge_link.segments import WrittenSegment
from protocol.edge_link.served import LinkedRequest, LinkedStream, response_size
from protocol.edge_link.templates import SentTemplates, Template, encode_template, response_text
from protocol.edge_link.texts import LinkedTrace, ResponseExtras, encode_error, encode_text
from protocol.errors import Internal, ServerError
from protocol.failures import CallbackFailures
from protocol.messages import Buffer, InferenceResponse, flat

# Copying more takes a thread.
COPIED_AT_ONCE = 1 << 20

_NO_EXTRAS = ResponseExtras()


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
        self._last: Template | None = None
        self._run: Template | None = None  # of the last record, if that is a run
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
                if entry.charge is not None:
                    if isinstance(reply, InferenceResponse):
                        self.write_left(number, entry.charge)
                    entry.end_charge()
                if not isinstance(reply, InferenceResponse):
                    assert reply is not None
                    self.write_error(number, reply)
                    continue
                last = self._last
                key: list[object] = []
                parts: list[Buffer] = []
                for output in reply.outputs:
                    key += output.name, output.datatype, output.shape
                    parts.append(output.data)
                if (
                    last is not None
                    and key == self._last_key
                    and reply.id == request.id
                    and reply.is_final
                    and not reply.parameters
                    and reply.model_version == last.model_version
                    and reply.model_name == last.model_name
                    and last.is_plain
                    and sum(map(len, parts)) == last.size
                ):
                    if self._run is not last:
                        self._begin_run(last)
                    numbers = burst.numbers
                    numbers[self._count_at] += 1
                    numbers.append(number)
                    burst.data += parts
                    burst.data_size += last.size
                elif response_size(reply) <= INLINE_BYTES or not self.write_placed(number, reply, request.id):
                    self.write_response(number, reply, request.id)
            except Exception as error:
                entry.end_charge()
                what = f"an answer of model '{submitted.request.model_name}' could not be sent"
                self._failures.note("edge link", error, what)
                self.write_error(number, Internal(f"{what}; the server's log has the details"))

    def _begin_run(self, template: Template) -> None:
        numbers = self._burst.numbers
        numbers += ANSWERS, template.id, 0
        self._count_at = len(numbers) - 1
        self._run = template

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
        """Any response, whose tensors are in this place of the segment, or go in the frame."""
        burst = self._burst
        template = self._templates.made(response_text(response))
        if self._templates.fresh:
            self._templates.fresh.clear()
            burst.numbers += TEMPLATE, template.id, burst.add_text(encode_template(template))
        self._last = template
        self._last_key = [each for output in response.outputs for each in (output.name, output.datatype, output.shape)]
        extras = b""
        if response.parameters or response.id != own_id:
            extras = encode_text(ResponseExtras(response.id, response.parameters))
        parts = [flat(output.data) for output in response.outputs]
        size = sum(map(len, parts))
        burst.numbers += (
            *(ANSWER, template.id, number, flags | (FINAL if response.is_final else 0)),
            *(burst.add_text(extras), place, size),
            *[output.byte_size for output in response.outputs if output.datatype is DataType.BYTES],
        )
        if place == INLINE:
            burst.data += parts
            burst.data_size += size
        self._run = None

    def put_streamed(self, stream: LinkedStream, response: InferenceResponse) -> bool:
        """Write a response of a stream; False where that takes a thread, or a wait for room in the segment."""
        size = response_size(response)
        place = INLINE
        if INLINE_BYTES < size <= self.segment.blocks.size:
            found = self.segment.take(size) if size <= COPIED_AT_ONCE else None
            if found is None:
                return False
            place = found
            self.segment.write(place, [output.data for output in response.outputs])
        self.write_response(stream.number, response, stream.own_id, STREAM, place)
        return True

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
