"""Fast path of ModelInfer: a call whose message was received whole is decoded, submitted and answered from callbacks.

    connection -> calls -> [direct_infer] -> core … actor -> replies -> calls -> outgoing

One per edge; the calls are owned by their connections. Which calls are read here is decided by what the edge alone
knows: its settings (`of`), tracing, and whether the message can be decoded and its inputs fetched without a thread
(`begin`). All others are read by a task, with `infer`. The core takes both alike, and the answers are the same.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

import trio

from protocol.errors import Decoupled, Unsupported
from protocol.grpc.call.access import error_text, status_word
from protocol.grpc.call.receiving import CALL_MEMORY, ReceiveMemory
from protocol.grpc.call.request_head import RequestHead
from protocol.grpc.call.stream import Stream
from protocol.grpc.codec.infer import encode_response
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.inference.failed_calls import MODEL_INFER, note_failure
from protocol.grpc.inference.infer import NOT_DECOUPLED
from protocol.grpc.settings import GrpcSettings
from protocol.log.access_log import Ended
from protocol.log.access_record import AccessRecord
from protocol.log.call_origin import call_tags
from protocol.log.request_ids import NO_IDS, RequestIds
from protocol.messages import Buffer, InferenceRequest, InferenceResponse
from protocol.origin import RequestTags
from protocol.reactor.replies import PendingReply, Replies, describe_pending
from protocol.sequence_header import put_sequence_id
from protocol.services import EdgeServices
from protocol.shared_memory.lease import Lease
from protocol.shared_memory.placement import PlacedRequest, Placement


class ReplySink(Protocol):
    """The owner of a direct call: the calls of a connection. `memory` is what counts their messages."""

    @property
    def memory(self) -> ReceiveMemory: ...

    @property
    def peer(self) -> str:
        """The client's address."""

    def answer(self, call: DirectCall) -> None:
        """The reply is there. Must not wait."""

    def fail_answer(self, call: DirectCall, error: Exception) -> None:
        """`answer` has raised this: how much of the reply was sent is unknown."""


class DirectCall(PendingReply, kw_only=True):
    """One that is under way; its client has sent all. `id` is its stream's, `deadline` in seconds of Trio's clock;
    `size`, in bytes, is what its message counts for beside the call. `lease` and `placed` are there if it uses shared
    memory, or wants classes; `failure` and `bytes_out` are those of its answer, `is_over` once it is closed."""

    sink: ReplySink
    id: int
    head: RequestHead
    size: int
    deadline: float
    ids: RequestIds
    request_id: bytes = b""
    record: AccessRecord | None = None
    failure: Exception | None = None
    bytes_out: int = 0
    is_over: bool = False
    lease: Lease | None = None
    placed: PlacedRequest | None = None

    def name(self) -> bytes:
        """As `CallOrigin.name`."""
        if not self.request_id:
            self.request_id = self.ids.of(self.head.client, self.own_id)
        return self.request_id

    def tags(self, own_id: str) -> RequestTags:
        """Implements `protocol.origin.Origin`. There are no keys where calls take no task."""
        if own_id and not self.request_id:  # it may be asked while it is submitted
            self.request_id = self.ids.of(self.head.client, own_id)
        return call_tags(self.name(), self.head.client, "")

    def deliver(self) -> None:
        self.sink.answer(self)

    def fail(self, error: Exception) -> None:
        self.sink.fail_answer(self, error)


