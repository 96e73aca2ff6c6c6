"""Lines of batches, run by the routes' own handlers: answers, failures, priority, charges, and what is given back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from protocol.errors import Internal, InvalidArgument, NotFound, Unavailable
from protocol.http.app import HttpApp
from protocol.http.openai.batches.execution import InferBeside, LineExecutor
from protocol.http.openai.batches.source import LineSource
from protocol.http.settings import HttpSettings
from protocol.jobs.batches.lines import LineRequest, encode_line_request
from protocol.jobs.execution import FailedItem, ModelLoad
from protocol.limits.request_memory import RequestMemory
from protocol.messages import Buffer
from protocol.quotas.accounts import Account, Ledger, Terms
from protocol.quotas.meters import Rate
from protocol.quotas.quota import Quota, Unit
from protocol.services import EdgeServices
from tests.protocol.http.asgi import call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import FOREVER, ScriptedCore

COMPLETIONS = "/v1/completions"


class Files:
    """The files of a store, each with one line."""

    def __init__(self) -> None:
        self.lines: dict[str, bytes] = {}

    async def read_file(self, payload: str, start: int, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if payload not in self.lines:
            raise NotFound("the file has been removed")
        return self.lines[payload][start : start + size]


class Lines:
    """An executor on a scripted core."""

    def __init__(
        self,
        core: ScriptedCore | None = None,
        account: Callable[[str], Account | None] = lambda _: None,
        infer_beside: InferBeside | None = None,
    ) -> None:
        self.core = core or ScriptedCore()
        self.services: EdgeServices = make_services(self.core)
        self.files = Files()
        self.executor = LineExecutor(
            self.services,
            HttpSettings(),
            LineSource(self.files),
            lowest_priority=self.lowest_priority,
            load_of=lambda _: ModelLoad(1, 2),
            account=account,
            infer_beside=infer_beside,
        )

    def lowest_priority(self, name: str, version: int) -> int:
        return 7

    def request(self, body: Any, endpoint: str = COMPLETIONS) -> Buffer:
        line = json.dumps({"custom_id": "a", "method": "POST", "url": endpoint, "body": body}).encode()
        self.files.lines["file"] = line
        return encode_line_request(LineRequest(endpoint, "m", "file", 0, len(line)))

    async def run(self, body: Any, endpoint: str = COMPLETIONS) -> Any:
        parts = await self.executor.run("ann", self.request(body, endpoint), lambda _: None)
        return json.loads(b"".join(parts))

    async def failure(self, body: Any, endpoint: str = COMPLETIONS) -> tuple[FailedItem, Any]:
        with pytest.raises(FailedItem) as failed:
            await self.run(body, endpoint)
        return failed.value, json.loads(b"".join(failed.value.result))


PROMPT = {"model": "m", "prompt": "hi"}


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (COMPLETIONS, PROMPT),
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"model": "m", "input": "hi"}),
    ],
)
async def test_an_answer_is_that_of_the_route(endpoint: str, body: dict[str, Any]) -> None:
    lines = Lines()
    made = await lines.run(body, endpoint)
    live = await call(HttpApp(lines.services, HttpSettings()), "POST", endpoint, json.dumps(body).encode())
    assert (made["status_code"], set(made["body"])) == (200, set(live.json))
    assert made["body"]["usage"] == live.json["usage"]
    assert len(made["request_id"]) == 32
    assert lines.core.requests[0].inputs[0].as_numpy().tolist() == lines.core.requests[1].inputs[0].as_numpy().tolist()


async def test_it_has_the_lowest_priority_whatever_it_asks_for() -> None:
    lines = Lines()
    await lines.run({**PROMPT, "priority": 1})
    assert [request.priority for request in lines.core.requests] == [7]
    assert lines.executor.load_of("m") == ModelLoad(1, 2)


async def test_responses_are_not_kept() -> None:
    lines = Lines()
    made = await lines.run({"model": "m", "input": "hi", "store": True}, "/v1/responses")
    assert lines.services.responses.find("anonymous", made["body"]["id"]) is None
    _, told = await lines.failure(
        {"model": "m", "input": "hi", "previous_response_id": made["body"]["id"]}, "/v1/responses"
    )
    assert told["body"]["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**PROMPT, "stream": True}, "stream"),
        ({**PROMPT, "max_tokens": -1}, "max_tokens"),
        ({**PROMPT, "stream": "yes"}, "stream"),
    ],
)
async def test_a_field_that_is_wrong_fails_the_line(body: dict[str, Any], param: str) -> None:
    failed, told = await Lines().failure(body)
    assert isinstance(failed.error, InvalidArgument)
    assert (told["status_code"], told["body"]["error"]["param"]) == (400, param)
    assert told["body"]["request_id"] == told["request_id"]


async def test_a_response_in_the_background_is_refused() -> None:
    _, told = await Lines().failure({"model": "m", "input": "hi", "background": True}, "/v1/responses")
    assert told["body"]["error"]["param"] == "background"


async def test_a_model_that_fails_fails_the_line() -> None:
    failed, told = await Lines(ScriptedCore(script=(Internal("out of memory"),))).failure(PROMPT)
    assert failed.error.message == "out of memory"
    assert (told["status_code"], told["body"]["error"]["type"]) == (500, "server_error")


async def test_what_may_be_there_later_is_tried_again() -> None:
    with pytest.raises(Unavailable, match="not ready"):
        await Lines(ScriptedCore(script=(Unavailable("not ready"),))).run(PROMPT)
    with pytest.raises(Unavailable, match="Unknown model: gone"):
        await Lines().run({**PROMPT, "model": "gone"})

    class Unloading(Lines):
        def lowest_priority(self, name: str, version: int) -> int:
            raise NotFound("just unloaded")

    with pytest.raises(Unavailable, match="just unloaded"):
        await Unloading().run(PROMPT)


async def test_a_line_whose_file_is_gone_fails() -> None:
    lines = Lines()
    request = lines.request(PROMPT)
    lines.files.lines.clear()
    with pytest.raises(FailedItem, match="cannot be read"):
        await lines.executor.run("ann", request, lambda _: None)


async def test_lines_count_in_the_memory_of_requests() -> None:
    lines = Lines(ScriptedCore(script=(FOREVER,)))
    memory: RequestMemory = lines.services.memory
    request = lines.request(PROMPT)
    memory.limit = len(lines.files.lines["file"]) + 10
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lines.run, PROMPT)
        await lines.core.started.wait()
        assert memory.held == len(lines.files.lines["file"])
        with pytest.raises(Unavailable, match="--max-request-memory"):
            await lines.executor.run("ann", request, lambda _: None)
        nursery.cancel_scope.cancel()
    assert memory.held == 0
    assert lines.core.cancelled.is_set()


async def test_it_is_charged_as_it_runs_and_never_twice() -> None:
    ledger = Ledger(lambda: 1000.0)
    limits: dict[Unit, Rate | int] = {Unit.REQUESTS: Rate(1, 1.0, 1), Unit.TOKENS: Rate(100, 1.0, 100)}
    ledger.adopt([Terms("ann", Quota("q", limits, {"m": {Unit.REQUESTS: Rate(1, 1.0, 1)}}))])
    account = ledger.account("ann")
    lines = Lines(account={"ann": account}.get)
    for _ in range(3):
        await lines.run(PROMPT)
    assert (account.usage.requests, account.usage.running) == (3, 0)
    assert account.usage.tokens == 3 * 8
    await lines.failure({**PROMPT, "max_tokens": -1})
    assert account.usage.running == 0


async def test_what_nests_too_deeply_fails_the_line() -> None:
    lines = Lines()
    text = b'{"custom_id":"a","body":{"model":"m","prompt":"x","y":' + b"[" * 20_000 + b"]" * 20_000 + b"}}"
    lines.files.lines["file"] = text
    request = encode_line_request(LineRequest(COMPLETIONS, "m", "file", 0, len(text)))
    with pytest.raises(FailedItem):
        await lines.executor.run("ann", request, lambda _: None)
