"""Lines of OpenAI's batch files as rows: `{"custom_id": …, "method": "POST", "url": "/v1/completions", "body": …}`.

They run by the handlers of their routes, and their results are lines as OpenAI's output files have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.core import InferenceCore
from protocol.errors import InvalidArgument
from protocol.http.codec.job_rows import result_line
from protocol.http.openai.batches.execution import HANDLERS, LineExecutor
from protocol.http.openai.targets import find_target
from protocol.jobs.batches.lines import MAX_CUSTOM_ID
from protocol.jobs.execution import FailedItem
from protocol.jobs.job import ItemError
from protocol.jobs.rows import ResultRow
from protocol.messages import Buffer


class _Line(msgspec.Struct):
    url: str
    body: msgspec.Raw
    custom_id: Any = ""
    method: str = "POST"


class _Body(msgspec.Struct):
    model: str | None = None


_read_line = msgspec.json.Decoder(_Line).decode
_read_body = msgspec.json.Decoder(_Body).decode


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """The body of a request to one of OpenAI's routes, if there is such a route."""

    endpoint: str
    body: bytes
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class RouteResult(ResultRow):
    """What a route has answered: `{"status_code": …, "request_id": …, "body": …}`; its refusal, too."""

    answer: bytes = b"null"


def read_route_line(line: Buffer) -> tuple[str, RouteRequest] | None:
    """Its `custom_id`, and the request; None where it is no line of this form.

    Raises:
        InvalidArgument: it is one, and its `custom_id` is none.
    """
    text = bytes(line)
    if b'"url"' not in text or b'"body"' not in text:
        return None
    try:
        found = _read_line(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    custom_id = found.custom_id
    if not isinstance(custom_id, str) or len(custom_id) > MAX_CUSTOM_ID:
        raise InvalidArgument(f"'custom_id': expected a text of at most {MAX_CUSTOM_ID} characters")
    return custom_id, RouteRequest(found.url, bytes(found.body), found.method)


@dataclass(frozen=True, slots=True)
class Routes:
    """Runs such requests on one model, or on an adapter of it."""

    core: InferenceCore
    executor: LineExecutor
    model: str
    separator: str = ""

    async def run(self, index: int, custom_id: str, request: RouteRequest) -> RouteResult:
        """Raises ServerError where there is no answer."""
        if request.method != "POST":
            raise InvalidArgument(f"'method': expected POST, got '{request.method:.20}'")
        if request.endpoint not in HANDLERS:
            raise InvalidArgument(f"'url': expected one of {', '.join(HANDLERS)}, got '{request.endpoint:.100}'")
        await self._check_model(request.body)
        try:
            answer = await self.executor.run_body(request.endpoint, self.model, request.body)
        except FailedItem as failed:
            error = ItemError(failed.error.kind, failed.error.message)
            return RouteResult(index, custom_id, error=error, answer=b"".join(failed.result))
        return RouteResult(index, custom_id, answer=b"".join(answer))

    async def _check_model(self, body: bytes) -> None:
        """Only what names another model; all else that is wrong the route tells."""
        try:
            name = _read_body(body).model
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if name is not None and (await find_target(self.core, name, self.separator)).model != self.model:
            raise InvalidArgument(f"'model': expected '{self.model}', which the batch runs, got '{name:.128}'")


def encode_line(row: ResultRow) -> bytes:
    """A line of the output, or of errors: that of an answer of a route as OpenAI has it, with the row's number.

    Raises:
        ServerError: a response cannot be written as JSON.
    """
    if not isinstance(row, RouteResult):
        return result_line(row)
    error: Any = None
    if row.answer == b"null" and row.error is not None:
        message = row.error.message.encode("utf-8", "replace").decode()
        error = {"code": row.error.kind.lower(), "message": message}
    line = {
        "id": f"batch_req_{row.index:012}",
        "index": row.index,
        "custom_id": row.custom_id,
        "response": msgspec.Raw(row.answer),
        "error": error,
    }
    return msgspec.json.encode(line) + b"\n"
