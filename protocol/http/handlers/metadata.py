"""Handlers of health, metadata, model configuration and statistics (read-only).

Source: reference sections "Health", "Metadata and configuration", "Statistics".
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.core import ModelStatistics
from protocol.errors import InvalidArgument, ServerError
from protocol.http.codec.json_pieces import json_list_reply
from protocol.http.errors import error_reply, with_members
from protocol.http.exchange import HttpRequest
from protocol.http.reply import Reply, json_reply
from protocol.sync.sliced import run_sliced


async def server_live(request: HttpRequest) -> Reply:
    try:
        return _probe_reply("live", is_so=request.core.is_live())
    except ServerError as error:
        return _probe_reply("live", error)


async def server_ready(request: HttpRequest) -> Reply:
    try:
        return _probe_reply("ready", is_so=await request.core.check_ready())
    except ServerError as error:
        return _probe_reply("ready", error)


async def model_ready(request: HttpRequest) -> Reply:
    name = request.model_name
    try:
        if await request.core.check_model_ready(name, request.model_version):
            return _probe_reply("ready", is_so=True, name=name)
        error: ServerError = InvalidArgument("Model version not ready")
    except ServerError as refusal:
        error = refusal
    return _probe_reply("ready", error, name=name)


def _probe_reply(member: str, error: ServerError | None = None, *, is_so: bool = False, **named: str) -> Reply:
    """The body that the Open Inference Protocol gives a probe; beside a failure it says why."""
    if error is not None:
        reply = error_reply(error)
        return Reply(reply.status, reply.headers, with_members(reply, {**named, member: False}))
    return json_reply({**named, member: is_so}, 200 if is_so else 400)


async def server_metadata(request: HttpRequest) -> Reply:
    return json_reply(request.core.server_metadata())


async def model_metadata(request: HttpRequest) -> Reply:
    return json_reply(request.core.model_metadata(request.model_name, request.model_version))


async def model_config(request: HttpRequest) -> Reply:
    return json_reply(request.core.model_config(request.model_name, request.model_version))


async def all_statistics(request: HttpRequest) -> Reply:
    return await _statistics(request, request.core.each_statistics())


async def model_statistics(request: HttpRequest) -> Reply:
    return await _statistics(request, request.core.each_statistics(request.model_name, request.model_version))


async def _statistics(request: HttpRequest, entries: Iterator[ModelStatistics]) -> Reply:
    coding = request.headers.get(b"accept-encoding")
    return await run_sliced(json_list_reply(entries, coding, before=b'{"model_stats":[', after=b"]}"))