class DirectInfer:
    """One per edge; its `replies` run as long as that serves."""

    def __init__(self, services: EdgeServices, templates: RequestTemplates, replies: Replies) -> None:
        self._services = services
        self._trace = services.trace
        self._ids = services.request_ids
        self._core = services.core
        self._templates = templates
        self.replies = replies
        self._logs = services.access_log.is_on
        self._measures = services.access_log.measures

    @classmethod
    def of(
        cls, services: EdgeServices, settings: GrpcSettings, templates: RequestTemplates, replies: Replies
    ) -> DirectInfer | None:
        """None where every call needs a task."""
        if (
            not settings.has_fast_path
            or not services.access.is_open
            or not services.forwarding.is_empty
            or settings.compression_level
        ):
            return None
        return cls(services, templates, replies)

    def begin(
        self,
        sink: ReplySink,
        stream_id: int,
        head: RequestHead,
        message: bytes | memoryview,
        size: int,
        deadline: float,
    ) -> DirectCall | None:
        """Submit the request of a call, whose `size` bytes are counted. None where only a task can read it, and nothing
        has been done: it is to be traced, cannot be decoded, or its inputs are to be copied by a thread."""
        if self._trace.is_sampling:
            return None
        ids = self._ids
        call = DirectCall(self.replies, sink=sink, id=stream_id, head=head, size=size, deadline=deadline, ids=ids)
        try:
            decoded = self._templates.decode(self._templates.read(message), message)
            request, placement = decoded.request, decoded.placement
            if head.sequence_id:
                put_sequence_id(request, head.sequence_id)
            if placement is not None and not self._has_placed(call, request, placement):
                return None
        except Exception:  # the task meets it again, and answers with it
            return None
        request.origin = call
        if head.client is NO_IDS and not request.id:  # mostly
            call.request_id = ids.made.pop() if ids.made else ids.make()
        if self._measures:
            request.trace = call.record = self._services.access_log.begin()
        call.submitted = self._core.submit(request, call, later=True)
        return call

    def _has_placed(self, call: DirectCall, request: InferenceRequest, placement: Placement) -> bool:
        """Whether the inputs are there; else nothing is held for the call."""
        services = self._services
        lease = services.shared_memory.lease()
        try:
            call.placed = PlacedRequest.fetch_at_once(request, placement, lease, services.core)
        finally:
            if call.placed is None:
                lease.__exit__(None, None, None)
        call.lease = None if call.placed is None else lease
        return call.placed is not None

    def encode(self, call: DirectCall) -> list[Buffer] | None:
        """The response message, in its parts; None where it takes a task, for `send`. Raises what went wrong."""
        reply = call.reply
        if isinstance(reply, InferenceResponse):
            if call.placed is not None:
                reply = call.placed.deliver_at_once(reply)
            if reply is None:
                return None
            message = encode_response(reply)
            if self._logs:
                call.bytes_out = sum(map(len, message))
            return message
        assert reply is not None
        raise Unsupported(NOT_DECOUPLED) if isinstance(reply, Decoupled) else reply

    async def send(self, call: DirectCall, stream: Stream) -> None:
        """Answer in a task after all, which the submission does not wait for. `close` has to be called when that has
        ended, or will not be."""
        assert call.placed is not None
        assert isinstance(call.reply, InferenceResponse)
        await stream.send_message(encode_response(await call.placed.deliver(call.reply)))

    def note_failure(self, call: DirectCall, error: Exception) -> None:
        """Log that it is answered with an error, as long as it is not closed."""
        call.failure = error
        note_failure(self._services.failure_log, MODEL_INFER, error, partial(describe_pending, call))

    def give_up(self, call: DirectCall) -> None:
        """Cancel the request: its reply is not wanted any more."""
        if self._logs:
            self._log_access(call, is_cancelled=call.failure is None)
        call.let_go().give_up()
        self.close(call)

    def close(self, call: DirectCall) -> None:
        """Release what the call holds: it is answered, or given up. Idempotent."""
        if self._logs:
            self._log_access(call, is_cancelled=False)
        size, lease, submitted = call.size, call.lease, call.submitted
        if size:
            call.size = 0
            call.sink.memory.give(CALL_MEMORY + size)
        if lease is not None:
            call.lease = None
            lease.__exit__(None, None, None)
        if submitted is not None:
            call.submitted = None  # as `let_go` does
            submitted.end()

    # The access log.

    def _log_access(self, call: DirectCall, *, is_cancelled: bool) -> None:
        """Write the line of a call that has ended, if it is to have one."""
        if call.is_over:
            return
        call.is_over = True
        is_failed = call.failure is not None or is_cancelled
        self._services.access_log.end(call.record, is_failed, partial(self._ended, call, is_cancelled=is_cancelled))

    def _ended(self, call: DirectCall, *, is_cancelled: bool) -> Ended:
        described, submitted, own_id = describe_pending(call), call.submitted, call.own_id
        started_ns = 0
        if submitted is not None and call.record is None:
            started_ns = time.monotonic_ns() - int((trio.current_time() - submitted.arrival) * 1e9)
        return Ended(
            "grpc",
            "ModelInfer",
            MODEL_INFER,
            status_word(call.failure, is_cancelled=is_cancelled),
            call.tags(own_id),
            own_id=own_id,
            model=described.model_name,
            version=described.model_version,
            client=call.sink.peer,
            bytes_in=call.size,
            bytes_out=call.bytes_out,
            is_cancelled=is_cancelled,
            error=error_text(call.failure),
            started_ns=started_ns,
        )
