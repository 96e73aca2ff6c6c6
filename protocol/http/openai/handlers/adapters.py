"""Handlers of `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM's server has them, with its sentences.

A client that leaves in the middle of a load or an unload does not end it.
"""

from __future__ import annotations

from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import read_body
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import LoadAdapterRequest, UnloadAdapterRequest
from protocol.http.openai.errors import FieldError
from protocol.http.openai.targets import adapter_model, check_adapter_name
from protocol.http.reply import TEXT_CONTENT, Reply

_LOAD = BodyReader(LoadAdapterRequest)
_UNLOAD = BodyReader(UnloadAdapterRequest)


async def load(request: HttpRequest) -> Reply:
    """Replies when requests may use it."""
    body = await read_body(request, _LOAD)
    name, path = body.lora_name, body.lora_path
    if not (name and path):
        raise FieldError("Both 'lora_name' and 'lora_path' must be provided.", "lora_path" if name else "lora_name")
    core = request.core
    model = await adapter_model(core, body.model or body.base_model_name, name)
    await check_adapter_name(core, model, name, request.settings.openai.lora_separator)
    await core.load_adapter(model, name, path, replace=bool(body.load_inplace))
    return _done(name, "added")


async def unload(request: HttpRequest) -> Reply:
    """Replies when it is gone, which is when the requests that use it have ended."""
    body = await read_body(request, _UNLOAD)
    name = body.lora_name
    if not name:
        raise FieldError("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
    model = await adapter_model(request.core, body.model or body.base_model_name, name)
    await request.core.unload_adapter(model, name)
    return _done(name, "removed")


def _done(name: str, what: str) -> Reply:
    return Reply(200, TEXT_CONTENT, f"Success: LoRA adapter '{name}' {what} successfully.".encode())
