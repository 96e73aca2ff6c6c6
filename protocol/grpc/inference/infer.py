"""ModelInfer in a task, and what it shares with ModelStreamInfer: decoding, tracing, and headers of a call.

Flow: stream -> [infer] -> core -> [infer] -> stream. Activities are those of Triton's traces.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from protocol.access.forwarding import put_over
from protocol.errors import Decoupled, Unsupported
from protocol.grpc.call.framing import Message
from protocol.grpc.call.stream import Stream
from protocol.grpc.codec.infer import DecodedRequest, encode_response
from protocol.grpc.codec.long_contents import LongContents, parse_long_request
from protocol.grpc.codec.request_templates import ReadRequest, RequestTemplates
from protocol.load_report import FORMAT_HEADER, load_report_trailers
from protocol.log.access_record import AccessRecord
from protocol.log.failure_log import FailedRequest
from protocol.log.tags import of_call
from protocol.origin import Origin
from protocol.quotas.accounts import Charge
from protocol.quotas.quota import Unit
from protocol.sequence_header import SEQUENCE_HEADER, put_sequence_id
from protocol.server_settings import Trace
from protocol.services import EdgeServices
from protocol.shared_memory.placement import PlacedRequest
from protocol.sync.sliced import run_sliced

NOT_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


class InferCall:
    """One call, and what its headers mean for each request in it."""

    __slots__ = ("_forwarded", "_load_format", "_sequence_id", "_services", "_stream", "_templates")

    def __init__(self, services: EdgeServices, templates: RequestTemplates, stream: Stream) -> None:
        self._services = services
        self._templates = templates
        self._stream = stream
        self._forwarded: Mapping[str, str] | None = None
        self._sequence_id = stream.header(SEQUENCE_HEADER) or ""
        self._load_format = (stream.header(FORMAT_HEADER.decode()) or "").encode()

    def trace(self, model: str, waiting_ns: int, read_ns: int) -> Trace | None:
        """A trace of the request, if it is its turn; whoever asks has to end it.

        The two times are when the call began to wait for the request's bytes and when it had them: the model's name is
        in them.
        """
        control, stream = self._services.trace, self._stream
        if not control.is_sampling:
            return None
        if control.follows_context:
            context = {name: stream.header(name) or "" for name in ("traceparent", "tracestate")}
            trace = control.sample(model, **context)
        else:
            trace = control.sample(model)
        if trace is not None:
            trace.stamp("GRPC_WAITREAD_START", waiting_ns)
            trace.stamp("GRPC_WAITREAD_END", read_ns)
        return trace

    def decode(
        self, read: ReadRequest, data: bytes | memoryview, trace: Trace | None, origin: Origin
    ) -> DecodedRequest:
        """The request that was read from the data, with the parameters that the call's headers make.

        Raises:
            InvalidArgument: the request is wrong, a header has a reserved name, or names another sequence.
        """
        decoded = self._templates.decode(read, data)
        forwarding = self._services.forwarding
        if not forwarding.is_empty:
            if self._forwarded is None:
                self._forwarded = forwarding.parameters(self._stream.forwardable_headers())
            put_over(decoded.request.parameters, self._forwarded)
        if self._sequence_id:
            put_sequence_id(decoded.request, self._sequence_id)
        if self._load_format:
            self._stream.more_trailers = partial(
                load_report_trailers, self._load_format, self._services.load_report, decoded.request.model_name
            )
        if trace is not None:
            decoded.request.trace = trace
        decoded.request.origin = origin
        return decoded


async def model_infer(services: EdgeServices, templates: RequestTemplates, stream: Stream) -> None:
    """One request, one response.

    Raises:
        ServerError: whatever goes wrong; it becomes the call's status.
    """
    if stream.account is None:
        await _infer(services, templates, stream, None)
        return
    charge = await stream.account.admit_when_known()
    try:
        await _infer(services, templates, stream, charge)
    finally:
        charge.end()


async def _infer(services: EdgeServices, templates: RequestTemplates, stream: Stream, charge: Charge | None) -> None:
    waiting = time.monotonic_ns()
    data = await stream.recv_message()
    read = await read_request(templates, data)
    if charge is not None:
        await charge.name_model_when_known(read.model_name)
        charge.settle(Unit.BYTES, len(data))
    call = InferCall(services, templates, stream)
    read_ns = time.monotonic_ns()
    stream.describe = partial(describe, read, read_ns, stream.origin)
    origin = stream.origin
    origin.name(read.names.id)
    trace = measured(stream.record, call.trace(read.model_name, waiting, read_ns))
    if trace is None:
        await stream.send_message(await answer(services, call.decode(read, data, None, origin), charge))
        return
    try:
        response = await answer(services, call.decode(read, data, trace, origin), charge)
        await send_traced(stream, response, trace)
    finally:
        trace.end()


async def read_request(templates: RequestTemplates, data: memoryview) -> ReadRequest:
    """As `RequestTemplates.read`, in slices where that takes long."""
    try:
        return templates.read(data)
    except LongContents:
        return await run_sliced(parse_long_request(data))


def measured(record: AccessRecord | None, trace: Trace | None) -> Trace | None:
    """The trace of a request, which is measured for the access log if it has a record."""
    if record is None:
        return trace
    record.trace = trace
    return record


def describe(read: ReadRequest | None, read_ns: int, origin: Origin) -> FailedRequest:
    """What the log says of a request that was read at `read_ns` of `time.monotonic_ns`, or could not be read."""
    seconds = (time.monotonic_ns() - read_ns) / 1e9
    if read is None:
        return FailedRequest(seconds=seconds, tags=of_call(origin))
    names = read.names
    return FailedRequest(*names, seconds, of_call(origin, names.id))


async def answer(services: EdgeServices, decoded: DecodedRequest, charge: Charge | None = None) -> Message:
    """The response message of a request.

    Raises:
        ServerError: whatever goes wrong.
    """
    request, placement = decoded.request, decoded.placement
    request.charge = charge
    core = services.core
    try:
        if placement is None:
            return charged(charge, encode_response(await core.infer(request)))
        with services.shared_memory.lease() as lease:
            placed = await PlacedRequest.fetch(request, placement, lease, core)
            return charged(charge, encode_response(await placed.deliver(await core.infer(request))))
    except Decoupled:
        raise Unsupported(NOT_DECOUPLED) from None


def charged(charge: Charge | None, response: Message) -> Message:
    """The response, once its bytes are charged."""
    if charge is not None:
        charge.settle(Unit.BYTES, len(response) if isinstance(response, bytes) else sum(map(len, response)))
    return response


async def send_traced(stream: Stream, response: Message, trace: Trace) -> None:
    """Send a response that is there; times between its encoding and the end of sending are GRPC_SEND."""
    trace.stamp("INFER_RESPONSE_COMPLETE")
    trace.stamp("GRPC_SEND_START")
    await stream.send_message(response)
    trace.stamp("GRPC_SEND_END")
