"""Requests of one edge process: from `InferenceRequest` to records of the next frame.

Flow: edge -> linked core -> [requests] -> socket
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from protocol.datatypes import DataType
from protocol.edge_link.edge_traces import EdgeTrace
from protocol.edge_link.frames import Burst
from protocol.edge_link.records import (
    CALL,
    CANCEL,
    CREDIT,
    INLINE,
    INLINE_BYTES,
    PLAIN,
    RELEASE,
    REQUEST,
    TEMPLATE,
)
from protocol.edge_link.segments import COPIED_AT_ONCE, WrittenSegment
from protocol.edge_link.templates import SentTemplates, Template, request_text
from protocol.edge_link.texts import RequestExtras, encode_tags, encode_text
from protocol.errors import InvalidArgument
from protocol.log.access_record import AccessRecord
from protocol.messages import Buffer, InferenceRequest, LaidOutTensor, Tensor, flat
from protocol.quotas.told import ToldCharge

_IN_HERE = (Tensor, LaidOutTensor)
# What msgspec raises for what MessagePack does not know: integers of more than 64 bits, halves of letters.
_UNENCODABLE = (OverflowError, UnicodeError)


def can_cross(request: InferenceRequest) -> bool:
    """Whether a request can be carried, with all that belongs to it."""
    if request.caller is not None or request.has_device_inputs or request.device_outputs:
        return False
    trace = request.trace
    if isinstance(trace, AccessRecord):
        trace = trace.trace
    if trace is not None and not isinstance(trace, EdgeTrace):
        return False
    # Others are on a device, or in the memory of a client.
    return all(type(tensor) in _IN_HERE for tensor in request.inputs)


class Copied(NamedTuple):
    """A request whose tensors belong at this place of the segment, where a thread is to copy them."""

    number: int
    request: InferenceRequest
    flags: int
    place: int
    parts: list[Buffer]


class RequestWriter:
    """Writes the records of the next frame. Large tensors are put into the segment, while there is room; what takes a
    thread goes to `put_aside`, to be written again once it is there."""

    def __init__(self, segment: WrittenSegment, put_aside: Callable[[Copied], None]) -> None:
        self.segment = segment
        self._put_aside = put_aside
        self._burst = Burst()
        self._templates: SentTemplates[tuple[object, str, int, int, int, str]] = SentTemplates()
        self._run: Template | None = None  # of the last record, if that is a run
        self._count_at = 0

    @property
    def has_written(self) -> bool:
        return bool(self._burst.numbers)

    @property
    def frame_size(self) -> int:
        return self._burst.size

    def take(self) -> tuple[list[Buffer], int]:
        """What was written, as a frame in parts, and its size."""
        self._run = None
        size = self._burst.size
        return self._burst.take(), size

    def write(self, number: int, request: InferenceRequest, flags: int = 0, copied_to: int | None = None) -> None:
        """Write a request that can cross, or put it aside.

        Args:
            copied_to: the place in the segment where its tensors are already.

        Raises:
            InvalidArgument: it says what cannot be encoded, as an integer of more than 64 bits. Nothing is written.
        """
        charge = request.charge
        told = charge if isinstance(charge, ToldCharge) and (charge.is_limited or charge.inferences) else None
        try:
            template = self._template(request)
            tags = b"" if request.origin is None else encode_tags(request.origin.tags(request.id))
        except _UNENCODABLE as error:
            raise _unencodable(request, error) from None
        burst = self._burst
        parts = [tensor.data for tensor in request.inputs]
        if (
            template.is_plain
            and told is None
            and request.gen_ai is None
            and not (flags or request.id or request.parameters or request.sequence_id or request.trace is not None)
            and not (request.sequence_start or request.sequence_end)
            and _size(parts) == template.size
        ):
            numbers = burst.numbers
            if self._run is not template:
                numbers += PLAIN, template.id, 0
                self._count_at = len(numbers) - 1
                self._run = template
            numbers[self._count_at] += 1
            numbers += number, burst.add_text(tags)
            burst.data += parts
            burst.data_size += template.size
            return
        parts = [flat(part) for part in parts]
        size = sum(map(len, parts))
        place = copied_to
        if place is None and size > COPIED_AT_ONCE and not request.sequence_id:  # which its next must not overtake
            place = self.segment.take(size)
            if place is not None:
                self._put_aside(Copied(number, request, flags, place, parts))
                return
        text = self._extras(number, request, told)
        if place is None and size > INLINE_BYTES:
            place = self.segment.take(size)
        burst.numbers += (
            *(REQUEST, template.id, number, flags, burst.add_text(tags), burst.add_text(text)),
            *(INLINE if place is None else place, size),
            *[tensor.byte_size for tensor in request.inputs if tensor.datatype is DataType.BYTES],
        )
        if place is None:
            burst.data += parts
            burst.data_size += size
        elif copied_to is None:
            self.segment.write(place, parts)
        self._run = None

    def _extras(self, number: int, request: InferenceRequest, told: ToldCharge | None) -> bytes:
        """Raises InvalidArgument; then its charge has not been told of it."""
        trace, record = request.trace, None
        if isinstance(trace, AccessRecord):
            trace, record = trace.trace, trace
        extras = RequestExtras(
            request.id,
            request.parameters,
            request.sequence_id,
            request.sequence_start,
            request.sequence_end,
            record is not None,
            trace.announce(number) if isinstance(trace, EdgeTrace) else None,
            None if told is None else told.untold,
            0 if told is None else told.number_with(number),
            request.gen_ai is not None,
            1 if told is None else max(1, told.inferences),
        )
        try:
            text = encode_text(extras)
        except _UNENCODABLE as error:
            raise _unencodable(request, error) from None
        if told is not None:
            told.announce(request.model_name, number)
        return text

    def _template(self, request: InferenceRequest) -> Template:
        key = None
        if request.template is not None:  # which says nothing of priority, timeout and the client's key
            key = (
                *(request.template, request.model_name, request.model_version),
                *(request.priority, request.timeout_microseconds),
                "" if request.charge is None else request.charge.account.name,
            )
        if key is not None and (found := self._templates.find(key)) is not None:
            return found
        template = self._templates.made(request_text(request), key)
        for fresh, text in self._templates.fresh:
            self._burst.numbers += TEMPLATE, fresh.id, self._burst.add_text(text)
            self._run = None
        self._templates.fresh.clear()
        return template

    def write_cancel(self, number: int) -> None:
        self._burst.numbers += CANCEL, number
        self._run = None

    def write_credit(self, number: int, responses: int, size: int) -> None:
        self._burst.numbers += CREDIT, number, responses, size
        self._run = None

    def write_release(self, place: int) -> None:
        self._burst.numbers += RELEASE, place
        self._run = None

    def write_text(self, kind: int, text: object, *numbers: int) -> None:
        """One of the records that consist of numbers and a text."""
        encoded = encode_text(text)
        self._burst.numbers += kind, *numbers, self._burst.add_text(encoded)
        self._run = None

    def write_call(self, number: int, text: bytes) -> None:
        self._burst.numbers += CALL, number, self._burst.add_text(text)
        self._run = None


def _unencodable(request: InferenceRequest, error: Exception) -> InvalidArgument:
    return InvalidArgument(f"the request to model '{request.model_name}' has a value that cannot be passed on: {error}")


def _size(parts: list[Buffer]) -> int:
    """Of all together, where each is flat; else not that."""
    try:
        return sum(map(len, parts))
    except TypeError:  # a view without dimensions has no length
        return -1
