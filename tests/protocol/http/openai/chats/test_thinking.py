"""Budgets of thinking through the application: what the model is asked, and what the client is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from protocol.core import ModelMetadata, Respond
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.messages import LATEST_VERSION, InferenceRequest
from protocol.text.chat_template import ChatTemplate
from protocol.text.model import TextModel
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import FOREVER, ScriptedCore, events, prompt_of, sampling_of
from tests.protocol.http.openai.words import word_tokenizer

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}|{% if thinking %}<think>{% endif %}")


@dataclass
class Thinker(ScriptedCore):
    """Each request is answered by the next one of `scripts`, a token each."""

    scripts: Sequence[Sequence[str]] = ()
    has_stream: bool = True

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        self.script = self.scripts[len(self.requests)]
        return await super().infer_stream(request, respond)

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        found = super().model_metadata(name, version)
        if self.has_stream:
            return found
        inputs = tuple(each for each in found.inputs if each.name != "stream")
        return ModelMetadata(found.name, found.versions, found.platform, inputs, found.outputs)


def thinker(*scripts: Sequence[str], parser: str = "think", **members: Any) -> Thinker:
    text = TextModel("m", 1, chat_template=TEMPLATE, reasoning_parser=parser, **members)
    return Thinker(texts=(text,), scripts=scripts)


async def post(core: ScriptedCore, path: str = CHAT, **members: Any) -> Answer:
    body = {"model": "m", "messages": [{"role": "user", "content": "q"}], **members}
    return await call(HttpApp(make_services(core), HttpSettings()), "POST", path, json.dumps(body).encode())


THOUGHTS = ("<think>", "a", "b", FOREVER)
ANSWER = ("yes", ".")


async def test_thoughts_end_at_their_budget() -> None:
    core = thinker(THOUGHTS, ANSWER)
    made = (await post(core, thinking_token_budget=3, max_tokens=10, temperature=0.5, seed=7, min_tokens=4)).json
    (choice,) = made["choices"]
    assert (choice["message"]["reasoning_content"].strip(), choice["message"]["content"]) == ("ab", "yes.")
    assert choice["finish_reason"] == "stop"
    first, rest = core.requests
    assert prompt_of(rest) == f"{prompt_of(first)}<think>ab\n</think>\n\n"
    assert sampling_of(first) == {"max_tokens": 10, "temperature": 0.5, "seed": 7, "min_tokens": 4}
    assert sampling_of(rest) == {"max_tokens": 7, "temperature": 0.5, "seed": 7, "min_tokens": 1}
    assert (rest.id, rest.priority, rest.parameters) == (first.id, first.priority, first.parameters)
    assert made["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    assert core.cancelled.is_set()


async def test_they_are_one_stream() -> None:
    core = thinker(THOUGHTS, ANSWER)
    answer = await post(core, thinking_token_budget=3, stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = events(answer.body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(each.get("reasoning_content") or "" for each in deltas).strip() == "ab"
    assert "".join(each.get("content") or "" for each in deltas) == "yes."
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"], done) == (5, 5, "[DONE]")


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_budget_is_that(stream: bool) -> None:
    core = thinker(("a", "b", "c", FOREVER), ANSWER)
    asked: dict[str, Any] = {"max_tokens": 10, "thinking": {"type": "enabled", "budget_tokens": 3}, "stream": stream}
    answer = await post(core, MESSAGES, **asked)
    assert answer.status == 200
    assert prompt_of(core.requests[1]) == "q|<think>abc\n</think>\n\n", "the prompt has begun the thoughts"
    if not stream:
        thought, text = answer.json["content"]
        assert (thought["type"], thought["thinking"].strip(), text["text"]) == ("thinking", "abc", "yes.")
        assert answer.json["usage"]["output_tokens"] == 5


async def test_every_choice_has_its_own() -> None:
    core = thinker(*[("<think>", "a", FOREVER)] * 2, *[("yes",)] * 2)
    made = (await post(core, thinking_token_budget=2, n=2, seed=5)).json
    assert [each["message"]["content"] for each in made["choices"]] == ["yes", "yes"]
    seeds = [sampling_of(each)["seed"] for each in core.requests]
    assert (sorted(seeds[:2]), sorted(seeds[2:])) == ([5, 6], [5, 6])


@pytest.mark.parametrize(
    ("script", "members"),
    [
        (("<think>", "a", "</think>", "b", "c", "d"), {}),
        (("a", "b", "c", "d"), {}),
        (("<think>", "a", "b", "c"), {"max_tokens": 3}),
        (("<think>", "a", "b", "c"), {"response_format": {"type": "json_object"}}),
    ],
)
async def test_what_keeps_to_it_is_one_inference(script: Sequence[str], members: dict[str, Any]) -> None:
    core = thinker(script)
    assert (await post(core, thinking_token_budget=3, **members)).status == 200
    assert len(core.requests) == 1


async def test_a_model_that_thinks_as_nobody_can_read_needs_no_budget() -> None:
    core = thinker(("<think>", "a", "b", "c"), parser="")
    assert (await post(core, thinking_token_budget=1)).json["choices"][0]["message"]["content"] == "<think>abc"


async def test_a_context_that_is_full_ends_the_answer() -> None:
    piece = " hello hello hello"  # one token for the model, and three for whoever reads it
    core = thinker((piece, piece, FOREVER), tokenizer=word_tokenizer(), context_length=6)
    made = (await post(core, thinking_token_budget=2, chat_template_kwargs={"thinking": True})).json
    (choice,) = made["choices"]
    assert (choice["finish_reason"], len(core.requests)) == ("length", 1)


async def test_a_model_whose_text_comes_whole_cannot_keep_to_it() -> None:
    core = thinker(("a",))
    core.has_stream = False
    answer = await post(core, thinking_token_budget=3)
    assert (answer.status, answer.json["error"]["param"]) == (400, "thinking_token_budget")
    assert "model 'm' has no input 'stream'" in answer.json["error"]["message"]
    asked: dict[str, Any] = {"max_tokens": 10, "thinking": {"type": "enabled", "budget_tokens": 3}}
    assert "a budget of thinking cannot be honoured" in (await post(core, MESSAGES, **asked)).json["error"]["message"]
    assert (await post(core, thinking_token_budget=0)).status == 400
