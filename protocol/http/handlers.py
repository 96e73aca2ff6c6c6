"""Handlers that only look: health, metadata, configuration, statistics.

Source: reference sections "Health", "Metadata and configuration", "Statistics".
"""

from __future__ import annotations

from protocol.errors import InvalidArgument
from protocol.http.exchange import HttpRequest
from protocol.http.reply import Reply, json_reply


async def server_live(request: HttpRequest) -> Reply:
    return Reply(200 if request.core.is_live() else 400)


async def server_ready(request: HttpRequest) -> Reply:
    return Reply(200 if await request.core.check_ready() else 400)


async def model_ready(request: HttpRequest) -> Reply:
    if not await request.core.check_model_ready(request.model_name, request.model_version):
        raise InvalidArgument("Model version not ready")
    return Reply()


async def server_metadata(request: HttpRequest) -> Reply:
    return json_reply(request.core.server_metadata())


async def model_metadata(request: HttpRequest) -> Reply:
    return json_reply(request.core.model_metadata(request.model_name, request.model_version))


async def model_config(request: HttpRequest) -> Reply:
    return json_reply(request.core.model_config(request.model_name, request.model_version))


async def all_statistics(request: HttpRequest) -> Reply:
    return json_reply({"model_stats": request.core.model_statistics()})


async def model_statistics(request: HttpRequest) -> Reply:
    entries = request.core.model_statistics(request.model_name, request.model_version)
    return json_reply({"model_stats": entries})
