"""Handlers of `/v1/models`: what there is, and its load and unload as Triton's frontend has them."""

from __future__ import annotations

from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable, shown_name
from protocol.http.exchange import HttpRequest
from protocol.http.openai.codec.written_lists import written_list
from protocol.http.openai.errors import ModelNotFound
from protocol.http.openai.targets import find_target, list_targets, target_members
from protocol.http.reply import JSON_CONTENT, Reply, json_reply
from protocol.sync.sliced import run_sliced

_NOT_EXPLICIT = "Model load/unload requires --model-control-mode=explicit"


async def list_models(request: HttpRequest) -> Reply:
    targets = await list_targets(request.core, request.settings.openai.lora_separator)
    owner = request.core.server_metadata().name
    members = (target_members(target, owner) for target in targets)
    parts = await run_sliced(written_list({"object": "list"}, "data", members, {}))
    return Reply(200, JSON_CONTENT, parts[0], parts[1:])


async def retrieve_model(request: HttpRequest) -> Reply:
    target = await find_target(request.core, request.model_name, request.settings.openai.lora_separator)
    return json_reply(target_members(target, request.core.server_metadata().name))


async def load(request: HttpRequest) -> Reply:
    """Replies when the load has ended."""
    name = request.model_name
    if _is_ready(request, name):
        raise InvalidArgument(f"Model '{name}' is already loaded")
    try:
        await request.core.load_model(name)
    except Unavailable as error:
        raise _refusal(error) from None
    return _done(name)


async def unload(request: HttpRequest) -> Reply:
    """Replies when the unload has begun."""
    name = request.model_name
    if not _is_ready(request, name):
        raise ModelNotFound(f"Unknown model: {shown_name(name)}")
    try:
        await request.core.unload_model(name)
    except Unavailable as error:
        raise _refusal(error) from None
    return _done(name)


def _is_ready(request: HttpRequest, name: str) -> bool:
    try:
        return request.core.is_model_ready(name)
    except (NotFound, InvalidArgument):
        return False


def _refusal(error: Unavailable) -> ServerError:
    """In the other control modes clients decide nothing, and will not later either."""
    return InvalidArgument(_NOT_EXPLICIT) if "explicit" in error.message else error


def _done(name: str) -> Reply:
    return json_reply({"status": "success", "model": name})
