"""Inference in a relaying edge that has a link to the core: messages are read, checked, decompressed and encoded here,
and cross the link as tensors. What does not cross is relayed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from grpclib.const import Cardinality, Handler

from protocol.grpc.call.stream import Stream
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.inference.failed_calls import MODEL_INFER, MODEL_STREAM_INFER
from protocol.grpc.inference.infer import InferCall, answer, describe
from protocol.grpc.inference.stream_infer import StreamInfer
from protocol.grpc.relay.handlers import Relay
from protocol.grpc.settings import GrpcSettings
from protocol.load_report import FORMAT_HEADER
from protocol.reactor.replies import Replies
from protocol.services import EdgeServices


class LinkedInference:
    """Handlers of such an edge. `services` are those of the link; `relay` has the core's edge answer. `replies` are as
    in `StreamInfer`."""

    def __init__(
        self,
        services: EdgeServices,
        settings: GrpcSettings,
        templates: RequestTemplates,
        replies: Replies | None,
        relay: Relay,
    ) -> None:
        self._services = services
        self._most_in_flight = settings.max_in_flight_per_stream
        self._replies = replies if settings.has_fast_path else None
        self._templates = templates
        self._relay = relay

    def handlers(self) -> Mapping[str, Handler]:
        return {
            MODEL_INFER: Handler(self._infer, Cardinality.UNARY_UNARY, memoryview, bytes),
            MODEL_STREAM_INFER: Handler(self._infer_stream, Cardinality.STREAM_STREAM, memoryview, bytes),
        }

    async def _infer(self, stream: Stream) -> None:
        message = await stream.recv_message()
        if self._is_the_cores(stream):
            await self._relay.relay_message(stream, message)
            return
        read = self._templates.read(message)
        origin = stream.origin
        stream.describe = partial(describe, read, time.monotonic_ns(), origin)
        origin.name(read.names.id)
        decoded = InferCall(self._services, self._templates, stream).decode(read, message, None, origin)
        placement = decoded.placement
        if placement is not None and placement.uses_regions:
            await self._relay.relay_message(stream, message)
        else:
            await stream.send_message(await answer(self._services, decoded))

    async def _infer_stream(self, stream: Stream) -> None:
        # A stream that is to end as one of its requests does ends as the core says.
        if self._is_the_cores(stream) or stream.header("triton_grpc_error") is not None:
            await self._relay.handle(stream)
            return
        elsewhere = partial(self._relay.answer, stream)
        await StreamInfer(self._services, self._templates, self._replies, stream, self._most_in_flight, elsewhere).run()

    def _is_the_cores(self, stream: Stream) -> bool:
        """Traces and load reports are."""
        return self._services.trace.is_sampling or stream.header(FORMAT_HEADER.decode()) is not None
