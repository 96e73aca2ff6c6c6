"""Runs the lines of batches, each as a request to the route that it names: by that route's handler, without HTTP.

Used by the runner of jobs. What a handler answers is kept as it would have been sent. Its inferences join the batches
of live requests, where the model's capacity is known.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import msgspec
import trio

from protocol.access.control import AccessControl
from protocol.core import InferenceCore, Respond
from protocol.errors import Internal, InvalidArgument, NotFound, QuotaExceeded, ServerError, Unavailable
from protocol.http.codec.json_text import may_nest
from protocol.http.codec.request_templates import RequestTemplates
from protocol.http.errors import name_reply
from protocol.http.exchange import Handler, HttpRequest
from protocol.http.openai.batches.source import LineSource
from protocol.http.openai.errors import FieldError, ModelNotFound, openai_error_reply
from protocol.http.openai.handlers.chat import chat_completions
from protocol.http.openai.handlers.completions import completions
from protocol.http.openai.handlers.embeddings import embeddings
from protocol.http.openai.responses import handlers as responses
from protocol.http.openai.threads import LARGE_ABOVE
from protocol.http.reply import Headers
from protocol.http.settings import HttpSettings
from protocol.jobs.batches.lines import LineRequest, body_of, decode_line_request
from protocol.jobs.batches.results import answer_parts
from protocol.jobs.execution import FailedItem, ModelLoad, Partial
from protocol.limits.request_memory import RequestShare
from protocol.log.call_origin import CallOrigin
from protocol.log.request_ids import NO_IDS
from protocol.messages import Buffer, InferenceRequest, InferenceResponse
from protocol.quotas.accounts import Account, Charge
from protocol.responses.background import Responses
from protocol.services import EdgeServices

InferBeside: TypeAlias = Callable[[InferenceRequest], Awaitable[InferenceResponse]]
"""An inference on a model that answers once, as soon as there is room for it beside the model's live requests."""

HANDLERS: Mapping[str, Handler] = {
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
    "/v1/embeddings": embeddings,
    "/v1/responses": responses.create,
}
_HEADERS = {b"content-type": b"application/json"}


class LineExecutor:
    """Implements `protocol.jobs.execution.JobExecutor` for the jobs that are batches."""

    def __init__(
        self,
        services: EdgeServices,
        settings: HttpSettings,
        source: LineSource,
        *,
        lowest_priority: Callable[[str, int], int],
        load_of: Callable[[str], ModelLoad],
        account: Callable[[str], Account | None],
        infer_beside: InferBeside | None = None,
    ) -> None:
        """`services` are those of an edge, and `account` gives that of a key, by its name, where there are keys.
        Without `infer_beside` all inferences run at once."""
        core = cast(InferenceCore, LowPriorityCore(services.core, lowest_priority, load_of, infer_beside))
        # Nobody would come back for responses that are kept in memory, and they would displace others.
        self._services = replace(services, core=core, access=AccessControl(), responses=Responses(0))
        self._settings = settings
        self._source = source
        self._load_of = load_of
        self._account = account
        self._templates = RequestTemplates()

    def load_of(self, model: str) -> ModelLoad:
        return self._load_of(model)

    async def run(self, owner: str, request: Buffer, partial: Partial) -> Sequence[Buffer]:
        line = decode_line_request(request)
        return await self._kept(owner, line, functools.partial(self._body, line))

    async def run_body(self, endpoint: str, model: str, body: Buffer) -> Sequence[Buffer]:
        """As `run`, of a line that is not in a file of the server's, for nobody in particular."""

        async def given() -> Buffer:
            _refuse(body)
            return body

        return await self._kept("", LineRequest(endpoint, model, "", 0, len(body)), given)

    async def _kept(
        self, owner: str, line: LineRequest, body_of_line: Callable[[], Awaitable[Buffer]]
    ) -> Sequence[Buffer]:
        origin = CallOrigin(self._services.request_ids, NO_IDS, lambda: owner)
        try:
            with RequestShare(self._services.memory) as share:
                share.take(line.size)
                body = await body_of_line()
                return await self._answer(owner, line, body, origin)
        except Unavailable:
            raise
        except (ModelNotFound, QuotaExceeded) as error:  # the model was there, and there may be room again
            raise Unavailable(error.message) from None
        except ServerError as error:
            reply = openai_error_reply(error)
            name_reply(reply, origin.name())
            raise FailedItem(error, answer_parts(reply.status, origin.name(), [reply.body])) from None

    async def _body(self, line: LineRequest) -> Buffer:
        try:
            data = await self._source.read(line.payload, line.start, line.size)
        except NotFound as error:
            raise Internal(f"the input of the batch cannot be read: {error.message}") from None
        body = await trio.to_thread.run_sync(body_of, data) if line.size > LARGE_ABOVE else body_of(data)
        _refuse(body)
        return body

    async def _answer(self, owner: str, line: LineRequest, body: Buffer, origin: CallOrigin) -> Sequence[Buffer]:
        charge = self._charge(owner, line.model)
        request = HttpRequest(
            self._services,
            self._settings,
            {},
            _HEADERS,
            body,
            _NoWriter(),
            self._templates,
            origin,
            arrival_ns=time.monotonic_ns(),
            charge=charge,
        )
        try:
            reply = await HANDLERS[line.endpoint](request)
        except RecursionError:
            if not may_nest(body):
                raise
            raise InvalidArgument("what the request holds nests too deeply") from None
        finally:
            request.end_turn()
            request.end()
            if charge is not None:
                charge.end()
            if request.trace is not None:
                request.trace.end()
        if reply is None:
            raise _not_whole()
        return answer_parts(reply.status, request.request_id, [reply.body, *reply.tail])

    def _charge(self, owner: str, model: str) -> Charge | None:
        account = self._account(owner)
        return None if account is None else account.resume(model)


