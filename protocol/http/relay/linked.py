"""Inference in a relaying edge that has a link to the core: requests are read, checked, decompressed, answered and
encoded here, and cross the link as tensors. What does not cross is relayed.

Which requests cannot cross is seen by their heads, before anything is read, but for those that name regions of shared
memory: their bodies have been read then, and go to the core's edge as they were read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from protocol.errors import ServerError
from protocol.http.app import HttpApp
from protocol.http.charges import declared_size
from protocol.http.exchange import Exchange, HttpRequest
from protocol.http.handlers.infer import answer, read
from protocol.http.handlers.jobs.submit import infer_or_job
from protocol.http.relay.app import RelayApp
from protocol.http.reply import Reply
from protocol.http.route_table import RouteTable
from protocol.http.routes import routes_of
from protocol.http.settings import HttpSettings
from protocol.load_report import FORMAT_HEADER
from protocol.services import EdgeServices

# Of all the memory of the edge, what one body may take: a larger one is relayed as it comes.
_SHARE_OF_BODY = 4


class LinkedApp:
    """The application of such an edge. `services` are those of the link; `relay` answers all that is no inference."""

    def __init__(self, services: EdgeServices, settings: HttpSettings, relay: RelayApp) -> None:
        self._services = services
        self._relay = relay
        routes = [each for each in routes_of(settings.interface) if each.handler is infer_or_job]
        self._inference = HttpApp(
            services, settings, RouteTable(tuple(replace(each, handler=self._infer) for each in routes))
        )

    async def __call__(self, exchange: Exchange) -> None:
        if self._may_cross(exchange):
            await self._inference(exchange)
        else:
            await self._relay(exchange)

    def _may_cross(self, exchange: Exchange) -> bool:
        headers, services = exchange.headers, self._services
        # Jobs, load reports and traces are the core's.
        if b"prefer" in headers or FORMAT_HEADER in headers or services.trace.is_sampling:
            return False
        try:
            self._inference.find(exchange.method, exchange.raw_path, headers)
        except ServerError:  # the core's edge knows more routes
            return False
        return declared_size(headers) <= services.memory.limit // _SHARE_OF_BODY

    async def _infer(self, request: HttpRequest) -> Reply:
        decoded = await read(request)
        placement = decoded.placement
        if placement is None or not placement.uses_regions:
            return await answer(request, decoded)
        del decoded
        exchange = cast(Exchange, request.writer)  # there are no keys, so it is charged to nobody
        reply = await self._relay.reply_to(exchange, request.body)
        request.origin.request_id = reply.request_id
        return reply
