"""`/sleep`, `/wake_up`, `/is_sleeping` and `/reset_prefix_cache`, through the application."""

from __future__ import annotations

import pytest

from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings, OpenAISettings
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import ScriptedCore


async def ask(core: ScriptedCore, method: str, path: str, *, sleep_mode: bool = True) -> Answer:
    settings = HttpSettings(openai=OpenAISettings(sleep_mode=sleep_mode))
    return await call(HttpApp(make_services(core), settings), method, path)


async def test_the_only_model_or_the_one_that_is_named() -> None:
    core = ScriptedCore(asleep={"m": True})
    assert (await ask(core, "POST", "/sleep")).status == 200
    assert (await ask(core, "POST", "/sleep?level=2&model=m")).status == 200
    assert (await ask(core, "POST", "/wake_up?tags=weights")).status == 200
    assert (await ask(core, "POST", "/reset_prefix_cache")).status == 200
    assert core.calls == [("sleep", "m", 1), ("sleep", "m", 2), ("wake", "m"), ("reset prefix cache", "m")]
    assert (await ask(core, "GET", "/is_sleeping")).json == {"is_sleeping": True}
    core.asleep = {"m": False, "other": False}
    answer = await ask(core, "POST", "/sleep")
    assert (answer.status, answer.json["error"]["param"]) == (400, "model")
    core.asleep = {}
    assert "no model has an engine" in (await ask(core, "POST", "/sleep")).json["detail"]


@pytest.mark.parametrize("level", ["0", "3", "x", "1.0"])
async def test_levels(level: str) -> None:
    answer = await ask(ScriptedCore(asleep={"m": False}), "POST", f"/sleep?level={level}")
    assert (answer.status, answer.json["error"]["param"]) == (400, "level")


@pytest.mark.parametrize("path", ["/sleep", "/wake_up", "/reset_prefix_cache"])
async def test_not_without_the_flag(path: str) -> None:
    core = ScriptedCore(asleep={"m": False})
    answer = await ask(core, "POST", path, sleep_mode=False)
    assert (answer.status, core.calls) == (400, [])
