"""Handlers of the model repository extension: index, load, unload, and registration of repositories.

Source: reference section "Model repository". Registering repositories is our own; Triton has it in its C API.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import Any

import msgspec

from protocol.core import LoadParameters, ModelIndex, ModelRepository
from protocol.errors import InvalidArgument, Unsupported
from protocol.http.codec.base64_text import decode_base64
from protocol.http.codec.json_pieces import json_list_reply
from protocol.http.codec.json_text import JsonReader
from protocol.http.codec.json_values import has_more_values
from protocol.http.codec.long_json import Rest
from protocol.http.codec.long_texts import find_long_texts
from protocol.http.errors import BodyTooLarge
from protocol.http.exchange import JSON_SLICED_ABOVE, HttpRequest
from protocol.http.reply import Reply, json_reply
from protocol.messages import Buffer
from protocol.sync.sliced import run_sliced

_FILE_PREFIX = "file:"
# Of the body of a load: some files, and what else it may say.
_MOST_VALUES = 1 << 14


class IndexBody(msgspec.Struct):
    ready: Any = False


class ControlBody(msgspec.Struct):
    """What load and unload take; unknown members are ignored."""

    parameters: dict[str, Any] | None = None


class RepositoryBody(msgspec.Struct):
    """What register and unregister take; unknown members are ignored."""

    path: Any = None
    model_names: Any = None


_INDEX_READER = JsonReader(IndexBody)
_CONTROL_READER = JsonReader(ControlBody)
_REPOSITORY_READER = JsonReader(RepositoryBody)


async def repository_index(request: HttpRequest) -> Reply:
    ready = _INDEX_READER.read(request.body).ready if request.body else False
    if not isinstance(ready, bool):
        raise InvalidArgument("Invalid value for 'ready': expected a boolean")
    index = map(_index_entry, await request.core.repository_index(ready=ready))
    return await run_sliced(json_list_reply(index, request.headers.get(b"accept-encoding")))


async def load_model(request: HttpRequest) -> Reply:
    """Replies when the load has ended. A client that leaves earlier does not stop it."""
    _refuse_repository_name(request)
    config: str | None = None
    files: dict[str, Buffer] = {}
    for key, value in (await _load_parameters(request)).items():
        if key == "config":
            config = str(value, "ascii") if isinstance(value, memoryview) else _string(key, value)
        elif key.startswith(_FILE_PREFIX):
            text = value if isinstance(value, memoryview) else _string(key, value)
            files[key.removeprefix(_FILE_PREFIX)] = await _base64(key, text)
        else:
            kind = str if isinstance(value, memoryview) else type(value)
            raise InvalidArgument(f"Unrecognized load parameter '{key}' with type '{kind.__name__}'")
    await request.core.load_model(request.model_name, LoadParameters(config, files))
    return Reply()


async def unload_model(request: HttpRequest) -> Reply:
    _refuse_repository_name(request)
    unload_dependents = _control_parameters(request).get("unload_dependents", False)
    if not isinstance(unload_dependents, bool):
        raise InvalidArgument(
            "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean, "
            f"got {unload_dependents!r:.40}"
        )
    await request.core.unload_model(request.model_name, unload_dependents=unload_dependents)
    return Reply()


async def list_repositories(request: HttpRequest) -> Reply:
    return json_reply([_repository(each) for each in request.core.repositories()])


async def register_repository(request: HttpRequest) -> Reply:
    """Raises InvalidArgument, AlreadyExists, and Unsupported where clients do not decide what is loaded."""
    body = _REPOSITORY_READER.read(request.body)
    names = {} if body.model_names is None else body.model_names
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InvalidArgument(
            f"Unable to parse 'model_names': expected an object of directory names to model names, got {names!r:.40}"
        )
    await request.core.register_repository(ModelRepository(_string("path", body.path), names))
    return Reply()


async def unregister_repository(request: HttpRequest) -> Reply:
    """Raises InvalidArgument, and Unsupported where clients do not decide what is loaded."""
    await request.core.unregister_repository(_string("path", _REPOSITORY_READER.read(request.body).path))
    return Reply()


def _repository(repository: ModelRepository) -> dict[str, Any]:
    names = {"model_names": dict(repository.names)} if repository.names else {}
    return {"path": repository.path, **names}


def _index_entry(entry: ModelIndex) -> dict[str, str]:
    """Members that are not known are left out."""
    members = {
        "namespace": entry.namespace,
        "version": entry.version,
        "state": entry.state,
        "reason": entry.reason,
    }
    return {"name": entry.name, **{key: value for key, value in members.items() if value}}


def _control_parameters(request: HttpRequest) -> dict[str, Any]:
    return (_CONTROL_READER.read(request.body).parameters or {}) if request.body else {}


async def _load_parameters(request: HttpRequest) -> dict[str, Any]:
    """Those of a load, with views of the body in place of long texts."""
    if len(request.body) <= JSON_SLICED_ABOVE:
        return _control_parameters(request)
    body = memoryview(request.body)
    if await run_sliced(has_more_values(body, _MOST_VALUES)):
        raise BodyTooLarge(f"the body has more than {_MOST_VALUES} JSON values, the maximum", "load_json_values")
    if texts := await run_sliced(find_long_texts(body)):
        rest = Rest(body, texts)
        with suppress(InvalidArgument):  # told by who reads all of it
            parameters = _CONTROL_READER.read(rest.text).parameters or {}
            numbers = {key: rest.number_of(value) for key, value in parameters.items()}
            found = {key: body[texts[n].start + 1 : texts[n].end - 1] for key, n in numbers.items() if n is not None}
            if len(found) == len(texts):
                return {**parameters, **found}
    return _control_parameters(request)


def _refuse_repository_name(request: HttpRequest) -> None:
    if "repository_name" in request.path_parameters:
        raise Unsupported("'repository_name' specification is not supported")


def _string(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise InvalidArgument(f"Unable to parse '{key}': attempt to access JSON non-string as string, got {value!r:.40}")


async def _base64(key: str, text: str | memoryview) -> Buffer:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
        return await run_sliced(decode_base64(text))
    except (binascii.Error, ValueError) as exc:
        raise InvalidArgument(f"Load parameter '{key}' must be the file's content in base64: {exc}") from None
