"""`grpc.health.v1`: what load balancers and probes ask."""

from __future__ import annotations

import logging

from protocol.core import InferenceCore
from protocol.errors import ServerError
from protocol.grpc.generated.grpc.health.v1 import (
    HealthBase,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)

logger = logging.getLogger(__name__)


class HealthService(HealthBase):
    """SERVING while the server is ready, whatever service is asked for. Watch stays UNIMPLEMENTED, as in Triton:
    clients that want it fall back to Check."""

    def __init__(self, core: InferenceCore) -> None:
        self._core = core

    async def check(self, message: HealthCheckRequest) -> HealthCheckResponse:
        status = HealthCheckResponseServingStatus
        try:
            return HealthCheckResponse(status.SERVING if self._core.is_ready() else status.NOT_SERVING)
        except ServerError as error:
            logger.debug("readiness is unknown: %s", error)
            return HealthCheckResponse(status.UNKNOWN)
