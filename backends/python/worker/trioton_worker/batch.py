"""Batches in the worker: EXECUTE frames to request objects, responses to EXECUTED frames."""

from __future__ import annotations

import mmap
import struct
import weakref
from functools import partial
from typing import Any, Sequence

import numpy as np

from .connection import Buffer, Connection, Frame, Head, encode_json
from .errors import crossing
from .frames import BESIDE, COLUMNS, ERROR, EXECUTED, INLINE_BYTE_SIZE, LATER, NO_SLOT, PREFIX, RESCHEDULED, pack
from .packing import Packing, read_tensors
from .records import RELEASE_RESCHEDULE, RequestHeader, RequestRecord, received_records
from .responses import InferenceResponse
from .schemas import Schemas
from .session import LiveBatch
from .tensors import Raw

# In an EXECUTED frame, where it says whether the model keeps inputs, and behind that how many bytes are in the segment.
_KEPT_AT = PREFIX.size + 8


class Segments:
    """The shared memory of this worker, as far as the server has given any, by its slots."""

    def __init__(self) -> None:
        self._in_slots: dict[int, mmap.mmap] = {}
        self._begins: dict[int, int] = {}  # their addresses

    def take(self, connection: Connection, head: Head) -> None:
        """Replace what the frame brings anew. Arrays that a model holds keep the old memory mapped."""
        for slot in head.get("segments", ()):
            segment = self._in_slots[slot] = connection.next_segment()
            self._begins[slot] = _address(segment)

    def input_memory(self, batch: LiveBatch) -> Any:
        """An array over the whole segment, made anew for each batch: it lives as long as a view of it."""
        return np.frombuffer(self._in_slots[batch.inputs], np.uint8)

    def output_memory(self, batch: LiveBatch, size: int) -> memoryview | None:
        """The segment for the batch's outputs, if it can hold `size` bytes."""
        found = self._in_slots.get(batch.outputs)
        return None if found is None or len(found) < size else memoryview(found)

    def place_of(self, batch: LiveBatch, part: Raw) -> int:
        """Where among the inputs it lies; -1 for what lies elsewhere."""
        place = _address(part) - self._begins[batch.inputs]
        return place if 0 <= place <= len(self._in_slots[batch.inputs]) - len(part) else -1

    def copy_placed(self, batch: LiveBatch) -> None:
        """Put outputs that were left among the inputs where they would have been."""
        inputs, outputs = self._in_slots[batch.inputs], self._in_slots.get(batch.outputs)
        for position, place, size in batch.placed:
            outputs[position : position + size] = memoryview(inputs)[place : place + size]  # type: ignore[index]  # since some are placed


def _address(memory: Any) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data


def received_requests(frame: Frame, segments: Segments, batch: LiveBatch, plain: RequestHeader) -> list[RequestRecord]:
    """The requests of an EXECUTE frame; `plain` is the header of those of which it says no more."""
    head = frame.head
    memory = frame.body
    if batch.inputs != NO_SLOT:
        memory = segments.input_memory(batch)
        batch.memory = weakref.ref(memory)
    records = received_records(read_tensors(frame, batch.session.schemas, memory, skipped=3), batch, plain)
    if head:
        batch.cancelled.update(head.get("cancelled", ()))
        for index, about in head.get("requests", ()):
            describe_request(records[index], about)
    if batch.session.is_decoupled:
        for record in records:
            record.open_reply()
    return records


def describe_request(record: RequestRecord, about: str | Head) -> None:
    """Say what a received request is besides its inputs: nothing but an id, or what the head of EXECUTE has of it."""
    if isinstance(about, str):
        record.id = about
        return
    record.id = about["id"]
    requested = about["outputs"]
    record.header = RequestHeader(
        record.header.output_names if requested is None else frozenset(requested),
        correlation_id=about["correlation_id"],
        flags=about["flags"],
        timeout=about["timeout"],
        parameters=about["parameters"],
        trace=about.get("trace"),
    )


class BadResult(Exception):
    """What a method of the model returned is not what it must return; the text is the whole message."""


