"""Output parsers: each format whole, cut anywhere, cut off, and text that only looks like it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument
from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from protocol.text.output_parser import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    OutputParser,
    is_reasoning_open,
    marker_tokens,
    output_parser,
)
from protocol.text.parsers import call_object, deepseek, harmony, machine, mistral, qwen3_coder, writer
from protocol.text.parsers.call_object import CallObject
from protocol.text.parsers.machine import MAX_OPENING
from protocol.text.parsers.writer import MAX_BLANKS, DeltaWriter
from tests.protocol.text.cutting import CUTS, cut, parsed

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "number": {"type": "integer"},
                    "list": {"type": "array"},
                    "flag": {"type": "boolean"},
                    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "either": {"type": ["integer", "null"]},
                },
            },
        },
    }
]


def parser(tools: str = "", reasoning: str = "", *, in_reasoning: bool | None = None) -> OutputParser:
    """One whose ids are id0, id1, …"""
    numbers = itertools.count()
    return output_parser(
        tools, reasoning, in_reasoning=in_reasoning, tools=TOOLS, id_maker=lambda: f"id{next(numbers)}"
    )


def calls(*named: tuple[str, str]) -> list[Delta]:
    deltas: list[Delta] = []
    for index, (name, arguments) in enumerate(named):
        deltas.append(ToolCallStart(index, f"id{index}", name))
        deltas += [ToolCallArguments(index, arguments)] if arguments else []
    return deltas


C, R = ContentDelta, ReasoningDelta
BAR = "\uff5c"
BEGIN, END, SEP = f"<{BAR}tool▁call▁begin{BAR}>", f"<{BAR}tool▁call▁end{BAR}>", f"<{BAR}tool▁sep{BAR}>"
ALL_BEGIN, ALL_END = f"<{BAR}tool▁calls▁begin{BAR}>", f"<{BAR}tool▁calls▁end{BAR}>"
XML = "<tool_call>\n<function=f>\n{}</function>\n</tool_call>"

# By parser: texts, and what they are.
CASES: Mapping[str, Sequence[tuple[str, list[Delta]]]] = {
    "hermes": [
        ("", []),
        ("plain < text", [C("plain < text")]),
        (" \n", [C(" \n")]),
        ('<tool_call>{"name": "f", "arguments": {"a": "}"}}</tool_call>', calls(("f", '{"a": "}"}'))),
        (
            'Look:\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n'
            '{"arguments": [1, "\\""], "id": {"name": 3}, "name": "g"}\n</tool_call>\n',
            [C("Look:\n"), *calls(("f", "{}"), ("g", '[1, "\\""]'))],
        ),
        ('<tool_call>{"name": "f"}</tool_call> done', [*calls(("f", "{}")), C(" done")]),
        ('<tool_call>{"name": "f", "parameters": null}', calls(("f", "null"))),
        ('<tool_call>{"name": "\\u0066", "arguments": "{\\"a\\": 1}"}', calls(("f", '"{\\"a\\": 1}"'))),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, "arguments": 2}', calls(("f", '{"a": 1}'))),
        # The text ends in the call.
        ('<tool_call>{"name": "f", "arguments": {"a": "x', calls(("f", '{"a": "x'))),
        ('<tool_call>{"name": "f", "arg', [C('<tool_call>{"name": "f", "arg')]),
        ("a <tool_c", [C("a <tool_c")]),
        # No calls.
        ("<tool_call>no</tool_call>", [C("<tool_call>no</tool_call>")]),
        ('<tool_call>{"arguments": {}}</tool_call>', [C('<tool_call>{"arguments": {}}</tool_call>')]),
        ('<tool_call>{"name": 3, "arguments": {}}', [C('<tool_call>{"name": 3, "arguments": {}}')]),
        ('<tool_call>{"name": "", "arguments": {}}', [C('<tool_call>{"name": "", "arguments": {}}')]),
        ('<tool_call>{"name": "\\x", "arguments": {}}', [C('<tool_call>{"name": "\\x", "arguments": {}}')]),
        (
            '<tool_call>{bad <tool_call>{"name": "f", "arguments": {}}</tool_call>',
            [C("<tool_call>{bad "), *calls(("f", "{}"))],
        ),
        # A call that does not end, or not well.
        ('<tool_call>{"name": "f", "arguments": {}} and so', [*calls(("f", "{}")), C(" and so")]),
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>x<tool_call>{"name": "g", "arguments": {}}',
            [*calls(("f", '{"a": 1')), C("x"), *calls(("f", ""), ("g", "{}"))[1:]],
        ),
        ('<tool_call>{"name": "f", "arguments": {} "b"}</tool_call>x', [*calls(("f", "{}")), C("x")]),
    ],
    "llama3": [
        ('{"name": "f", "parameters": {"a": 1}}', calls(("f", '{"a": 1}'))),
        ('\n\n{"type": "function", "name": "f", "parameters": {}}\n', calls(("f", "{}"))),
        (
            '<|python_tag|>{"name": "f", "arguments": {}}; {"name": "g", "parameters": {}}',
            calls(("f", "{}"), ("g", "{}")),
        ),
        ('{"name": "f", "parameters": {}} ; <|python_tag|>{"name": "g"};', calls(("f", "{}"), ("g", "{}"))),
        ('a <|python_tag|>{"name": "f", "arguments": {}} b', [C("a "), *calls(("f", "{}")), C(" b")]),
        ('{"name": "f", "parameters": {}}; no', [*calls(("f", "{}")), C("; no")]),
        ('{"name": "Bob", "age": 3}', [C('{"name": "Bob", "age": 3}')]),
        ('{"name": "Bob", "parameters": 3}', [C('{"name": "Bob", "parameters": 3}')]),
        (' {"name": "Bob"}', [C(' {"name": "Bob"}')]),
        ("{}", [C("{}")]),
        ('text {"name": "f", "parameters": {}}', [C('text {"name": "f", "parameters": {}}')]),
        ("<|python_tag|>print(1)", [C("<|python_tag|>print(1)")]),
        ('{"name": "f", "parameters": {"a"', calls(("f", '{"a"'))),
        ('{"name": "f"', [C('{"name": "f"')]),
    ],
    "mistral": [
        ('[TOOL_CALLS][{"name": "f", "arguments": {"a": [1]}}]', calls(("f", '{"a": [1]}'))),
        (
            'a [TOOL_CALLS] [{"name": "f", "arguments": {}} , {"arguments": {}, "name": "g"}] b',
            [C("a "), *calls(("f", "{}"), ("g", "{}")), C(" b")],
        ),
        ('[TOOL_CALLS]f[ARGS]{"a": "[ARGS]"}[TOOL_CALLS]g[ARGS]{}', calls(("f", '{"a": "[ARGS]"}'), ("g", "{}"))),
        ('[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g {}', calls(("f", '{"a": 1}'), ("g", "{}"))),
        (
            "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}",
            [ToolCallStart(0, "abcdefghi", "f"), ToolCallArguments(0, "{}")],
        ),
        ('[{"name": "f", "arguments": {}}]', calls(("f", "{}"))),
        ("[1, 2]", [C("[1, 2]")]),
        ('[{"name": "Bob"}]', [C('[{"name": "Bob"}]')]),
        ("[TOOL_CALLS] \n", [C("[TOOL_CALLS] \n")]),
        ("[TOOL_CALLS] and so", [C("[TOOL_CALLS] and so")]),
        ("[TOOL_CALLS]f[ARGS] no", [C("[TOOL_CALLS]f[ARGS] no")]),
        ("[TOOL_CALLS]{}", [C("[TOOL_CALLS]{}")]),
        ("[TOOL_CALLS]f[CALL_ID][ARGS]{}", [C("[TOOL_CALLS]f[CALL_ID][ARGS]{}")]),
        ("[TOOL_CALLS]" + "f" * 300, [C("[TOOL_CALLS]" + "f" * 300)]),
        ('[TOOL_CALLS][{"name": "f", "arguments": {}}, no]', [*calls(("f", "{}")), C(", no]")]),
        ('[TOOL_CALLS]f[ARGS]{"a', calls(("f", '{"a'))),
    ],
    "deepseek": [
        (
            f'a{ALL_BEGIN}{BEGIN}function{SEP}f\n```json\n{{"a": "```"}}\n```{END}\n{BEGIN}function{SEP}g\n'
            f"```json\n{{}}\n```{END}{ALL_END}b",
            [C("a"), *calls(("f", '{"a": "```"}'), ("g", "{}")), C("b")],
        ),
        (f"{ALL_BEGIN}{BEGIN}f{SEP}{{}}{END}{BEGIN}g{SEP}{{}}{END}{ALL_END}", calls(("f", "{}"), ("g", "{}"))),
        (f"{BEGIN}function{SEP}f\n{{}}{BEGIN}g{SEP}{{}}{ALL_END} b", [*calls(("f", "{}"), ("g", "{}")), C(" b")]),
        (f"{ALL_BEGIN} no", [C(f"{ALL_BEGIN} no")]),
        (f"{BEGIN}f{SEP} no", [C(f"{BEGIN}f{SEP} no")]),
        (f"{BEGIN}{SEP}{{}}", [C(f"{BEGIN}{SEP}{{}}")]),
        (f"{BEGIN}function{SEP}f", [C(f"{BEGIN}function{SEP}f")]),
        (f'{BEGIN}f{SEP}{{"a', calls(("f", '{"a'))),
    ],
    "qwen3_coder": [
        (
            "a\n"
            + XML.format(
                '<parameter=text>\nx "y"\n\n</parameter>\n<parameter=number>\n3\n</parameter>\n'
                "<parameter=list>[1, 2]</parameter><parameter=flag>\nTrue\n</parameter>\n"
            ),
            [C("a\n"), *calls(("f", '{"text": "x \\"y\\"\\n", "number": 3, "list": [1, 2], "flag": true}'))],
        ),
        (XML.format("") + "\n" + XML.format("") + " b", [*calls(("f", "{}"), ("f", "{}")), C(" b")]),
        (XML.format("<parameter=number>\nno\n</parameter>"), calls(("f", '{"number": "no"}'))),
        (XML.format("<parameter=list>\nNaN\n</parameter>"), calls(("f", '{"list": "NaN"}'))),
        (XML.format("<parameter=other>\n3\n</parameter>"), calls(("f", '{"other": "3"}'))),
        (
            XML.format("<parameter=maybe>\nnull\n</parameter><parameter=maybe>\n3\n</parameter><parameter=either>4"),
            calls(("f", '{"maybe": null, "maybe": "3", "either": 4}')),
        ),
        (
            "<function=f>\n<parameter=text>a<b\n<parameter=number>3</function>",
            calls(("f", '{"text": "a<b", "number": 3}')),
        ),
        ("<function=f><parameter=text>é\n\n模", calls(("f", '{"text": "é\\n\\n模'))),
        ("<function=f><parameter=number>12", calls(("f", '{"number": 12'))),
        ("<function=f>", calls(("f", "{"))),
        ("<tool_call>\n{}", [C("<tool_call>\n{}")]),
        ("<function=", [C("<function=")]),
        ("<function=>", [C("<function=>")]),
    ],
    "harmony": [
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
            [R("hm"), C("yes")],
        ),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
            '<|constrain|>json<|message|>{"a": 1}<|call|><|start|>assistant to=functions.g<|channel|>commentary'
            "<|message|><|call|>",
            [C("I look."), *calls(("f", '{"a": 1}'), ("g", "{}"))],
        ),
        ("<|channel|>analysis to=python code<|message|>1+1<|call|>", [R("1+1")]),
        ("<|channel|>analysis<|message|>hm<|channel|>final<|message|>yes", [R("hm"), C("yes")]),
        ("no markers", [C("no markers")]),
        ("<|message|>text<|end|> ", [C("text ")]),
        ("<|channel|>final<|message|>yes<|end|><|start|>assist", [C("yes")]),
        ("<|channel|>" + "a" * 1100, [C("<|channel|>" + "a" * 1100)]),
        ('<|channel|>commentary to=functions.f<|message|>{"a', calls(("f", '{"a'))),
        ("<|channel|>commentary to=functions.f<|message|>", calls(("f", "{}"))),
    ],
}
CASES = {**CASES, "qwen": CASES["hermes"]}
ALL = [(name, *case) for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("name", "text", "expected"), ALL)
def test_formats(name: str, text: str, expected: list[Delta]) -> None:
    assert parsed(parser(name), [text]) == expected
    assert parsed(parser(name), list(text)) == expected


FRAGMENTS: Mapping[str, Sequence[str]] = {
    name: [
        *itertools.chain.from_iterable(re.split(r'(<[^>]*>|\[[A-Z_]*\]|[{}\[\],:;"\n])', text) for _, text, _ in cases),
        *(text for _, text, _ in cases),
        " ",
        "<",
        "\\",
    ]
    for name, cases in ((name, [case for case in ALL if case[0] == name]) for name in CASES)
}
REASONING = ["<think>", "</think>", "[THINK]", "[/THINK]", "</thi", "[", "a", "\n"]


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_any_cutting_gives_the_same(name: str, data: st.DataObject) -> None:
    fragments = st.lists(st.sampled_from(sorted({*FRAGMENTS[name], *REASONING})), max_size=12)
    text = "".join(data.draw(fragments))
    reasoning = "harmony" if name == "harmony" else data.draw(st.sampled_from(["", "think", "mistral", "deepseek_r1"]))
    whole = parsed(parser(name, reasoning), [text])
    assert parsed(parser(name, reasoning), cut(text, data.draw(CUTS))) == whole
    assert parsed(parser(name, reasoning), list(text)) == whole


LONG = [" " * 5, "a" * 5, "a" * 15, "\n" * 4, "1" * 8]


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_any_cutting_gives_the_same_where_limits_are_reached(name: str, data: st.DataObject) -> None:
    fragments = st.sampled_from(sorted({*FRAGMENTS[name], *REASONING})) | st.sampled_from(LONG)
    text = "".join(data.draw(st.lists(fragments, max_size=12)))
    cuts = data.draw(CUTS)
    with pytest.MonkeyPatch.context() as patch:
        for module, limit, value in (
            (machine, "MAX_OPENING", 25),
            (writer, "MAX_BLANKS", 6),
            (call_object, "MAX_HELD", 40),
            (qwen3_coder, "MAX_HELD", 10),
            (qwen3_coder, "_LONGEST_NAME", 12),
            (deepseek, "_LONGEST_NAME", 12),
            (mistral, "_LONGEST_NAME", 12),
            (harmony, "_LONGEST_HEADER", 40),
        ):
            patch.setattr(module, limit, value)
        whole = parsed(parser(name), [text])
        assert parsed(parser(name), cut(text, cuts)) == whole
        assert parsed(parser(name), list(text)) == whole


@pytest.mark.parametrize("name", TOOL_PARSERS)
@given(text=st.text("ab \n{}[]:,\"'\\é1", max_size=30), cuts=CUTS)
def test_text_without_calls_is_content(name: str, text: str, cuts: list[int]) -> None:
    deltas = parsed(parser(name), cut(text, cuts))
    assert deltas == ([C(text)] if text else [])


ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)


def _object(key: str) -> Callable[[str, str], str]:
    return lambda name, arguments: f'{{"name": "{name}", "{key}": {arguments}}}'


# How each format writes calls: before all, each, between, after all.
WRITERS: Mapping[str, tuple[str, Callable[[str, str], str], str, str]] = {
    "hermes": ("<tool_call>\n", _object("arguments"), "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    "llama3": ("<|python_tag|>", _object("parameters"), "; ", ""),
    "mistral": ("[TOOL_CALLS]", lambda name, arguments: f"{name}[ARGS]{arguments}", "[TOOL_CALLS]", ""),
    "deepseek": (
        ALL_BEGIN,
        lambda name, arguments: f"{BEGIN}function{SEP}{name}\n```json\n{arguments}\n```{END}",
        "\n",
        ALL_END,
    ),
    "harmony": (
        "",
        lambda name, arguments: f"<|channel|>commentary to=functions.{name} json<|message|>{arguments}<|call|>",
        "<|start|>assistant",
        "",
    ),
}


@pytest.mark.parametrize("name", WRITERS)
@given(
    named=st.lists(st.tuples(st.text("fg_-1", min_size=1, max_size=5), ARGUMENTS), min_size=1, max_size=3),
    before=st.text("ab <", max_size=5).filter(lambda text: text.strip()),
    cuts=CUTS,
    indent=st.none() | st.just(1),
    ensure_ascii=st.booleans(),
)
def test_calls_come_back_as_they_were_written(
    name: str,
    named: list[tuple[str, dict[str, Any]]],
    before: str,
    cuts: list[int],
    indent: int | None,
    ensure_ascii: bool,
) -> None:
    begin, write, between, end = WRITERS[name]
    expected = [(tool, json.dumps(each, indent=indent, ensure_ascii=ensure_ascii)) for tool, each in named]
    if name == "harmony":
        expected = [each for each in expected if "<|" not in each[1]]
    text = begin + between.join(itertools.starmap(write, expected)) + end
    deltas = parsed(parser(name), cut(before + text, cuts))
    assert deltas == [C(before), *calls(*expected)]


@given(
    arguments=st.dictionaries(st.text("ab", min_size=1, max_size=3), st.text("a\"\\\n é<'", max_size=9), max_size=3),
    cuts=CUTS,
)
def test_strings_of_qwen3_coder_become_json(arguments: dict[str, str], cuts: list[int]) -> None:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    _, *deltas = parsed(parser("qwen3_coder"), cut(XML.format(body), cuts))
    assert [json.loads(delta.text) for delta in deltas if isinstance(delta, ToolCallArguments)] == [arguments]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("think", "<think>a</think>b", [R("a"), C("b")]),
        ("qwen3", "\n<think>\na\n</think>\n\nb", [R("\na\n"), C("\n\nb")]),
        ("think", "b <think>a</think>", [C("b <think>a</think>")]),
        ("think", "a</think>b", [C("a</think>b")]),
        ("think", " <thin", [C(" <thin")]),
        ("think", "<think>a</thi", [R("a</thi")]),
        ("deepseek_r1", "a</think>b</think>", [R("a"), C("b</think>")]),
        ("deepseek_r1", "<think>a</think>b", [R("a"), C("b")]),
        ("deepseek_r1", " a", [R(" a")]),
        ("deepseek_r1", "</think>b", [C("b")]),
        ("mistral", "[THINK]a[b][/THINK]c", [R("a[b]"), C("c")]),
        ("harmony", "<|channel|>analysis<|message|>a<|end|>b", [R("a"), C("b")]),
        (
            "harmony",
            "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
            [C("{}")],
        ),
    ],
)
def test_reasoning(name: str, text: str, expected: list[Delta]) -> None:
    assert parsed(parser("", name), [text]) == expected
    assert parsed(parser("", name), list(text)) == expected


@pytest.mark.parametrize("name", ["think", "qwen3", "deepseek_r1"])
def test_reasoning_by_the_prompt(name: str) -> None:
    assert parsed(parser("", name, in_reasoning=True), ["a</think>b"]) == [R("a"), C("b")]
    assert parsed(parser("", name, in_reasoning=False), ["a</think>b"]) == [C("a</think>b")]


def test_reasoning_then_tools() -> None:
    text = '<think>a <tool_call></think>\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parsed(parser("hermes", "think"), [text]) == [R("a <tool_call>"), *calls(("f", "{}"))]


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("think", "…<think>\n", True),
        ("qwen3", "…<think>\n\n</think>\n\n", False),
        ("deepseek_r1", "…</think>", False),
        ("think", "<think> and more", None),
        ("mistral", "[THINK]", True),
        ("mistral", "<think>", None),
        ("harmony", "<think>", None),
        ("", "<think>", None),
    ],
)
def test_what_a_prompt_leaves_open(name: str, prompt: str, is_open: bool | None) -> None:
    assert is_reasoning_open(name, prompt) is is_open


def test_without_parsers() -> None:
    assert parsed(parser(), ["", "a", " <tool_call>"]) == [C("a <tool_call>")]


def test_ids() -> None:
    call = '[TOOL_CALLS][{"name": "f", "arguments": {}}]'
    first, second = (parsed(output_parser("mistral"), [call])[0] for _ in range(2))
    assert isinstance(first, ToolCallStart)
    assert isinstance(second, ToolCallStart)
    assert re.fullmatch(r"[A-Za-z0-9]{9}", first.id)
    assert first.id != second.id
    other = parsed(output_parser("hermes"), ['<tool_call>{"name": "f"}'])[0]
    assert isinstance(other, ToolCallStart)
    assert re.fullmatch(r"call_[0-9a-f]{24}", other.id)


@pytest.mark.parametrize(
    ("tools", "reasoning", "text"),
    [
        ("nonsense", "", f"tool_call_parser: expected one of {', '.join(TOOL_PARSERS)}, got 'nonsense'"),
        ("", "nonsense", f"reasoning_parser: expected one of {', '.join(REASONING_PARSERS)}, got 'nonsense'"),
        ("harmony", "think", "tool_call_parser 'harmony' and reasoning_parser 'think' exclude each other"),
        ("hermes", "harmony", "tool_call_parser 'hermes' and reasoning_parser 'harmony' exclude each other"),
    ],
)
def test_unknown_names(tools: str, reasoning: str, text: str) -> None:
    for function in (output_parser, marker_tokens):
        with pytest.raises(InvalidArgument, match=text):
            function(tools, reasoning)


def test_markers() -> None:
    assert marker_tokens() == frozenset()
    assert marker_tokens("llama3", "think") == {"<|python_tag|>", "<think>", "</think>"}
    for name in TOOL_PARSERS:
        assert marker_tokens(name)


# What is held back is bounded: beyond that it is content, and the stream goes on.


@pytest.mark.parametrize("size", [1000, 7])
def test_an_object_that_is_no_call_for_too_long(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_object, "MAX_HELD", 100)
    text = '<tool_call>{"other": "' + "a" * 200 + '", "name": "f", "arguments": {}}</tool_call>'
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    assert parsed(parser("hermes"), pieces) == [C(text)]


def test_arguments_may_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_object, "MAX_HELD", 100)
    arguments = json.dumps({"a": "b" * 1000})
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert parsed(parser("hermes"), list(text)) == calls(("f", arguments))


@pytest.mark.parametrize("size", [5000, 100])
def test_blanks_are_not_held_for_ever(size: int) -> None:
    text = " " * 3 * MAX_BLANKS + '<tool_call>{"name": "f", "arguments": {}}</tool_call>' + "\n" * 3 * MAX_BLANKS
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    expected = [C(" " * 3 * MAX_BLANKS), *calls(("f", "{}")), C("\n" * 3 * MAX_BLANKS)]
    assert parsed(parser("hermes"), pieces) == expected


@pytest.mark.parametrize("size", [1000, 7])
def test_a_long_value_of_qwen3_coder_becomes_a_string(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qwen3_coder, "MAX_HELD", 100)
    text = XML.format(f"<parameter=number>{'1' * 200}</parameter>")
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    assert parsed(parser("qwen3_coder"), pieces) == calls(("f", json.dumps({"number": "1" * 200})))


def test_long_keys_after_the_arguments_are_not_kept() -> None:
    known = CallObject(DeltaWriter(lambda: "id"), is_certain=True)
    text = '{"name": "f", "arguments": {}, "'
    known.feed(text, 0)
    for _ in range(100):
        known.feed("a" * 1000, 0)
    assert not any("aaa" in str(getattr(known, name, "")) for name in vars(known))
    known.feed('": 1}', 0)
    assert known.is_done


@pytest.mark.parametrize(
    ("name", "begin", "rest"),
    [
        ("mistral", "[TOOL_CALLS]", "f[ARGS]{}"),
        ("llama3", "", '{"name": "f", "parameters": {}}'),
        ("deepseek", ALL_BEGIN, f"no{BEGIN}"),
        ("qwen3_coder", "<tool_call>", "no"),
    ],
)
def test_blanks_where_something_is_expected_are_not_held_for_ever(name: str, begin: str, rest: str) -> None:
    text = begin + " " * 2 * MAX_OPENING + rest
    assert parsed(parser(name), [text]) == [C(text)]
    assert parsed(parser(name), list(text)) == [C(text)]
