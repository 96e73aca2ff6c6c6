"""`/v1/completions` through the application."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.text.model import TextModel
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import (
    TEMPLATE,
    ScriptedCore,
    events,
    prompt_of,
    sampling_of,
)
from tests.protocol.http.openai.words import word_tokenizer


async def post(core: ScriptedCore, **members: Any) -> Answer:
    app = HttpApp(make_services(core), HttpSettings())
    return await call(app, "POST", "/v1/completions", json.dumps({"model": "m", "prompt": "hi", **members}).encode())


async def test_a_whole_answer() -> None:
    core = ScriptedCore()
    made = (await post(core, max_tokens=3)).json
    assert made["id"].startswith("cmpl-")
    assert made["object"] == "text_completion"
    assert made["choices"] == [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop"}]
    assert made["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert core.requests[0].parameters == {"add_special_tokens": True}


async def test_lists_of_prompts() -> None:
    core = ScriptedCore()
    made = (await post(core, prompt=["x", "y"], n=2, echo=True)).json
    assert [(choice["index"], choice["text"]) for choice in made["choices"]] == [
        (0, "xabc"),
        (1, "xabc"),
        (2, "yabc"),
        (3, "yabc"),
    ]
    assert made["usage"] == {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22}
    assert sorted(map(prompt_of, core.requests)) == ["x", "x", "y", "y"]


async def test_token_ids_are_spelt_out() -> None:
    tokenizer = word_tokenizer()
    core = ScriptedCore(texts=(TextModel("m", 1, tokenizer=tokenizer, context_length=10),))
    ids = tokenizer.encode("hello world", add_special_tokens=False)
    await post(core, prompt=ids)
    await post(core, prompt=[ids, ids[:1]], max_tokens=1)
    assert sorted(map(prompt_of, core.requests)) == ["hello", "hello world", "hello world"]
    assert [request.parameters["add_special_tokens"] for request in core.requests] == [False] * 3
    assert sampling_of(core.requests[0]) == {"max_tokens": 8}


async def test_the_last_tokens_of_a_prompt() -> None:
    """What may follow is counted from there; of a chat they are those of all its messages."""
    core = ScriptedCore(
        texts=(TextModel("m", 1, tokenizer=word_tokenizer(), context_length=4, chat_template=TEMPLATE),)
    )
    made = (await post(core, prompt="hello world hello world hello", truncate_prompt_tokens=2, echo=True)).json
    assert made["choices"][0]["text"] == " world helloabc"
    await post(core, prompt="hello world hello world hello", truncate_prompt_tokens=-1, max_tokens=1)
    messages = [{"role": "user", "content": "hello world"}, {"role": "user", "content": " world"}]
    asked = json.dumps({"model": "m", "messages": messages, "truncate_prompt_tokens": 2}).encode()
    app = HttpApp(make_services(core), HttpSettings())
    assert (await call(app, "POST", "/v1/chat/completions", asked)).status == 200
    assert list(map(prompt_of, core.requests)) == [" world hello", " hello world hello", " world world"]
    assert [sampling_of(each)["max_tokens"] for each in core.requests] == [2, 1, 2]
    refused = await post(core, truncate_prompt_tokens=5)
    assert (refused.status, refused.json["error"]["param"]) == (400, "truncate_prompt_tokens")


async def test_special_tokens_are_not_added_where_they_are_not_wanted() -> None:
    core = ScriptedCore()
    await post(core, add_special_tokens=False)
    assert core.requests[0].parameters == {"add_special_tokens": False}


async def test_a_stream() -> None:
    answer = await post(ScriptedCore(), stream=True, echo=True, stream_options={"include_usage": True})
    *chunks, usage, done = events(answer.body)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["hi", "a", "b", "c"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert (usage["usage"]["total_tokens"], done) == (8, "[DONE]")


async def test_logprobs() -> None:
    made = (await post(ScriptedCore(), logprobs=1)).json
    assert made["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-1, -1, -1],
        "tokens": ["a", "b", "c"],
        "top_logprobs": [{"a": -1}, {"b": -1}, {"c": -1}],
    }
    *chunks, _ = events((await post(ScriptedCore(), logprobs=1, stream=True)).body)
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": ["a"] * 20, "n": 100}, "prompt"),
        ({"prompt": [1]}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"response_format": {"type": "x"}}, "response_format.type"),
    ],
)
async def test_what_is_refused(members: dict[str, Any], param: str) -> None:
    core = ScriptedCore()
    answer = await post(core, **members)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert core.requests == []


async def test_a_model_that_generates_nothing() -> None:
    from protocol.text.model import TensorNames

    names = TensorNames(text_input="", text_output="", embedding_input="T", embedding_output="V")
    answer = await post(ScriptedCore(texts=(TextModel("m", 1, names=names),)))
    assert (answer.status, answer.json["detail"]) == (400, "model 'm' generates no text")
