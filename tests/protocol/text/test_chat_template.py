"""Chat templates: what well-known shapes of them give, what transformers gives, and templates that are wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from protocol.errors import InvalidArgument, Unsupported
from protocol.text import chat_template
from protocol.text.chat_template import MAX_TEMPLATE_CHARACTERS, ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": '1 < 2 & "é"?'},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": " Why? "},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"é": {}}}}}]
CALL: list[dict[str, Any]] = [
    {"role": "user", "content": "1 + 2?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": "<2>"}}}],
    },
    {"role": "tool", "content": "3"},
]

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA3 = """
{{- bos_token }}
{%- for message in messages %}
    {%- set head = '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n' %}
    {%- if message.tool_calls is defined %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- head + '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
        {%- continue %}
    {%- endif %}
    {{- head + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = """
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = message.content + '\\n\\n' %}
    {%- elif message.role == 'user' %}
        {{- '[INST] ' + ns.system + message.content + '[/INST]' }}
        {%- set ns.system = '' %}
    {%- elif message.role == 'assistant' %}
        {%- generation %}
        {{- ' ' + message.content + eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, got ' + message.role) }}
    {%- endif %}
{%- endfor %}
"""
GEMMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set first = messages[0].content + '\\n\\n' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set first = '' %}
    {%- set rest = messages %}
{%- endif %}
{%- for message in rest %}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) }}
{{ (first if loop.first else '') + message.content | trim }}<end_of_turn>
{% endfor %}
{% if add_generation_prompt %}
<start_of_turn>model
{% endif %}
"""
QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' ~ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
        {{- '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

EXPECTED: Mapping[str, tuple[str, list[dict[str, Any]], dict[str, Any], str]] = {
    "chatml": (
        CHATML,
        CHAT,
        {},
        '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 < 2 & "é"?<|im_end|>\n'
        "<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\n Why? <|im_end|>\n<|im_start|>assistant\n",
    ),
    "chatml without generation prompt": (
        CHATML,
        CHAT[:1],
        {"add_generation_prompt": False},
        "<|im_start|>system\nBe brief.<|im_end|>\n",
    ),
    "llama3": (
        LLAMA3,
        CHAT[2:],
        {},
        "<s><|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "llama3 with a call": (
        LLAMA3,
        CALL[1:],
        {"add_generation_prompt": False},
        "<s><|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "add", "parameters": {"a": 1, "b": "<2>"}}<|eot_id|>'
        "<|start_header_id|>tool<|end_header_id|>\n\n3<|eot_id|>",
    ),
    "mistral": (
        MISTRAL,
        CHAT,
        {},
        '<s>[INST] Be brief.\n\n1 < 2 & "é"?[/INST] Yes.</s>[INST]  Why? [/INST]',
    ),
    "gemma": (
        GEMMA,
        CHAT,
        {},
        '<s><start_of_turn>user\nBe brief.\n\n1 < 2 & "é"?<end_of_turn>\n<start_of_turn>model\nYes.<end_of_turn>\n'
        "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n",
    ),
    "qwen with tools": (
        QWEN,
        CALL,
        {"tools": TOOLS},
        "<|im_start|>system\n# Tools\n<tools>\n"
        '{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"é": {}}}}}'
        "\n</tools><|im_end|>\n<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
        '{"name": "add", "arguments": {"a": 1, "b": "<2>"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n",
    ),
    "qwen that is not to think": (
        QWEN,
        CALL[:1],
        {"enable_thinking": False},
        "<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_well_known_shapes(case: str) -> None:
    source, messages, arguments, expected = EXPECTED[case]
    assert ChatTemplate(source, SPECIAL).render(messages, **arguments) == expected


@pytest.mark.slow
@pytest.mark.parametrize("case", EXPECTED)
def test_as_transformers_has_it(case: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source, messages, arguments, expected = EXPECTED[case]
    arguments = {"add_generation_prompt": True, **arguments, **SPECIAL}
    rendered, _ = utils.render_jinja_template([messages], chat_template=source, **arguments)
    assert rendered == [expected]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_the_names_that_templates_read(name: str) -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}")
    assert template.render([{"role": "assistant", "content": "a", name: "hm"}]) == "hmhm"


def test_a_long_refusal_is_cut() -> None:
    with pytest.raises(InvalidArgument) as raised:
        ChatTemplate("{{ raise_exception('a' * 100000) }}").render([])
    assert len(raised.value.message) < 5000


def test_another_template_with_tools() -> None:
    template = ChatTemplate("without", with_tools="with {{ tools | length }}")
    assert template.render([]) == "without"
    assert template.render([], TOOLS) == "with 1"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("{'é': '<&>'} | tojson", '{"é": "<&>"}'),
        ("{'b': 1, 'a': [1]} | tojson(indent=2)", '{\n  "b": 1,\n  "a": [\n    1\n  ]\n}'),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=True, separators=(',', ':'))", '{"a":2,"b":1}'),
        ("'é' | tojson(ensure_ascii=True)", '"\\u00e9"'),
        ("strftime_now('%Y') | length", "4"),
        ("3 * 4 ** 2", "48"),
        ("'ab' * 3", "ababab"),
        ("documents[0].title", "T"),
    ],
)
def test_filters_and_functions(expression: str, expected: str) -> None:
    assert ChatTemplate(f"{{{{ {expression} }}}}").render([], documents=[{"title": "T"}]) == expected


def test_the_final_message_is_continued() -> None:
    messages = [*CHAT[:2], {"role": "assistant", "content": "Yes, "}]
    prompt = ChatTemplate(CHATML).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert prompt.endswith("<|im_start|>assistant\nYes, ")
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "Yes"}]}]
    source = "{{ messages[0].content[0].text }}</s>"
    assert ChatTemplate(source).render(parts, add_generation_prompt=False, continue_final_message=True) == "Yes"


@pytest.mark.parametrize(
    ("source", "messages", "arguments", "text"),
    [
        (CHATML, CHAT, {}, "exclude each other"),
        (CHATML, [], {"add_generation_prompt": False}, "expected a last message with text, got none"),
        (CHATML, CALL[:2], {"add_generation_prompt": False}, "expected a last message with text, got none"),
        ("fixed", CHAT, {"add_generation_prompt": False}, "does not show the text of the last message"),
    ],
)
def test_final_messages_that_cannot_be_continued(
    source: str, messages: list[dict[str, Any]], arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        ChatTemplate(source).render(messages, continue_final_message=True, **arguments)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ raise_exception('No system role!') }}", "chat template: No system role!"),
        ("{{ messages[7].role }}", "chat template: list object has no element 7"),
        ("{{ 1 / 0 }}", "chat template: ZeroDivisionError: division by zero"),
        ("{{ messages | tojson(indent='x', nonsense=1) }}", "unexpected keyword argument 'nonsense'"),
        ("{% for i in range(10000000) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 100000000 }}", "expected a repetition of at most"),
        ("{{ 100000000 * ['a'] }}", "expected a repetition of at most"),
        ("{{ 9 ** 99999 }}", "expected a number of at most 4096 bits"),
        ("{{ 2.5 ** 99999 }}", "OverflowError"),
        (
            "{{ 9 ** 999 * 9 ** 999 }}",
            "bits",
        ),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__ }}{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "takes no name that begins with an underscore"),
        ("{{ namespace(__class__=1) }}", "takes no name that begins with an underscore"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ],
)
def test_templates_that_fail(source: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        ChatTemplate(source).render([])
    assert text in raised.value.message


@pytest.mark.parametrize("source", ["{% for %}", "{{ a", "{% nonsense %}", "{% generation %}", "{{ a | nonsense }}"])
def test_templates_that_do_not_compile(source: str) -> None:
    with pytest.raises(InvalidArgument, match=r"chat template: line 1: "):
        ChatTemplate(source)


def test_a_template_that_is_too_long() -> None:
    with pytest.raises(InvalidArgument, match="at most 1048576 characters, got 1048577"):
        ChatTemplate("a" * (MAX_TEMPLATE_CHARACTERS + 1))


def test_a_prompt_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_PROMPT_CHARACTERS", 100)
    with pytest.raises(InvalidArgument, match="the prompt has more than 100 characters"):
        ChatTemplate("{% for i in range(1000) %}{% for j in range(1000) %}a{% endfor %}{% endfor %}").render([])


def test_renders_leave_no_trace() -> None:
    template = ChatTemplate("{{ messages | tojson }}{% set x = 1 %}{{ y is defined }}", {"y": "1"})
    messages = [{"role": "user", "content": "a"}]
    before = json.dumps(messages)
    assert template.render(messages) == template.render(messages)
    assert json.dumps(messages) == before


def test_without_jinja(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "protocol.text.jinja_environment", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(Unsupported, match=r"needs the package jinja2, .*: pip install 'trioton\[llm\]'"):
        ChatTemplate("")
