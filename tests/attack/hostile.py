"""Hostile values for each field of `/v1` that takes a schema, a pattern, or whatever JSON a client likes.

Values are JSON as text: some nest deeper than Python can write, others are no JSON at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETION, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
TOKENIZE, SCORE, RERANK, EMBEDDINGS = "/tokenize", "/v1/score", "/v1/rerank", "/v1/embeddings"

# Where the hostile value goes.
_HERE = "\x01"
_MANY = 100_000


def _nested(depth: int, begin: str = '{"a":', end: str = "}") -> str:
    return begin * depth + "1" + end * depth


def _schema_of(depth: int) -> str:
    return '{"type":"object","properties":{"a":' * depth + '{"type":"null"}' + "}}" * depth


def _laughs(depth: int) -> Any:
    """Each definition is two of the next one."""
    ends = {f"d{depth}": {"type": "string"}}
    defs = {f"d{place}": {"allOf": [{"$ref": f"#/$defs/d{place + 1}"}] * 2} for place in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, **ends}}


# Any JSON, and what is nearly JSON.
ANY: Mapping[str, str] = {
    "deep_objects": _nested(10_000),
    "deep_lists": _nested(10_000, "[", "]"),
    **{f"deep_{depth}": _nested(depth) for depth in (300, 900, 960, 985)},
    "deep_in_lists": _nested(480, '[{"a":', "}]"),
    "long_integer": "9" * 5_000,
    "longer_integer": "-" + "9" * 200_000,
    "large_float": "1e999999",
    "small_float": "1e-999999",
    "long_float": "0." + "1" * 200_000,
    "nan": "NaN",
    "infinity": "-Infinity",
    "keys": json.dumps({f"k{place}": place for place in range(_MANY)}),
    "same_keys": "{" + ",".join(['"a":{}'] * _MANY) + "}",
    "empty_lists": "[" + ",".join(["[]"] * 60_000) + "]",
    "empty_texts": json.dumps([""] * 60_000),
    "long_text": json.dumps("x" * 200_000),
    "long_key": json.dumps({"x" * 200_000: 1}),
    "half_a_letter": '"\\ud800"',
    "half_a_letter_in_a_key": '{"\\ud800":"\\udfff"}',
    "zero_byte": '{"\\u0000":"\\u0000"}',
    "empty_key": '{"":{"":[]}}',
    "null": '{"a":null}',
    "true": "true",
    "nothing": "",
}
SCHEMAS: Mapping[str, str] = {
    **{f"schema_{depth}": _schema_of(depth) for depth in (100, 470)},
    **{
        name: json.dumps(schema)
        for name, schema in {
            "ref_to_itself": {"$ref": "#"},
            "refs_in_a_circle": {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "recursive": {
                "type": "object",
                "properties": {"a": {"$ref": "#"}, "b": {"type": "array", "items": {"$ref": "#"}}},
                "required": ["a"],
            },
            "laughs": _laughs(40),
            "ref_to_nowhere": {"$ref": "#/$defs/none"},
            "ref_to_a_file": {"$ref": "file:///etc/passwd"},
            "ref_to_a_host": {"$ref": "http://127.0.0.1:1/schema.json"},
            "ref_of_no_text": {"$ref": 3},
            "many_properties": {
                "type": "object",
                "properties": {f"k{place}": {"type": "string"} for place in range(2_000)},
            },
            "many_required": {"type": "object", "required": [f"k{place}" for place in range(20_000)]},
            "enumeration": {"enum": [f"v{place}" for place in range(20_000)]},
            "long_array": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
            "long_string": {"type": "string", "minLength": 10**9, "maxLength": 10**12},
            "large_bounds": {"type": "integer", "minimum": -(10**30), "maximum": 10**300},
            "pattern": {"type": "string", "pattern": "(a+)+$"},
            "pattern_of_patterns": {"type": "object", "patternProperties": {"(x*)*": {"pattern": "((a{9}){9}){9}"}}},
            "never": {"not": {}},
            "wrong_types": {"type": ["object", 3], "properties": [], "required": {}, "items": "x"},
            "alternatives": {"anyOf": [{"oneOf": [{"type": "string"}] * 50}] * 50},
        }.items()
    },
}
PATTERNS: Mapping[str, str] = {
    name: json.dumps(pattern)
    for name, pattern in {
        "nested_stars": "((((((a*)*)*)*)*)*)*b",
        "catastrophic": "(a+)+$",
        "alternation": "(a|a|a|a)*b",
        "counted": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}",
        "large_count": "a{1,1000000000}",
        "parentheses": "(" * 10_000 + ")" * 10_000,
        "open": "(((",
        "class": "[z-a]",
        "lookahead": "(?=a)(?!b)(?<=c)\\1",
        "unicode": "\\p{L}\\X\\u{110000}[\U0001f600-\U0001f64f]{1000}",
        "many_ways": "|".join(f"w{place}" for place in range(10_000)),
        "nothing": "",
        "zero": "\0",
    }.items()
}
GRAMMARS: Mapping[str, str] = {
    name: json.dumps(grammar)
    for name, grammar in {
        "left_recursion": 'root ::= root "a" | "b"',
        "itself": "root ::= root",
        "no_root": 'a ::= "b"',
        "many_rules": "root ::= r0\n" + "\n".join(f'r{place} ::= r{place + 1} "a"' for place in range(3_000)),
        "deep": "root ::= " + "(" * 5_000 + '"a"' + ")" * 5_000,
        "counted": 'root ::= (("a"{1,999}){1,999}){1,999}',
        "broken": "root ::= [",
        "nothing": "",
    }.items()
}
_CHOICES: Mapping[str, str] = {
    "many": json.dumps([f"c{place}" for place in range(20_000)]),
    "long": json.dumps(["x" * 100_000]),
    "none": "[]",
    "empty": '["",""]',
}

_SAY: Any = [{"role": "user", "content": "a"}]
_FUNCTION: Any = {"name": "f", "parameters": _HERE}
_TOOLS: Any = [{"type": "function", "function": {"name": "f"}}]
# Fields that take any JSON, by route; a value may be deep within.
_ANY_FIELDS: Mapping[str, Mapping[str, Any]] = {
    CHAT: {
        **dict.fromkeys(
            (
                *("logit_bias", "metadata", "chat_template_kwargs", "documents", "prediction", "prompt_cache_options"),
                *("vllm_xargs", "kv_transfer_params", "mm_processor_kwargs", "media_io_kwargs", "audio", "functions"),
                *("function_call", "modalities", "web_search_options", "structured_outputs", "response_format"),
                *("tools", "tool_choice", "messages", "stop", "stop_token_ids", "bad_words", "allowed_token_ids"),
                *("stream_options", "reasoning_effort", "unknown", "guided_json", "seed", "max_tokens", "logprobs"),
            ),
            _HERE,
        ),
        "switch": {"chat_template_kwargs": {"style": _HERE}},
        "format": {"response_format": {"type": _HERE}},
        "choice": {"tool_choice": {"type": "function", "function": _HERE}, "tools": _TOOLS},
        "choice_name": {"tool_choice": {"type": "function", "function": {"name": _HERE}}, "tools": _TOOLS},
        "tool": {"tools": [{"type": "function", "function": _HERE}]},
        "tool_name": {"tools": [{"type": "function", "function": {"name": _HERE}}]},
        "tool_description": {"tools": [{"type": "function", "function": {"name": "f", "description": _HERE}}]},
        "structure": {"structured_outputs": {"unknown": _HERE}},
        "tag": {"structured_outputs": {"structural_tag": _HERE}},
        "role": {"messages": [{"role": _HERE, "content": "a"}]},
        "content": {"messages": [{"role": "user", "content": _HERE}]},
        "part": {"messages": [{"role": "user", "content": [_HERE]}]},
        "part_kind": {"messages": [{"role": "user", "content": [{"type": _HERE}]}]},
        "part_text": {"messages": [{"role": "user", "content": [{"type": "text", "text": _HERE}]}]},
        "picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": _HERE}]}]},
        "calls": {"messages": [{"role": "assistant", "tool_calls": _HERE}]},
        "arguments": {
            "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": _HERE}}]}]
        },
        "in_message": {"messages": [{"role": "user", "content": "a", "name": _HERE}]},
        "document": {"documents": [{"text": _HERE}]},
    },
    COMPLETION: dict.fromkeys(("prompt", "logit_bias", "structured_outputs", "suffix", "prompt_embeds", "user"), _HERE),
    RESPONSES: {
        **dict.fromkeys(
            (
                *("input", "metadata", "tools", "tool_choice", "include", "reasoning", "text", "chat_template_kwargs"),
                *("prompt", "conversation", "context_management", "moderation", "image", "access_programs"),
                *("background_options", "prompt_cache_options", "truncation", "previous_response_id", "unknown"),
            ),
            _HERE,
        ),
        "format": {"text": {"format": _HERE}},
        "format_kind": {"text": {"format": {"type": _HERE}}},
        "format_name": {"text": {"format": {"type": "json_schema", "name": _HERE, "schema": {}}}},
        "tool": {"tools": [_HERE]},
        "tool_kind": {"tools": [{"type": _HERE}]},
        "tool_name": {"tools": [{"type": "function", "name": _HERE}]},
        "allowed": {"tool_choice": {"type": "allowed_tools", "tools": _HERE}},
        "allowed_name": {"tool_choice": {"type": "allowed_tools", "tools": [{"name": _HERE}]}},
        "item": {"input": [_HERE]},
        "item_kind": {"input": [{"type": _HERE}]},
        "content": {"input": [{"role": "user", "content": _HERE}]},
        "arguments": {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": _HERE}]},
        "output": {"input": [{"type": "function_call_output", "call_id": "c", "output": _HERE}]},
        "summary": {"input": [{"type": "reasoning", "summary": _HERE, "content": _HERE}]},
        "extra": {"input": [{"role": "user", "content": "a", "unknown": _HERE}]},
    },
    MESSAGES: {
        **dict.fromkeys(
            (
                *("metadata", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control"),
                *(
                    "context_management",
                    "mcp_servers",
                    "container",
                    "diagnostics",
                    "compaction",
                    "fallbacks",
                    "messages",
                ),
                *("stop_sequences", "speed", "unknown", "output_format"),
            ),
            _HERE,
        ),
        "format": {"output_config": {"format": _HERE}},
        "format_kind": {"output_config": {"format": {"type": _HERE}}},
        "tool_name": {"tools": [{"name": _HERE, "input_schema": {}}]},
        "examples": {"tools": [{"name": "f", "input_schema": {}, "input_examples": [_HERE]}]},
        "cache": {"tools": [{"name": "f", "input_schema": {}, "cache_control": _HERE}]},
        "content": {"messages": [{"role": "user", "content": _HERE}]},
        "block": {"messages": [{"role": "user", "content": [_HERE]}]},
        "block_kind": {"messages": [{"role": "user", "content": [{"type": _HERE}]}]},
        "use": {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": _HERE}]}
            ]
        },
        "result": {
            "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": _HERE}]}]
        },
        "source": {"messages": [{"role": "user", "content": [{"type": "image", "source": _HERE}]}]},
    },
    TOKENIZE: {
        **dict.fromkeys(
            ("messages", "tools", "documents", "chat_template_kwargs", "mm_processor_kwargs", "prompt"), _HERE
        ),
        "content": {"messages": [{"role": "user", "content": _HERE}]},
    },
    SCORE: dict.fromkeys(("text_1", "text_2", "chat_template_kwargs", "padding", "mm_processor_kwargs"), _HERE),
    RERANK: dict.fromkeys(("query", "documents", "rank_fields", "chat_template_kwargs"), _HERE),
    EMBEDDINGS: dict.fromkeys(("input", "messages", "dimensions", "encoding_format", "normalize"), _HERE),
}
# Fields that take what forms the answer, with the values that are for them alone.
_FORMS: Mapping[str, Mapping[str, tuple[Any, Mapping[str, str]]]] = {
    CHAT: {
        "guided_json": (_HERE, SCHEMAS),
        "guided_regex": (_HERE, PATTERNS),
        "guided_grammar": (_HERE, GRAMMARS),
        "guided_choice": (_HERE, _CHOICES),
        "json": ({"structured_outputs": {"json": _HERE}}, {**SCHEMAS, **ANY}),
        "regex": ({"structured_outputs": {"regex": _HERE}}, {**PATTERNS, **ANY}),
        "grammar": ({"structured_outputs": {"grammar": _HERE}}, {**GRAMMARS, **ANY}),
        "choice": ({"structured_outputs": {"choice": _HERE}}, {**_CHOICES, **ANY}),
        "schema": ({"response_format": {"type": "json_schema", "json_schema": {"schema": _HERE}}}, {**SCHEMAS, **ANY}),
        "tool": (
            {"tools": [{"type": "function", "function": _FUNCTION}], "tool_choice": "required"},
            {**SCHEMAS, **ANY},
        ),
        "shown_tool": ({"tools": [{"type": "function", "function": _FUNCTION}]}, {**SCHEMAS, **ANY}),
    },
    COMPLETION: {"guided_json": (_HERE, SCHEMAS), "guided_regex": (_HERE, PATTERNS)},
    RESPONSES: {
        "schema": ({"text": {"format": {"type": "json_schema", "name": "s", "schema": _HERE}}}, {**SCHEMAS, **ANY}),
        "tool": (
            {"tools": [{"type": "function", "name": "f", "parameters": _HERE}], "tool_choice": "required"},
            {**SCHEMAS, **ANY},
        ),
    },
    MESSAGES: {
        "schema": ({"output_config": {"format": {"type": "json_schema", "schema": _HERE}}}, {**SCHEMAS, **ANY}),
        "tool": ({"tools": [{"name": "f", "input_schema": _HERE}], "tool_choice": {"type": "any"}}, {**SCHEMAS, **ANY}),
    },
}
_BASES: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"messages": _SAY, "max_tokens": 4},
    COMPLETION: {"prompt": "a", "max_tokens": 4},
    RESPONSES: {"input": "a", "max_output_tokens": 4},
    MESSAGES: {"messages": _SAY, "max_tokens": 4},
    TOKENIZE: {},
    SCORE: {"text_1": "a", "text_2": "b"},
    RERANK: {"query": "a", "documents": ["b"]},
    EMBEDDINGS: {"input": "a"},
}
_SCORERS = {SCORE: "cross_encoder", RERANK: "cross_encoder", EMBEDDINGS: "encoder"}


@dataclass(frozen=True, slots=True)
class Hostile:
    """A value in a field of a route's body."""

    path: str
    field: str
    fields: Any
    value_name: str
    value: str

    @property
    def name(self) -> str:
        return f"{self.path} {self.field} {self.value_name}"

    def body(self, model: str = "tools") -> bytes:
        fields = {self.field: self.fields} if self.fields == _HERE else self.fields
        text = json.dumps({"model": _SCORERS.get(self.path, model), **_BASES[self.path], **fields})
        return text.replace(json.dumps(_HERE), self.value).encode()


def hostile_bodies() -> Iterator[Hostile]:
    """Each value in each field."""
    for path, named in _ANY_FIELDS.items():
        for field, fields in named.items():
            yield from (Hostile(path, field, fields, name, value) for name, value in ANY.items())
    yield from hostile_forms()


def hostile_forms() -> Iterator[Hostile]:
    """Those alone that say what form an answer has, which an engine has to read."""
    for path, forms in _FORMS.items():
        for field, (fields, values) in forms.items():
            yield from (Hostile(path, field, fields, name, value) for name, value in values.items())
