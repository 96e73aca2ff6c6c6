"""Replies of the core, in an edge process: from records of a frame to whoever waits for them. The other side of
`answers`.

Flow: socket -> linked core -> [replies] -> edges

All that the core says is valid, or BrokenFrame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocol.edge_link.asked import Asked, LinkedSubmission, PendingCall, PendingStream
from protocol.edge_link.charges import decode_left
from protocol.edge_link.edge_traces import EdgeTrace
from protocol.edge_link.frames import BrokenFrame, Frame, take_records
from protocol.edge_link.observed import note
from protocol.edge_link.operations import CALLS, decode_result
from protocol.edge_link.records import (
    ANSWER,
    ANSWERS,
    END,
    ERROR,
    EVENTS,
    FINAL,
    INLINE,
    LEFT,
    NOTED,
    RELEASE,
    RETURN,
    STREAM,
    STREAMED,
    TEMPLATE,
    TRACED,
)
from protocol.edge_link.segments import ReadSegment
from protocol.edge_link.templates import ReceivedTemplates
from protocol.edge_link.texts import ResponseExtras, StampsText, decode_error, decode_text, replay
from protocol.errors import QuotaExceeded
from protocol.log.access_record import AccessRecord
from protocol.messages import InferenceResponse, Tensor
from protocol.quotas.told import ToldCharge


class TellsCore(Protocol):
    """The way back to the core."""

    def credit(self, number: int, stream: PendingStream, size: int) -> None:
        """A response of a stream was passed on, of so many bytes."""

    def tell_stamps(self, text: StampsText) -> None:
        """As `edge_traces.TellsTraces`."""

    def release(self, place: int) -> None:
        """The core reads no more there. Raises BrokenFrame."""


class ReplyReader:
    """Reads the records of frames, large tensors from the segment `outputs`. What ends is taken out of `pending`."""

    def __init__(self, pending: dict[int, Asked], outputs: ReadSegment, half_of_outputs: int, core: TellsCore) -> None:
        self._pending = pending
        self._outputs = outputs
        self._half_of_outputs = half_of_outputs
        self._core = core
        self._templates = ReceivedTemplates()
        self._handlers: dict[int, Callable[[Frame], None]] = {
            TEMPLATE: self._templates.receive,
            ANSWERS: self._answers,
            ANSWER: self._answer,
            STREAMED: self._streamed,
            EVENTS: self._events,
            TRACED: self._traced,
            LEFT: self._left,
            NOTED: self._noted,
            ERROR: self._error,
            END: self._end,
            RETURN: self._return,
            RELEASE: self._release,
        }

    def take(self, frame: Frame) -> None:
        """Raises BrokenFrame."""
        take_records(frame, self._handlers)

    def _answers(self, frame: Frame) -> None:
        number, count = frame.take(2)
        template = self._templates[number]
        size = template.size
        numbers = frame.take(count)
        data = frame.take_data(count * size)
        if not template.is_fixed:
            raise BrokenFrame("its template of plain answers has sizes that vary")
        pending, places = self._pending, template.tensors
        start = 0
        for number in numbers:
            found = pending.get(number)
            if type(found) is LinkedSubmission:
                del pending[number]
                outputs = []
                for name, datatype, shape, begin, end in places:
                    outputs.append(Tensor(name, datatype, shape, data[start + begin : start + end]))
                own_id = found.request.id
                found.reply_to.send_nowait(
                    InferenceResponse(template.model_name, template.model_version, outputs, own_id)
                )
            elif found is not None:
                raise BrokenFrame(f"it answers {number}, which is no plain request")
            start += size

    def _answer(self, frame: Frame) -> None:
        template_number, number, flags, extras_size, place, size = frame.take(6)
        template = self._templates[template_number]
        sizes = frame.take(template.count_varying)
        text = frame.take_text(extras_size)
        if place == INLINE:
            data = frame.take_data(size)
        else:
            data = self._outputs.lend(place, size)
            if self._outputs.lent_bytes > self._half_of_outputs:  # a client that reads slowly must not hold it
                data = memoryview(bytes(data))
        found = self._pending.get(number)
        outputs = template.views(data, sizes)
        if found is None:  # given up
            return
        response = InferenceResponse(
            template.model_name,
            template.model_version,
            outputs,
            found.request.id,
            is_final=bool(flags & FINAL),
        )
        if extras_size:
            extras = decode_text(text, ResponseExtras)
            response.id, response.parameters = extras.id, extras.parameters
        if isinstance(found, PendingStream) and flags & STREAM:
            if found.take(response, size):
                self._core.credit(number, found, size)
        elif isinstance(found, LinkedSubmission) and not flags & STREAM:
            del self._pending[number]
            found.reply_to.send_nowait(response)
        else:
            raise BrokenFrame(f"it answers {number}, which asked for something else")

    def _streamed(self, frame: Frame) -> None:
        template_number, count = frame.take(2)
        template = self._templates[template_number]
        width = 1 + template.count_varying
        rows = frame.take(count * width)
        pending = self._pending
        for start in range(0, len(rows), width):
            number, sizes = rows[start], rows[start + 1 : start + width]
            size = template.size + sum(sizes)
            outputs = template.views(frame.take_data(size), sizes)
            found = pending.get(number)
            if type(found) is PendingStream:
                response = InferenceResponse(template.model_name, template.model_version, outputs, found.request.id)
                response.is_final = False
                if found.take(response, size):
                    self._core.credit(number, found, size)
            elif found is not None:
                raise BrokenFrame(f"it answers {number}, which is no stream")

    def _events(self, frame: Frame) -> None:
        number, size = frame.take(2)
        text = frame.take_text(size)
        found = self._pending.get(number)
        record = None if found is None else found.request.trace
        if isinstance(record, AccessRecord):
            own, record.trace = record.trace, None  # in which the core itself records
            try:
                replay(text, record)
            finally:
                record.trace = own

    def _traced(self, frame: Frame) -> None:
        (number,) = frame.take(1)
        found = self._pending.get(number)
        trace = None if found is None else found.request.trace
        if isinstance(trace, AccessRecord):
            trace = trace.trace
        if isinstance(trace, EdgeTrace):
            trace.is_taken = True
        else:  # its client has left
            self._core.tell_stamps(StampsText(number, [], {}))

    def _noted(self, frame: Frame) -> None:
        number, size = frame.take(2)
        text = frame.take_text(size)
        found = self._pending.get(number)
        if found is not None and found.request.gen_ai is not None:
            note(found.request.gen_ai, text)

    def _left(self, frame: Frame) -> None:
        number, size = frame.take(2)
        text = frame.take_text(size)
        found = self._pending.get(number)
        if found is not None and (charge := found.request.charge) is not None:
            charge.held = decode_left(text, charge.account.now())

    def _error(self, frame: Frame) -> None:
        number, size = frame.take(2)
        error = decode_error(frame.take_text(size))
        if (found := self._pending.pop(number, None)) is not None:
            if isinstance(error, QuotaExceeded) and isinstance(found.request.charge, ToldCharge):
                found.request.charge.refuse(error)
            found.fail(error)

    def _end(self, frame: Frame) -> None:
        number, is_final = frame.take(2)
        found = self._pending.pop(number, None)
        if isinstance(found, PendingStream):
            found.end(bool(is_final))
        elif found is not None:
            raise BrokenFrame(f"it ends {number}, which is no stream")

    def _return(self, frame: Frame) -> None:
        number, size = frame.take(2)
        text = frame.take_text(size)
        found = self._pending.pop(number, None)
        if isinstance(found, PendingCall):
            found.send_nowait(decode_result(text, CALLS[found.name]))
        elif found is not None:
            raise BrokenFrame(f"it answers {number}, which is no call")

    def _release(self, frame: Frame) -> None:
        (place,) = frame.take(1)
        self._core.release(place)
