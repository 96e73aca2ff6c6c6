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
from protocol.grpc.inference.failed_calls import MODEL_INFER
from protocol.grpc.inference.infer import InferCall, answer, describe
from protocol.grpc.relay.handlers import Relay
from protocol.load_report import FORMAT_HEADER
from protocol.services import EdgeServices


class LinkedInference:
    """Handlers of such an edge. `services` are those of the link; `relay` has the core's edge answer."""

    def __init__(self, services: EdgeServices, templates: RequestTemplates, relay: Relay) -> None:
        self._services = services
        self._templates = templates
        self._relay = relay

    def handlers(self) -> Mapping[str, Handler]:
        return {MODEL_INFER: Handler(self._infer, Cardinality.UNARY_UNARY, memoryview, bytes)}

    async def _infer(self, stream: Stream) -> None:
        message = await stream.recv_message()
        # Traces and load reports are the core's.
        if self._services.trace.is_sampling or stream.header(FORMAT_HEADER.decode()) is not None:
            await self._relay.relay_message(stream, message)
            return
        read = self._templates.read(message)
        origin = stream.origin
        stream.describe = partial(describe, read, time.monotonic_ns(), origin)
        origin.name(read.names.id)
        decoded = InferCall(self._services, self._templates, stream).decode(read, message, None, origin)
        placement = decoded.placement
        if placement is not None and (placement.inputs or placement.outputs):
            await self._relay.relay_message(stream, message)
        else:
            await stream.send_message(await answer(self._services, decoded))
