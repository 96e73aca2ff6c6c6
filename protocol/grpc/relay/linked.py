"""Inference in a relaying edge that has a link to the core: messages are read, checked, decompressed and encoded here,
and cross the link as tensors. What does not cross is relayed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from grpclib.const import Cardinality, Handler

from protocol.errors import ServerError
from protocol.grpc.access import guarded
from protocol.grpc.call.stream import Stream
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.inference.failed_calls import MODEL_INFER, MODEL_STREAM_INFER
from protocol.grpc.inference.infer import InferCall, answer, describe, measured, read_request, send_traced
from protocol.grpc.inference.stream_infer import Elsewhere, StreamInfer
from protocol.grpc.relay.handlers import Relay
from protocol.grpc.settings import GrpcSettings
from protocol.load_report import FORMAT_HEADER
from protocol.quotas.accounts import Charge
from protocol.quotas.told import ToldCharge
from protocol.reactor.replies import Replies
from protocol.services import Linked


class LinkedInference:
    """Handlers of such an edge; `relay` has the core's edge answer. `replies` are as in `StreamInfer`."""

    def __init__(
        self,
        linked: Linked,
        settings: GrpcSettings,
        templates: RequestTemplates,
        replies: Replies | None,
        relay: Relay,
    ) -> None:
        self._linked = linked
        self._services = linked.services
        self._settings = settings
        self._replies = replies if settings.has_fast_path else None
        self._templates = templates
        self._relay = relay

    def handlers(self) -> Mapping[str, Handler]:
        own = {
            MODEL_INFER: Handler(self._infer, Cardinality.UNARY_UNARY, memoryview, bytes),
            MODEL_STREAM_INFER: Handler(self._infer_stream, Cardinality.STREAM_STREAM, memoryview, bytes),
        }
        checked = guarded(own, self._services.access)
        return {method: handler._replace(func=partial(self._run, handler.func)) for method, handler in checked.items()}

    async def _run(self, handle: Callable[[Stream], Awaitable[None]], stream: Stream) -> None:
        if self._is_the_cores(stream):
            if stream.method == MODEL_INFER:  # which has one message, and is read as such
                await self._relay.relay_message(stream, await stream.recv_message())
            else:
                await self._relay.handle(stream)
            return
        if self._settings.compression_level:
            stream.compress_responses(self._settings.compression_level)
        await handle(stream)

    async def _infer(self, stream: Stream) -> None:
        waiting = time.monotonic_ns()
        message = await stream.recv_message()
        charge = None if stream.account is None else stream.account.admit(None, len(message))
        try:
            await self._answer(stream, message, charge, waiting)
        except ServerError:
            if isinstance(charge, ToldCharge):
                await charge.admit_unsent()
            raise
        finally:
            if charge is not None:
                charge.end()

    async def _answer(self, stream: Stream, message: memoryview, charge: Charge | None, waiting_ns: int) -> None:
        read = await read_request(self._templates, message)
        read_ns = time.monotonic_ns()
        origin = stream.origin
        stream.describe = partial(describe, read, read_ns, origin)
        origin.name(read.names.id)
        call = InferCall(self._services, self._templates, stream)
        trace = measured(stream.record, call.trace(read.model_name, waiting_ns, read_ns))
        try:
            decoded = call.decode(read, message, trace, origin)
            request, placement = decoded.request, decoded.placement
            if placement is not None and placement.uses_regions:
                trace = None  # there it may have one
                if charge is not None:
                    charge.withdraw(len(message))
                await self._relay.relay_message(stream, message)
                return
            if placement is not None:
                await self._linked.know(request.model_name, request.model_version, tuple(placement.classes))
            response = await answer(self._services, decoded, charge)
            if trace is None:
                await stream.send_message(response)
            else:
                await send_traced(stream, response, trace)
        finally:
            if trace is not None:
                trace.end()

    async def _infer_stream(self, stream: Stream) -> None:
        most, answer_elsewhere = self._settings.max_in_flight_per_stream, partial(self._relay.answer, stream)
        elsewhere = Elsewhere(answer_elsewhere, self._linked.know)
        await StreamInfer(self._services, self._templates, self._replies, stream, most, elsewhere).run()

    def _is_the_cores(self, stream: Stream) -> bool:
        """Load reports are, and callers while keys come in."""
        if stream.header(FORMAT_HEADER.decode()) is not None:
            return True
        keys = self._linked.keys
        return keys is not None and not keys.are_current
