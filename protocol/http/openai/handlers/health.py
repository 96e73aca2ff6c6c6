"""Handlers of `/health`, `/ping` and `/version`, as vLLM has them, and of `/health/ready`, as Triton's frontend."""

from __future__ import annotations

from protocol.errors import InvalidArgument, Unavailable
from protocol.http.exchange import HttpRequest
from protocol.http.reply import Reply, json_reply


async def health(request: HttpRequest) -> Reply:
    """200 and no body while requests are taken.

    Raises:
        Unavailable: they are not.
    """
    if not request.core.is_ready():
        raise Unavailable("the server is not ready for inference requests")
    return Reply()


async def ready(request: HttpRequest) -> Reply:
    """As `health`, with Triton's status and sentence."""
    try:
        if request.core.is_ready():
            return Reply()
    except Unavailable:
        pass
    raise InvalidArgument("Attached inference engine is not ready for inference requests.")


async def version(request: HttpRequest) -> Reply:
    return json_reply({"version": request.core.server_metadata().version})
