"""Bodies of `/v1` that are nearly right, made from a seed, and bombs: small ones that would cost much."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.attack.inputs import NUMBERS, TEXTS, Chance, mutate, value

CHAT_MODELS = ("tools", "echo", "chat", "plain", "other", "joined")
EMBEDDING_MODELS = ("vectors", "cross_encoder", "embedder", "encoder", "by_first_token")
LONG_WORD = "x" * 200_000
MOST_TOKENS = 8

_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "", "model")
_PARTS = ("text", "input_text", "output_text", "image_url", "input_audio", "refusal", "file", "tool_use", "tool_result")
_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
_SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}
# Right values of fields that most routes have.
_SAMPLING: Mapping[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "min_p": 0.1,
    "n": 2,
    "best_of": 2,
    "seed": 7,
    "stop": ["a", "b"],
    "stop_token_ids": [3],
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "min_tokens": 1,
    "ignore_eos": True,
    "bad_words": ["x"],
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "structured_outputs": {"regex": "a+"},
    "guided_choice": ["a"],
    "guided_json": _SCHEMA,
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}},
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "priority": 1,
    "request_id": "mine",
    "user": "u",
    "add_special_tokens": False,
    "truncate_prompt_tokens": 2,
    "return_tokens_as_token_ids": True,
}
_CHAT: Mapping[str, Any] = {
    **_SAMPLING,
    "logprobs": True,
    "top_logprobs": 1,
    "tools": [_TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "include_reasoning": False,
    "thinking_token_budget": 2,
    "continue_final_message": True,
    "add_generation_prompt": False,
    "documents": [{"title": "t", "text": "x"}],
    "chat_template_kwargs": {"style": "s"},
    "metadata": {"a": "b"},
}
_COMPLETION: Mapping[str, Any] = {**_SAMPLING, "echo": True, "logprobs": 1, "suffix": ""}
_RESPONSES: Mapping[str, Any] = {
    "instructions": "be brief",
    "tools": [{"type": "function", "name": "f", "parameters": _SCHEMA}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "s", "schema": _SCHEMA}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "truncation": "auto",
    "include": ["message.output_text.logprobs"],
    "store": False,
    "background": True,
    "previous_response_id": "resp_1",
    "temperature": 0.5,
    "top_logprobs": 1,
    "metadata": {"a": "b"},
    "stop": ["a"],
    "seed": 1,
}
_MESSAGES: Mapping[str, Any] = {
    "system": [{"type": "text", "text": "s"}],
    "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2},
    "output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}, "effort": "low"},
    "stop_sequences": ["a"],
    "top_k": 3,
    "metadata": {"user_id": "u"},
}


def _pick(chance: Chance, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in chance.sample(list(fields), chance.randrange(4))}


def _content(chance: Chance) -> Any:
    match chance.randrange(4):
        case 0:
            return chance.choice(("Hello", *TEXTS))
        case 1:
            return [{"type": chance.choice(_PARTS), "text": chance.choice(TEXTS)} for _ in range(chance.randrange(3))]
        case 2:
            url = chance.choice(("data:image/png;base64,AAAA", "http://127.0.0.1:1/x.png", *TEXTS))
            source = {
                "type": chance.choice(("base64", "url", "file")),
                "media_type": "image/png",
                "data": url,
                "url": url,
            }
            pictures: list[Any] = [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "input_image", "image_url": url},
                {"type": "image", "source": source},
            ]
            return [{"type": "text", "text": "a"}, chance.choice(pictures)]
        case _:
            return value(chance, 2)


def _messages(chance: Chance) -> list[Any]:
    made = []
    for _ in range(chance.randrange(1, 4)):
        message: dict[str, Any] = {"role": chance.choice(_ROLES[:6]), "content": _content(chance)}
        if chance.random() < 0.2:
            arguments = chance.choice(('{"city": "Rome"}', "{", "[" * 3000, "null", value(chance, 3), *TEXTS))
            message["tool_calls"] = [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            ]
        if chance.random() < 0.2:
            message[chance.choice(("tool_call_id", "name", "reasoning_content", "refusal"))] = value(chance, 3)
        made.append(message)
    return made


def _chat(chance: Chance) -> dict[str, Any]:
    messages = _messages(chance) if chance.random() < 0.7 else [{"role": "user", "content": "Hello"}]
    return {
        "model": chance.choice(CHAT_MODELS),
        "messages": messages,
        "max_tokens": MOST_TOKENS,
        **_pick(chance, _CHAT),
    }


def _prompt(chance: Chance) -> Any:
    return chance.choice(("Hello", ["a", "b"], [5, 6, 7], [[5], [6, 7]], value(chance, 2), list(NUMBERS), *TEXTS))


def _completion(chance: Chance) -> dict[str, Any]:
    fields = _pick(chance, _COMPLETION)
    return {"model": chance.choice(CHAT_MODELS), "prompt": _prompt(chance), "max_tokens": MOST_TOKENS, **fields}


def _embeddings(chance: Chance) -> dict[str, Any]:
    asked = {"dimensions": 4, "encoding_format": "base64", "priority": 1, "add_special_tokens": False}
    fields = _pick(chance, {**asked, "truncate_prompt_tokens": 5})
    return {"model": chance.choice((*EMBEDDING_MODELS, *CHAT_MODELS)), "input": _prompt(chance), **fields}


def _items(chance: Chance) -> Any:
    if chance.random() < 0.5:
        return "Hello"
    kinds: list[Any] = [
        {"type": "message", "role": chance.choice(_ROLES), "content": _content(chance)},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": chance.choice(("{}", *TEXTS))},
        {"type": "function_call_output", "call_id": "c", "output": _content(chance)},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}], "summary": value(chance, 3)},
        {"type": "item_reference", "id": "x"},
        value(chance, 2),
    ]
    return [chance.choice(kinds) for _ in range(chance.randrange(4))]


def _responses(chance: Chance) -> dict[str, Any]:
    fields = _pick(chance, _RESPONSES)
    return {"model": chance.choice(CHAT_MODELS), "input": _items(chance), "max_output_tokens": MOST_TOKENS, **fields}


def _anthropic(chance: Chance) -> dict[str, Any]:
    fields = _pick(chance, _MESSAGES)
    blocks: list[Any] = [
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "t", "name": "f", "input": value(chance, 2)},
        {"type": "tool_result", "tool_use_id": "t", "content": _content(chance)},
        {"type": "thinking", "thinking": "t", "signature": "s"},
        value(chance, 2),
    ]
    content = chance.choice(("Hello", [chance.choice(blocks)], _content(chance)))
    messages = [{"role": chance.choice(("user", "assistant")), "content": content}]
    return {"model": chance.choice(CHAT_MODELS), "messages": messages, "max_tokens": MOST_TOKENS, **fields}


def _tokenize(chance: Chance) -> dict[str, Any]:
    made = _pick(chance, {"add_special_tokens": False, "return_token_strs": True, "tools": [_TOOL]})
    made |= {"prompt": _prompt(chance)} if chance.random() < 0.5 else {"messages": _messages(chance)}
    return {"model": chance.choice(CHAT_MODELS), **made}


def _detokenize(chance: Chance) -> dict[str, Any]:
    return {"model": chance.choice(CHAT_MODELS), "tokens": [chance.choice((1, 2, 300, *NUMBERS)) for _ in range(3)]}


def _score(chance: Chance) -> dict[str, Any]:
    parts: dict[str, Any] = {"content": [{"type": "text", "text": "a"}]}
    texts: tuple[Any, ...] = ("a", ["a", "b"], {"text": "a"}, parts, [], value(chance, 2), *TEXTS)
    first, second = chance.choice((("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")))
    fields = {"truncate_prompt_tokens": 5, "max_tokens_per_doc": 1, "use_activation": False, "priority": 1}
    asked = {first: chance.choice(texts), second: chance.choice(texts)}
    return {"model": chance.choice(("cross_encoder", "vectors", "plain")), **asked, **_pick(chance, fields)}


def _rerank(chance: Chance) -> dict[str, Any]:
    documents = ["a", {"text": "b"}, value(chance, 3)]
    fields = {"top_n": 1, "return_documents": False, "max_tokens_per_query": 1, "truncate_prompt_tokens": -1}
    return {"model": "cross_encoder", "query": _prompt(chance), "documents": documents, **_pick(chance, fields)}


def _adapter(chance: Chance) -> dict[str, Any]:
    return {"lora_name": chance.choice(TEXTS), "lora_path": chance.choice(TEXTS), "model": chance.choice(CHAT_MODELS)}


# Which of these stream.
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
BODIES: Mapping[str, Callable[[Chance], dict[str, Any]]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/embeddings": _embeddings,
    "/v1/responses": _responses,
    "/v1/responses/input_tokens": _responses,
    "/v1/messages": _anthropic,
    "/v1/messages/count_tokens": _anthropic,
    "/tokenize": _tokenize,
    "/detokenize": _detokenize,
    "/v1/score": _score,
    "/v1/rerank": _rerank,
    "/v1/load_lora_adapter": _adapter,
}


def _broken(chance: Chance, given: Any, depth: int = 0) -> Any:
    """The same with one thing in it changed, at any depth."""
    if depth < 6 and chance.random() < 0.8:
        if isinstance(given, dict) and given:
            name = chance.choice(list(given))
            if chance.random() < 0.15:
                return {key: each for key, each in given.items() if key != name}
            return {**given, name: _broken(chance, given[name], depth + 1)}
        if isinstance(given, list) and given:
            place = chance.randrange(len(given))
            return [*given[:place], _broken(chance, given[place], depth + 1), *given[place + 1 :]]
    return value(chance, 2)


def text_body(chance: Chance, path: str) -> bytes:
    """A body for a route, right or nearly so."""
    body: Any = BODIES[path](chance)
    if path in STREAMED and chance.random() < 0.4:
        body["stream"] = True
    if chance.random() < 0.5:
        body = _broken(chance, body)
    data = json.dumps(body).encode()
    return mutate(data, chance) if chance.random() < 0.15 else data


# Bombs: the path, the body, and the headers beside.


def _nested(depth: int) -> Any:
    made: Any = {"type": "string"}
    for _ in range(depth):
        made = {"type": "object", "properties": {"a": made}}
    return made


def _deep_json(depth: int) -> bytes:
    return b'{"model": "echo", "messages": ' + b"[" * depth + b"]" * depth + b"}"


def _asked(path: str, **fields: Any) -> tuple[str, bytes, bytes]:
    words = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    return path, json.dumps({"model": "tools", "max_tokens": MOST_TOKENS, **words, **fields}).encode(), b""


def bombs() -> Mapping[str, tuple[str, bytes, bytes]]:
    """Each is answered by less than 500 or by 503, soon, and costs nobody else an answer."""
    chat, completion, encoded = "/v1/chat/completions", "/v1/completions", b"content-encoding: gzip\r\n"
    tool = {**_TOOL, "function": {**_TOOL["function"], "parameters": _nested(400)}}
    many = [{**_TOOL, "function": {**_TOOL["function"], "name": f"f{place}"}} for place in range(5000)]
    return {
        "gzip": (chat, gzip.compress(b'{"a": "' + b" " * (1 << 27) + b'"}'), encoded),
        "gzip_twice": (chat, gzip.compress(gzip.compress(b" " * (1 << 26))), encoded),
        "deep": (chat, _deep_json(200_000), b""),
        "deep_within": (chat, _deep_json(900), b""),
        "logit_bias": _asked(completion, logit_bias={str(place): 1 for place in range(200_000)}),
        "stops": _asked(completion, stop=["x" * 100] * 50_000),
        "long_stop": _asked(completion, stop="ab" * 500_000),
        "stop_ids": _asked(completion, stop_token_ids=list(range(300_000))),
        "bad_words": _asked(completion, bad_words=["x"] * 100_000),
        "choices": _asked(completion, n=128, best_of=20),
        "prompts": _asked(completion, prompt=["a"] * 100_000),
        "prompts_and_choices": _asked(completion, prompt=["a"] * 1024, n=128),
        "ids": _asked(completion, prompt=[5] * 500_000),
        "unknown_ids": _asked(completion, prompt=[2**31 - 1] * 100_000),
        "long_word": _asked(completion, prompt=LONG_WORD),
        "long_chat": _asked(chat, messages=[{"role": "user", "content": LONG_WORD * 5}]),
        "many_messages": _asked(chat, messages=[{"role": "user", "content": "a"}] * 100_000),
        "many_parts": _asked(chat, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]),
        "template": _asked(
            chat, messages=[{"role": "user", "content": "{% for a in range(10**9) %}{{ a }}{% endfor %}"}]
        ),
        "switches": _asked(chat, chat_template_kwargs={f"k{place}": "v" * 100 for place in range(20_000)}),
        "deep_switch": _asked(chat, chat_template_kwargs={"style": _nested(400)}),
        "deep_tool": _asked(chat, tools=[tool], tool_choice="required"),
        "many_tools": _asked(chat, tools=many, tool_choice="required"),
        "deep_format": _asked(
            chat, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": _nested(400)}}
        ),
        "deep_arguments": _asked(
            chat,
            messages=[
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "[" * 500_000 + "]" * 500_000}}],
                }
            ],
        ),
        "half_a_letter": _asked(completion, prompt="\ud800"),
        "not_utf8": (completion, b'{"model": "echo", "prompt": "\xff\xfe"}', b""),
        "embeddings": ("/v1/embeddings", json.dumps({"model": "vectors", "input": ["a"] * 2048}).encode(), b""),
        "many_embeddings": ("/v1/embeddings", json.dumps({"model": "vectors", "input": ["a"] * 300_000}).encode(), b""),
        "scores": (
            "/v1/score",
            json.dumps({"model": "cross_encoder", "text_1": "a", "text_2": ["b"] * 2048}).encode(),
            b"",
        ),
        "long_scores": (
            "/v1/score",
            json.dumps({"model": "cross_encoder", "text_1": LONG_WORD, "text_2": [LONG_WORD] * 20}).encode(),
            b"",
        ),
        "responses": (
            "/v1/responses",
            json.dumps({"model": "tools", "input": [{"role": "user", "content": "a"}] * 50_000}).encode(),
            b"",
        ),
        "truncation": (
            "/v1/responses",
            json.dumps(
                {"model": "tools", "input": [{"role": "user", "content": "a b c"}] * 20_000, "truncation": "auto"}
            ).encode(),
            b"",
        ),
        "messages": (
            "/v1/messages",
            json.dumps(
                {"model": "tools", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}] * 50_000}
            ).encode(),
            b"",
        ),
        "detokenize": ("/detokenize", json.dumps({"model": "tools", "tokens": [5] * 1_000_000}).encode(), b""),
        "tokenize": (
            "/tokenize",
            json.dumps({"model": "tools", "prompt": LONG_WORD * 10, "return_token_strs": True}).encode(),
            b"",
        ),
    }
