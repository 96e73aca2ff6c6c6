"""Calls in a relaying edge that has a link to the core: inference by tensors, and by texts. Requests are read, checked,
decompressed, answered and encoded here, and cross the link as tensors. What does not cross is relayed.

Which requests cannot cross is seen by their heads, before anything is read, but for those that name regions of shared
memory, and those of texts for which something is needed that only the core has: their bodies have been read then, and
go to the core's edge as they were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import cast

from protocol.errors import NotHere, ServerError
from protocol.http.app import HttpApp
from protocol.http.charges import ChargedWriter, declared_size
from protocol.http.exchange import Exchange, Handler, HttpRequest
from protocol.http.handlers.generate import generate, generate_stream
from protocol.http.handlers.infer import answer, read
from protocol.http.handlers.jobs.submit import generate_or_job, infer_or_job
from protocol.http.relay.app import RelayApp
from protocol.http.relay.texts import TEXT_HANDLERS, needs_kept_responses
from protocol.http.reply import Reply
from protocol.http.route import Route
from protocol.http.route_table import RouteTable
from protocol.http.routes import routes_of
from protocol.http.settings import HttpSettings
from protocol.load_report import FORMAT_HEADER
from protocol.quotas.told import ToldCharge
from protocol.services import Linked

# Of all the memory of the edge, what one body may take: a larger one is relayed as it comes.
_SHARE_OF_BODY = 4


class LinkedApp:
    """The application of such an edge; `relay` answers all else. With `has_texts` the OpenAI and Anthropic interfaces
    are answered here; `keeps_responses`: the core keeps responses, which are its own."""

    def __init__(
        self,
        linked: Linked,
        settings: HttpSettings,
        relay: RelayApp,
        *,
        has_texts: bool = False,
        keeps_responses: bool = True,
    ) -> None:
        self._linked = linked
        self._services = linked.services
        self._relay = replace(relay, end_unheard=HttpApp(linked.services, settings, relay.routes).end_unread)
        self._keeps_responses = keeps_responses
        own: dict[Handler, Handler] = {
            infer_or_job: partial(self._charged, self._infer),
            generate_or_job: partial(self._charged, partial(self._generate, generate)),
            generate_stream: partial(self._charged, partial(self._generate, generate_stream)),
        }
        if has_texts:
            own |= {each: partial(self._charged, partial(self._text, each)) for each in TEXT_HANDLERS}
        self._inference = HttpApp(linked.services, settings, RouteTable(_routes(settings, own)))

    async def __call__(self, exchange: Exchange) -> None:
        if self._may_cross(exchange):
            await self._inference(exchange)
        else:
            await self._relay(exchange)

    def _may_cross(self, exchange: Exchange) -> bool:
        headers, services = exchange.headers, self._services
        # Jobs and load reports are the core's.
        if b"prefer" in headers or FORMAT_HEADER in headers:
            return False
        try:
            endpoint, _ = self._inference.routes.find(exchange.raw_path)
            endpoint.route(exchange.method)
        except ServerError:  # the core's edge knows more routes
            return False
        if declared_size(headers) > services.memory.limit // _SHARE_OF_BODY:
            return False
        keys = self._linked.keys
        if keys is None:
            return True
        lookup = partial(endpoint.header, headers)
        return keys.are_current and not keys.may_be_refused(lookup, declared_size(headers))

    async def _charged(self, handler: Handler, request: HttpRequest) -> Reply | None:
        """What a request has come to is told before its client can know that it has ended, and ask again elsewhere."""
        try:
            return await handler(request)
        except ServerError:
            if isinstance(request.charge, ToldCharge) and not request.is_elsewhere:
                await request.charge.admit_unsent()
            raise
        finally:
            if request.charge is not None:
                request.charge.end_inferences()

    async def _infer(self, request: HttpRequest) -> Reply | None:
        await self._linked.know(request.model_name, request.model_version, ())
        decoded = await read(request)
        placement = decoded.placement
        if placement is None or not placement.uses_regions:
            if placement is not None and placement.classes:
                await self._linked.know(request.model_name, request.model_version, tuple(placement.classes))
            return await answer(request, decoded)
        del decoded
        return await self._pass_on(request)

    async def _generate(self, handler: Handler, request: HttpRequest) -> Reply | None:
        await self._linked.know(request.model_name, request.model_version, ())
        return await handler(request)

    async def _text(self, handler: Handler, request: HttpRequest) -> Reply | None:
        if self._keeps_responses and needs_kept_responses(handler, request.body):
            return await self._pass_on(request)
        try:
            return await handler(request)
        except NotHere:
            if request.writer.has_started:
                raise
        return await self._pass_on(request)

    async def _pass_on(self, request: HttpRequest) -> Reply | None:
        """Have the core's edge answer a request whose body was read, which logs and charges it, too."""
        request.end_turn()
        request.is_elsewhere = True
        request.trace = None  # there it may have one
        request.limits = None
        exchange = _exchange_of(request)
        reply = await self._relay.reply_to(exchange, request.body)
        if reply is None:
            return None
        request.inference = None
        request.origin.request_id = reply.request_id
        if own := self._inference.routes.request_id_header(exchange.raw_path):  # which every reply gets here
            reply.headers = tuple([each for each in reply.headers if each[0].lower() != own])
        return reply


def _routes(settings: HttpSettings, own: Mapping[Handler, Handler]) -> tuple[Route, ...]:
    return tuple(
        replace(each, handler=own[each.handler]) for each in routes_of(settings.interface) if each.handler in own
    )


def _exchange_of(request: HttpRequest) -> Exchange:
    writer = request.writer
    return cast(Exchange, writer.writer if isinstance(writer, ChargedWriter) else writer)
