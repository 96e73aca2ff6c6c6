"""The ASGI application of the main HTTP service: find the route, take the body in, run the handler, answer.

Every failure becomes an answer here: a `ServerError` by the table in `errors`, anything else, a defect, as 500 with
its traceback in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from protocol.errors import Internal, ServerError
from protocol.http.compression import IDENTITY, content_encoding, inflate
from protocol.http.errors import BodyTooLarge, LimitError, error_reply
from protocol.http.exchange import HttpRequest, Reply
from protocol.http.infer_codec import HEADER_LENGTH, json_too_large
from protocol.http.routes import Route, RouteTable
from protocol.http.settings import HttpSettings
from protocol.http.transport import (
    BodyLimit,
    ClientGone,
    StreamedReply,
    first_headers,
    has_body,
    header_text,
    read_body,
    send_early_reply,
    send_reply,
    sent_headers,
)
from protocol.request_memory import LIMIT_NAME, RequestShare
from protocol.server_settings import Trace
from protocol.services import EdgeServices
from protocol.zipped import MAX_INFLATION

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpApp:
    """One application for one server; it holds no state of its own between exchanges."""

    services: EdgeServices
    settings: HttpSettings
    routes: RouteTable = field(default_factory=RouteTable)

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        services = self.services
        with services.memory.share(partial(services.limits.count, "http", LIMIT_NAME)) as share:
            await self._exchange(scope, receive, send, share)

    async def _exchange(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable, share: RequestShare
    ) -> None:
        headers = first_headers(scope)
        trace: Trace | None = None
        try:
            try:
                route, parameters = self._find(scope, headers)
                trace = self._sample(route, parameters, headers)
                encoding = content_encoding(headers, allowed=route.takes_codings)
                limit = self._body_limit(route, headers, encoding)
                timeout = self.settings.body_timeout
                request = HttpRequest(
                    self.services,
                    self.settings,
                    parameters,
                    headers,
                    await read_body(receive, headers, limit, share, pause_seconds=timeout),
                    StreamedReply(send),
                    sent_headers(scope),
                    trace,
                )
            except ClientGone:
                return
            except ServerError as exc:
                await self._refuse(exc, scope, headers, receive, send)
                return
            if trace is not None:
                trace.stamp("HTTP_RECV_END")
            try:
                reply = await self._answer(route, request, encoding, receive, share)
                if reply is not None:
                    if trace is not None:
                        trace.stamp("HTTP_SEND_START")
                    await send_reply(reply, send)
                    if trace is not None:
                        trace.stamp("HTTP_SEND_END")
            finally:
                request.end()
        finally:
            if trace is not None:
                trace.end()

    def _find(self, scope: HTTPScope, headers: Mapping[bytes, bytes]) -> tuple[Route, dict[str, str]]:
        """Path, then access, then method: who may not make a call learns nothing else of it."""
        endpoint, parameters = self.routes.find(scope["raw_path"])
        access = self.services.access
        if not access.is_open:
            access.check(endpoint.category, lambda name: header_text(headers, name))
        return endpoint.route(scope["method"]), parameters

    def _sample(self, route: Route, parameters: Mapping[str, str], headers: Mapping[bytes, bytes]) -> Trace | None:
        if not route.is_inference:
            return None
        start = time.monotonic_ns()
        control = self.services.trace
        if control.follows_context:
            parent, state = (header_text(headers, name) or "" for name in ("traceparent", "tracestate"))
            trace = control.sample(parameters["model_name"], traceparent=parent, tracestate=state)
        else:
            trace = control.sample(parameters["model_name"])
        if trace is not None:
            trace.stamp("HTTP_RECV_START", start)
        return trace

    def _body_limit(self, route: Route, headers: Mapping[bytes, bytes], encoding: str) -> BodyLimit:
        # A compressed body says nothing of its size; what it inflates to is bounded by max_input_size.
        if (route.has_binary_tail and HEADER_LENGTH in headers) or encoding != IDENTITY:
            return BodyLimit(self.settings.max_body_size, _body_too_large)
        return BodyLimit(min(self.settings.max_input_size, self.settings.max_body_size), json_too_large)

    async def _refuse(
        self,
        error: ServerError,
        scope: HTTPScope,
        headers: Mapping[bytes, bytes],
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> None:
        """Answer a request whose body has not been read whole."""
        reply = self._error_reply(error)
        if has_body(scope, headers):
            await send_early_reply(reply, scope, receive, send, linger=self.settings.linger)
        else:
            await send_reply(reply, send)

    async def _answer(
        self, route: Route, request: HttpRequest, encoding: str, receive: ASGIReceiveCallable, share: RequestShare
    ) -> Reply | None:
        """The reply; None where the handler has sent one, or where the client left before there was one."""
        try:
            if encoding != IDENTITY:
                await self._inflate(request, encoding, share)
            if route.is_inference:
                return await _run_until_disconnect(route, request, receive)
            return await route.handler(request)
        except ServerError as exc:
            return self._error_reply(exc)
        except Exception as exc:
            logger.exception("%s %s failed", route.method, route.path)
            if request.writer.has_started:
                return None  # the body ends without its end, which is all that can still be said
            return error_reply(Internal(f"internal error: {type(exc).__name__}: {exc}"))

    async def _inflate(self, request: HttpRequest, encoding: str, share: RequestShare) -> None:
        size, limit = len(request.body), self.settings.max_input_size
        most = min(limit, size * MAX_INFLATION)
        share.take(most)
        request.body = await trio.to_thread.run_sync(inflate, request.body, encoding, limit)
        share.give(size + most - len(request.body))

    def _error_reply(self, error: ServerError) -> Reply:
        if isinstance(error, LimitError):
            self.services.limits.count("http", error.limit)
        return error_reply(error)


async def _run_until_disconnect(route: Route, request: HttpRequest, receive: ASGIReceiveCallable) -> Reply | None:
    """Run the handler beside a watcher of the connection, which cancels it when the client leaves."""
    reply: Reply | None = None
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_on_disconnect, receive, nursery.cancel_scope)
        try:
            reply = await route.handler(request)
        except Exception as exc:  # raised outside, where the nursery does not wrap it in a group
            failure = exc
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return reply


async def _cancel_on_disconnect(receive: ASGIReceiveCallable, scope: trio.CancelScope) -> None:
    await receive()  # the body has been read: nothing but the disconnect can come
    scope.cancel()


def _body_too_large(size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"request body size of {size} bytes exceeds the maximum allowed size of {limit} bytes. "
        f"Use --http-max-body-size to increase the limit.",
        "max_body_size",
    )