class LowPriorityCore:
    """An `InferenceCore` whose inferences have the lowest priority of their model; all else is the core's own."""

    def __init__(
        self,
        core: InferenceCore,
        lowest_priority: Callable[[str, int], int],
        load_of: Callable[[str], ModelLoad],
        infer_beside: InferBeside | None,
    ) -> None:
        self._core = core
        self._lowest_priority = lowest_priority
        self._load_of = load_of
        self._infer_beside = infer_beside

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        self._lower(request)
        beside = self._beside(request)
        return await (self._core.infer(request) if beside is None else beside(request))

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        self._lower(request)
        beside = self._beside(request)
        if beside is None:
            return await self._core.infer_stream(request, respond)
        response = await beside(request)
        await respond(response)
        return response.is_final

    def _beside(self, request: InferenceRequest) -> InferBeside | None:
        """None of a model whose capacity is not known, such as one that answers several times."""
        return self._infer_beside if self._load_of(request.model_name).capacity else None

    def _lower(self, request: InferenceRequest) -> None:
        try:
            request.priority = self._lowest_priority(request.model_name, request.model_version)
        except NotFound as error:  # it was there when the batch was made, and may be loaded again
            raise Unavailable(error.message) from None


class _Fields(msgspec.Struct):
    """What the answer to a line cannot be."""

    stream: bool | None = None
    background: bool | None = None


_read_fields = msgspec.json.Decoder(_Fields).decode


def _refuse(body: Buffer) -> None:
    """Raises FieldError. What else is wrong the handler tells."""
    try:
        fields = _read_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for name in ("stream", "background"):
        if getattr(fields, name):
            raise FieldError(f"'{name}': the answers of a batch are written whole, into a file", name)


class _NoWriter:
    """Implements `protocol.http.exchange.BodyWriter` for requests that are answered whole."""

    has_started = False

    async def start(self, status: int, headers: Headers) -> None:
        raise _not_whole()

    async def send(self, data: bytes) -> None:
        raise _not_whole()

    def send_at_once(self, data: bytes) -> bool:
        raise _not_whole()

    async def end(self) -> None:
        raise _not_whole()


def _not_whole() -> Internal:
    return Internal("the answer to a line of a batch cannot be streamed")
