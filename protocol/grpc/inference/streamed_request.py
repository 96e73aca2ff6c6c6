"""Request of a ModelStreamInfer call: all that is known of it, from its message to its answer."""

from __future__ import annotations

from typing import Protocol

from protocol.errors import Decoupled, ServerError
from protocol.grpc.call.framing import Message
from protocol.grpc.codec.infer import DecodedRequest, RequestNames
from protocol.grpc.codec.request_templates import ReadRequest
from protocol.log.access_record import AccessRecord
from protocol.messages import InferenceResponse
from protocol.quotas.accounts import Charge
from protocol.reactor.replies import PendingReply
from protocol.server_settings import Trace
from protocol.shared_memory.lease import Lease
from protocol.shared_memory.placement import PlacedRequest


class RequestOwner(Protocol):
    """The call that a request came in."""

    def take(self, request: StreamedRequest, /) -> None:
        """Its reply is there. Must not wait."""

    def fail(self, error: Exception, /) -> None:
        """`take` has raised this."""

    def log_end(self, request: StreamedRequest, /, *, is_cancelled: bool = False) -> None:
        """Write its line of the access log, if it is to have one and has none."""


class StreamedRequest(PendingReply, kw_only=True):
    """A request that was read.

    `failure` is what was wrong with it before the core saw it. `lease` and `placed` are there if it uses shared memory
    or classification, `charge` if there are keys. `memory` is what its message counts for in the stream, `waiting` what
    its response counts for while that waits. `submitted` is there while no task runs it and `reply` has not been taken.
    `response` is what a model gave that gives one, `ending` the error that ends the stream in its place. `read_ns` is
    when it was read, in nanoseconds of `time.monotonic_ns`, if not by `submitted`. `record` is what is measured for the
    access log, `error` what it is answered with. `message` is there if it is answered elsewhere.
    """

    stream: RequestOwner
    memory: int
    waiting: int = 0
    charge: Charge | None = None
    read: ReadRequest | None = None
    decoded: DecodedRequest | None = None
    is_decoupled: bool = False
    failure: Exception | None = None
    trace: Trace | None = None
    lease: Lease | None = None
    placed: PlacedRequest | None = None
    has_answered: bool = False
    is_logged: bool = False
    read_ns: int = 0
    record: AccessRecord | None = None
    error: Exception | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    response: Message = b""
    ending: Exception | None = None
    message: memoryview | None = None

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        """A request to a decoupled model is refused at once, and run by `infer_stream` instead."""
        if isinstance(value, Decoupled) and self.submitted is None:
            self.is_decoupled = True
        elif self.reply is None:
            self.reply = value
            self.replies.put(self)

    def deliver(self) -> None:
        self.stream.take(self)

    def fail(self, error: Exception) -> None:
        self.stream.fail(error)

    @property
    def names(self) -> RequestNames | None:
        return None if self.read is None else self.read.names

    def close(self) -> None:
        self.stream.log_end(self, is_cancelled=True)
        if self.submitted is not None:
            self.let_go().give_up()
        if self.charge is not None:
            self.charge.end()
        if self.lease is not None:
            self.lease.__exit__(None, None, None)
        if self.trace is not None:
            self.trace.end()
