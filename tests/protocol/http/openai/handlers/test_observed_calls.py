"""Calls of the OpenAI interface that are observed in OpenTelemetry's terms."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from protocol.errors import Internal, InvalidArgument
from protocol.gen_ai import EndedCall
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.text.model import TextModel
from tests.protocol.http.asgi import Answer, Exchange, call
from tests.protocol.http.fake_services import FakeTraceControl, make_services
from tests.protocol.http.openai.handlers.scripted_core import FOREVER, TEMPLATE, ScriptedCore
from tests.protocol.http.openai.handlers.test_embeddings import NAMES, Embedder
from tests.protocol.http.openai.handlers.test_scores import make_core
from tests.protocol.http.openai.words import word_tokenizer
from tests.protocol.test_gen_ai import Recorded

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Observed:
    """An application whose calls are observed and traced."""

    def __init__(self, core: ScriptedCore) -> None:
        self.core = core
        self.recorded = Recorded()
        self.traces = FakeTraceControl(is_on=True)
        self.app = HttpApp(make_services(core, trace=self.traces, gen_ai=self.recorded), HttpSettings())

    async def post(self, path: str, **members: Any) -> Answer:
        return await call(self.app, "POST", path, body(path, **members))

    def ended(self) -> EndedCall:
        [found] = self.recorded.calls
        return found

    def attributes(self) -> dict[str, Any]:
        [trace] = self.traces.traces
        assert trace.ends == 1
        return trace.attributes


def body(path: str, **members: Any) -> bytes:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "secret"}]}
    if path == COMPLETIONS:
        prompt = {"prompt": "secret"}
    return json.dumps({"model": "m", **prompt, **members}).encode()


async def test_a_chat() -> None:
    for stream in (False, True):
        observed = Observed(ScriptedCore())
        answer = await observed.post(
            CHAT, stream=stream, max_completion_tokens=9, temperature=0, top_p=0.5, stop=["secret"], request_id="mine"
        )
        assert answer.status == 200
        assert observed.attributes() == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "trioton",
            "gen_ai.request.model": "m",
            "gen_ai.request.max_tokens": 9,
            "gen_ai.request.temperature": 0,
            "gen_ai.request.top_p": 0.5,
            "gen_ai.response.model": "m",
            "gen_ai.response.id": "chatcmpl-mine",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 3,
        }
        ended = observed.ended()
        assert (ended.operation, ended.request_model, ended.error_type) == ("chat", "m", "")
        assert ended.first_token_seconds is not None
        assert ended.per_token_seconds is not None


async def test_completions_of_several_prompts_and_choices() -> None:
    """One call, whatever inferences it has; each prompt counts once."""
    observed = Observed(ScriptedCore(finish_reason="length"))
    answer = await observed.post(COMPLETIONS, prompt=["x", "y"], n=2)
    assert answer.json["usage"]["prompt_tokens"] == 10
    found = observed.attributes()
    assert (found["gen_ai.operation.name"], found["gen_ai.request.choice.count"]) == ("text_completion", 2)
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (10, 12)
    assert found["gen_ai.response.finish_reasons"] == ("length",) * 4
    assert observed.ended().operation == "text_completion"


async def test_an_adapter_is_the_model_that_is_asked_for() -> None:
    observed = Observed(ScriptedCore())
    await observed.post(CHAT, model="poet")
    assert observed.ended().request_model == "poet"


async def test_embeddings() -> None:
    core = Embedder(texts=(TextModel("m", 1, names=NAMES, tokenizer=word_tokenizer()),))
    observed = Observed(core)
    answer = await call(
        observed.app, "POST", "/v1/embeddings", json.dumps({"model": "m", "input": ["hello world", "hello"]}).encode()
    )
    assert answer.json["usage"]["prompt_tokens"] == 3
    found = observed.attributes()
    assert (found["gen_ai.operation.name"], found["gen_ai.usage.input_tokens"]) == ("embeddings", 3)
    assert found["gen_ai.request.encoding_formats"] == ("float",)
    assert found["gen_ai.embeddings.dimension.count"] == len(answer.json["data"][0]["embedding"])
    assert observed.ended().first_token_seconds is None


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
async def test_a_chat_that_ends_in_calls_of_tools(path: str, stream: bool) -> None:
    text = TextModel("m", 1, chat_template=TEMPLATE, tool_parser="hermes")
    observed = Observed(ScriptedCore(texts=(text,), script=('<tool_call>{"name": "f", "arguments": {}}</tool_call>',)))
    asked: dict[str, Any] = {"model": "m", "stream": stream}
    messages = [{"role": "user", "content": "x"}]
    match path:
        case "/v1/chat/completions":
            asked |= {"messages": messages, "tools": [TOOL]}
        case "/v1/responses":
            asked |= {"input": "x", "tools": [{"type": "function", "name": "f"}]}
        case _:
            asked |= {"messages": messages, "tools": [{"name": "f", "input_schema": {}}], "max_tokens": 9}
    assert (await call(observed.app, "POST", path, json.dumps(asked).encode())).status == 200
    assert observed.attributes()["gen_ai.response.finish_reasons"] == ("tool_calls",)


async def test_scores_of_a_cross_encoder() -> None:
    for path, members in (
        ("/score", {"text_1": "hello", "text_2": ["world", "world world"]}),
        ("/rerank", {"query": "hello", "documents": ["world", "world world"]}),
    ):
        core = make_core()
        observed = Observed(core)
        asked = json.dumps({"model": "m", "request_id": "r", **members}).encode()
        assert (await call(observed.app, "POST", path, asked)).status == 200
        operation = path.removeprefix("/")
        assert observed.attributes() == {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "trioton",
            "gen_ai.request.model": "m",
            "gen_ai.response.model": "m",
            "gen_ai.response.id": f"{operation}-r",
            "gen_ai.usage.input_tokens": 5,
        }
        assert (observed.ended().operation, observed.ended().error_type) == (operation, "")


async def test_scores_by_vectors_are_one_call() -> None:
    observed = Observed(Embedder(texts=(TextModel("m", 1, names=NAMES, tokenizer=word_tokenizer()),)))
    asked = {"model": "m", "query": "hello", "documents": ["world", "hello"]}
    assert (await call(observed.app, "POST", "/rerank", json.dumps(asked).encode())).status == 200
    assert observed.ended().operation == "rerank"
    assert observed.attributes()["gen_ai.usage.input_tokens"] == 2


async def test_an_error_before_and_within_the_answer() -> None:
    for stream in (False, True):
        observed = Observed(ScriptedCore(script=(InvalidArgument("no"),)))
        assert (await observed.post(CHAT, stream=stream)).status == 400
        assert (observed.ended().error_type, observed.attributes()["error.type"]) == ("INVALID_ARG", "INVALID_ARG")
    observed = Observed(ScriptedCore(script=("a", Internal("it broke"))))
    assert (await observed.post(CHAT, stream=True)).status == 200
    assert (observed.ended().error_type, observed.attributes()["error.type"]) == ("INTERNAL", "INTERNAL")


async def test_a_client_that_leaves_has_cancelled_its_call() -> None:
    observed = Observed(ScriptedCore(script=("a", FOREVER)))
    exchange = Exchange("POST", CHAT, body(CHAT, stream=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, observed.app)
        while not observed.core.sent:
            await trio.testing.wait_all_tasks_blocked()
        exchange.disconnect.set()
    assert observed.ended().error_type == "CANCELLED"


async def test_what_names_no_model_is_no_call_of_one() -> None:
    """Else clients could make labels."""
    observed = Observed(ScriptedCore())
    assert (await observed.post(CHAT, model="unknown")).status == 404
    assert observed.recorded.calls == []


async def test_nothing_is_observed_unless_it_is_asked_for() -> None:
    core, control = ScriptedCore(), FakeTraceControl(is_on=True)
    await call(HttpApp(make_services(core, trace=control), HttpSettings()), "POST", CHAT, body(CHAT))
    assert [request.gen_ai for request in core.requests] == [None]
    assert control.traces[0].attributes == {}
