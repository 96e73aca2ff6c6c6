"""Handler that cancels requests in flight by their id. An extension of ours; Triton has no such call."""

from __future__ import annotations

from protocol.http.exchange import HttpRequest
from protocol.http.reply import Reply, json_reply


async def cancel_request(request: HttpRequest) -> Reply:
    """Replies with how many were cancelled; 0 where none with this id is in flight.

    Raises:
        NotFound: no such model or version.
    """
    request_id = request.path_parameters["request_id"]
    return json_reply({"cancelled": request.core.cancel(request.model_name, request_id, request.model_version)})