def check_responses(responses: object, requests: Sequence[RequestRecord]) -> Sequence[InferenceResponse | None]:
    """The return value of `execute`: for each request its response, or None where it is answered otherwise."""
    if responses is None:
        return [None] * len(requests)
    if not isinstance(responses, list):
        raise BadResult(f"Expected a list in the execute return, found type '{type(responses)}'.")
    if len(responses) != len(requests):
        raise BadResult(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(responses)}\n"
        )
    for request, response in zip(requests, responses):
        if response is None:
            continue
        if request.release_flags == RELEASE_RESCHEDULE:
            raise BadResult(
                "Expected a None object in the execute function return list for reschduled request, found type "
                f"'{type(response)}'."
            )
        if not isinstance(response, InferenceResponse):
            raise BadResult(
                "Expected an 'InferenceResponse' object in the execute function return list, found type "
                f"'{type(response)}'."
            )
    return responses


def answered_otherwise(request: RequestRecord, response: InferenceResponse | None) -> int:
    """RESCHEDULED or LATER for a request that is not answered by what `execute` returned for it, else 0; to be asked of
    those without a response, or with a sender."""
    if request.release_flags == RELEASE_RESCHEDULE:
        return RESCHEDULED
    reply = request.open_reply()
    assert reply is not None  # the request came from the server
    if response is None or reply.sent_count:
        return LATER
    reply.close()
    return 0


class Answer:
    """What is to be said of a batch: runs, head, and the tensors' bytes still where the model left them."""

    __slots__ = ("head", "packing")

    def __init__(
        self,
        responses: Sequence[InferenceResponse | None],
        requests: Sequence[RequestRecord],
        known: Schemas,
    ) -> None:
        head: Head = {}
        packing = Packing(known)
        for index, (response, request) in enumerate(zip(responses, requests)):
            if response is None or request.reply is not None:
                otherwise = answered_otherwise(request, response)
                if otherwise:
                    packing.add_other(otherwise)
                    continue
            assert response is not None  # or it would be answered otherwise
            tensors, error, parameters = response._parts
            if parameters:
                head.setdefault("parameters", []).append([index, parameters])
            if error is None:
                packing.add(tensors, request.header.output_names)
            else:
                packing.add_other(ERROR)
                head.setdefault("errors", []).append([index, *crossing(error)])
        self.head = head
        self.packing = packing

    def frame(self, batch: LiveBatch, segments: Segments, *, can_share: bool) -> bytearray:
        """The EXECUTED frame, as `executed` makes it. The outputs are copied into it, or into their segment.

        Copied, because outputs may be views of the batch's inputs, and would look like inputs that the model keeps.
        Large ones that are stay there, and it is said where.
        """
        packing = self.packing
        if packing.size > INLINE_BYTE_SIZE and can_share and batch.outputs != BESIDE:
            memory = segments.output_memory(batch, packing.size)
            if memory is not None:
                batch.placed = packing.copy_to(
                    memory, None if batch.memory is None else partial(segments.place_of, batch)
                )
                runs, schemas, _, batch.shared = packing.parts()
                is_copied = sum([size for _, _, size in batch.placed]) < batch.shared
                return executed(batch, self.head, batch.shared if is_copied else 0, runs, schemas)
            self.head["wanted"] = packing.size
        runs, schemas, body, size = packing.parts()
        return executed(batch, self.head, 0, runs, schemas, body, size)


def executed(
    batch: LiveBatch,
    head: Head,
    shared: int = 0,
    runs: Sequence[int] = (),
    schemas: bytes = b"",
    body: Sequence[Buffer] = (),
    body_size: int = 0,
) -> bytearray:
    """An EXECUTED frame, whole, but for whether the model keeps inputs; `shared` bytes of outputs are in their
    segment."""
    places = [number for position, place, _ in batch.placed for number in (position, place)] if batch.placed else ()
    numbers = (batch.number, 0, shared, len(batch.placed), *places, *runs)
    column = COLUMNS[len(numbers)](*numbers)
    start = pack(EXECUTED, encode_json(head) if head else b"", column, schemas, body_size)
    return bytearray().join((start, *body))


def note_kept(frame: bytearray, batch: LiveBatch, segments: Segments) -> None:
    """Say in an EXECUTED frame whether the model holds a tensor or an array of a batch whose inputs are shared; asked
    when ours are gone. It may write to them, so no outputs stay there."""
    if batch.memory is not None and batch.memory() is not None:
        segments.copy_placed(batch)
        struct.pack_into("2q", frame, _KEPT_AT, 1, batch.shared)


def failed_batch(message: str, trace: str = "") -> Head:
    """The head of an EXECUTED frame that fails every request of the batch."""
    return {"failure": {"message": message, "traceback": trace}}
