"""The ASGI application of the main HTTP service: find the route, take the body in, run the handler, answer.

Every failure becomes an answer here: a `ServerError` by the table in `errors`, anything else, a defect, as 500 with
its traceback in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from protocol.core import InferenceCore
from protocol.errors import Internal, PayloadTooLarge, ServerError
from protocol.http.compression import IDENTITY, content_encoding, inflate
from protocol.http.errors import error_reply
from protocol.http.exchange import HttpRequest, Reply
from protocol.http.infer_codec import HEADER_LENGTH, json_too_large
from protocol.http.routes import Route, RouteTable
from protocol.http.settings import HttpSettings
from protocol.http.transport import BodyLimit, ClientGone, has_body, read_body, send_early_reply, send_reply
from protocol.messages import Buffer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpApp:
    """One application for one core; it holds no state of its own between exchanges."""

    core: InferenceCore
    settings: HttpSettings
    routes: RouteTable = field(default_factory=RouteTable)

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        headers = dict(scope["headers"])
        try:
            route, parameters = self.routes.find(scope["method"], scope["raw_path"])
            encoding = content_encoding(headers)
            limit = self._body_limit(route, headers, encoding)
            body = await read_body(receive, headers, limit, idle_seconds=self.settings.body_timeout)
        except ClientGone:
            return
        except ServerError as exc:
            reply = error_reply(exc)
            if has_body(scope, headers):
                await send_early_reply(reply, scope, receive, send, linger=self.settings.linger)
            else:
                await send_reply(reply, send)
            return
        answer = await self._answer(route, parameters, headers, body, encoding, receive)
        if answer is not None:
            await send_reply(answer, send)

    def _body_limit(self, route: Route, headers: Mapping[bytes, bytes], encoding: str) -> BodyLimit:
        # A compressed body says nothing of its size; what it inflates to is bounded by max_input_size.
        if (route.has_binary_tail and HEADER_LENGTH in headers) or encoding != IDENTITY:
            return BodyLimit(self.settings.max_body_size, _body_too_large)
        return BodyLimit(min(self.settings.max_input_size, self.settings.max_body_size), json_too_large)

    async def _answer(
        self,
        route: Route,
        parameters: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        body: Buffer,
        encoding: str,
        receive: ASGIReceiveCallable,
    ) -> Reply | None:
        """The reply, or None where the client left before there was one."""
        try:
            if encoding != IDENTITY:
                body = await trio.to_thread.run_sync(inflate, body, encoding, self.settings.max_input_size)
            request = HttpRequest(self.core, self.settings, parameters, headers, body)
            if route.cancel_on_disconnect:
                return await _run_until_disconnect(route, request, receive)
            return await route.handler(request)
        except ServerError as exc:
            return error_reply(exc)
        except Exception as exc:
            logger.exception("%s %s failed", route.method, route.path)
            return error_reply(Internal(f"internal error: {type(exc).__name__}: {exc}"))


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


def _body_too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"request body size of {size} bytes exceeds the maximum allowed size of {limit} bytes. "
        f"Use --http-max-body-size to increase the limit."
    )
