"""Health service (`grpc.health.v1`), for load balancers and probes.

The server as a whole (no name) and the inference service serve while the server is ready, the other services while it
is up. Source: gRPC's health checking protocol. Triton looks at no name, and has no Watch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio
from grpclib.const import Handler

from protocol.core import InferenceCore
from protocol.errors import NotFound, ServerError, Unavailable
from protocol.grpc.call.stream import SHUTTING_DOWN, Stream
from protocol.grpc.generated.grpc.health.v1 import (
    HealthBase,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)

logger = logging.getLogger(__name__)

SERVICE = "grpc.health.v1.Health"
INFERENCE_SERVICE = "inference.GRPCInferenceService"

# How often a watched service is looked at.
WATCH_SECONDS = 1.0

ServingStatus = HealthCheckResponseServingStatus


class HealthService(HealthBase):
    """`services` are the full names of all services of the server."""

    def __init__(self, core: InferenceCore, services: Sequence[str]) -> None:
        self._core = core
        self._services = frozenset(services)

    def __mapping__(self) -> dict[str, Handler]:
        mapping = dict(super().__mapping__())
        watch = f"/{SERVICE}/Watch"
        mapping[watch] = mapping[watch]._replace(func=self._watch)
        return mapping

    async def check(self, message: HealthCheckRequest) -> HealthCheckResponse:
        """The health now.

        Raises:
            NotFound: the server has no such service.
        """
        status = await self._status(message.service)
        if status is ServingStatus.SERVICE_UNKNOWN:
            raise NotFound(f"unknown service '{message.service[:200]}'")
        return HealthCheckResponse(status)

    async def _watch(self, stream: Stream) -> None:
        """The health now, and again whenever it has changed; ends with the server, or with the client."""
        message: HealthCheckRequest = await stream.recv_message()
        last: ServingStatus | None = None
        while not stream.is_draining:
            status = await self._status(message.service)
            if status is not last:
                last = status
                await stream.send_message(HealthCheckResponse(status))
            with trio.move_on_after(WATCH_SECONDS):
                await stream.wait_draining()
        if last is ServingStatus.SERVING:
            await stream.send_message(HealthCheckResponse(ServingStatus.NOT_SERVING))
        raise Unavailable(SHUTTING_DOWN)

    async def _status(self, service: str) -> ServingStatus:
        """NOT_SERVING also while the server starts or stops, and wherever it cannot say."""
        if service and service not in self._services:
            return ServingStatus.SERVICE_UNKNOWN
        try:
            if service in ("", INFERENCE_SERVICE):
                is_serving = await self._core.check_ready()
            else:
                is_serving = self._core.is_live()
            return ServingStatus.SERVING if is_serving else ServingStatus.NOT_SERVING
        except ServerError as error:
            logger.debug("not serving: %s", error)
            return ServingStatus.NOT_SERVING
