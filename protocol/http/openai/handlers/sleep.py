"""Handlers of `/sleep`, `/wake_up`, `/is_sleeping` and `/reset_prefix_cache`, as vLLM's server has them.

`model` in the query says which model is meant, where several can sleep. A client that leaves does not end a change.
"""

from __future__ import annotations

from protocol.errors import InvalidArgument
from protocol.http.exchange import HttpRequest
from protocol.http.openai.codec.reading import read_query
from protocol.http.openai.errors import FieldError
from protocol.http.openai.targets import find_target
from protocol.http.reply import Reply, json_reply

_LEVELS = ("1", "2")


async def sleep(request: HttpRequest) -> Reply:
    """Replies when it sleeps."""
    _refuse_unless_allowed(request)
    level = read_query(request.query).get("level") or "1"
    if level not in _LEVELS:
        raise FieldError(f"'level': expected {' or '.join(_LEVELS)}, got '{level:.20}'", "level")
    await request.core.sleep(await _model(request), int(level))
    return Reply()


async def wake_up(request: HttpRequest) -> Reply:
    """Replies when it takes requests. All of it wakes up, whatever `tags` say."""
    _refuse_unless_allowed(request)
    await request.core.wake(await _model(request))
    return Reply()


async def is_sleeping(request: HttpRequest) -> Reply:
    return json_reply({"is_sleeping": request.core.sleeping().get(await _model(request), False)})


async def reset_prefix_cache(request: HttpRequest) -> Reply:
    _refuse_unless_allowed(request)
    await request.core.reset_prefix_cache(await _model(request))
    return Reply()


def _refuse_unless_allowed(request: HttpRequest) -> None:
    if not request.settings.openai.sleep_mode:
        raise InvalidArgument("Sleeping, waking and resetting caches requires --openai-sleep-mode=true")


async def _model(request: HttpRequest) -> str:
    """Raises ModelNotFound, or FieldError where none is named and there is not just one."""
    given = read_query(request.query).get("model")
    if given:
        return (await find_target(request.core, given)).model
    able = sorted(request.core.sleeping())
    if len(able) == 1:
        return able[0]
    if not able:
        raise FieldError("no model has an engine that can sleep", "model")
    models = ", ".join(f"'{name}'" for name in able)
    raise FieldError(f"'model': Field required: which one of {models} is meant", "model", "missing_required_parameter")
