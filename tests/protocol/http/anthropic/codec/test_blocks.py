"""Content blocks: a stream, however it is cut, says what the whole answer says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from protocol.http.anthropic.codec.blocks import BlockEvents, ContentBlocks, arguments, signature
from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart

DELTAS: list[Delta] = [
    ReasoningDelta("Let me "),
    ReasoningDelta("think."),
    ContentDelta("Hel"),
    ContentDelta("lo"),
    ToolCallStart(0, "a", "f"),
    ToolCallArguments(0, '{"x":'),
    ToolCallArguments(0, " 1}"),
    ToolCallStart(1, "b", "g"),
    ContentDelta("!"),
]
BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Let me think.", "signature": signature("Let me think.")},
    {"type": "text", "text": "Hello", "citations": None},
    {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
    {"type": "tool_use", "id": "b", "name": "g", "input": {}},
    {"type": "text", "text": "!", "citations": None},
]


def events(data: bytes) -> list[dict[str, Any]]:
    *parts, rest = data.decode().split("\n\n")
    assert rest == ""
    made = []
    for part in parts:
        name, members = part.split("\n")
        found = msgspec.json.decode(members.removeprefix("data: "))
        assert name == f"event: {found['type']}"
        made.append(found)
    return made


def gathered(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that events make, by the rules of Anthropic's client; none is open at the end."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for each in found:
        match each["type"]:
            case "content_block_start":
                assert not is_open
                assert each["index"] == len(blocks)
                is_open = True
                blocks.append({**each["content_block"], "json": ""})
            case "content_block_delta":
                assert is_open
                assert each["index"] == len(blocks) - 1
                kind, delta, block = each["delta"]["type"], each["delta"], blocks[-1]
                name = {"thinking_delta": "thinking", "text_delta": "text", "signature_delta": "signature"}.get(kind)
                if name is not None:
                    block[name] += delta[name]
                else:
                    block["json"] += delta["partial_json"]
            case "content_block_stop":
                assert is_open
                is_open = False
    assert not is_open
    for block in blocks:
        written = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = arguments(written)
        elif block["type"] == "text":
            block["citations"] = None
    return blocks


def test_a_whole_answer() -> None:
    blocks = ContentBlocks()
    blocks.add(DELTAS[:3])
    blocks.add(DELTAS[3:])
    assert blocks.finish() == BLOCKS
    assert ContentBlocks().finish() == []


def test_a_stream() -> None:
    writer = BlockEvents()
    assert gathered(events(writer.events(DELTAS) + writer.finish())) == BLOCKS


def test_the_bytes_of_a_text() -> None:
    writer = BlockEvents()
    head = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":'
    )
    assert writer.events([ContentDelta('a"')]) == (
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
        b'{"type":"text","text":""}}\n\n' + head + b'"a\\""}}\n\n'
    )
    assert writer.events([ContentDelta("b")]) == head + b'"b"}}\n\n'
    assert writer.events([]) == b""


def test_thoughts_that_are_not_shown_have_a_signature() -> None:
    writer, blocks = BlockEvents(shows_thinking=False), ContentBlocks(shows_thinking=False)
    blocks.add(DELTAS)
    found = events(writer.events(DELTAS) + writer.finish())
    assert "thinking_delta" not in [each.get("delta", {}).get("type") for each in found]
    assert gathered(found) == blocks.finish() == [{**BLOCKS[0], "thinking": ""}, *BLOCKS[1:]]


def test_arguments_that_are_no_object_are_none() -> None:
    for text in ("", "{", "[1]", '"a"', '{"a": 1} x', "[" * 100_000):
        assert arguments(text) == {}
    assert arguments(' {"a": [1]} ') == {"a": [1]}


texts = st.text(alphabet='ab"\\\n\u20ac', max_size=4)
calls = st.tuples(texts, st.lists(texts, max_size=3))


@given(st.lists(st.one_of(texts.map(ContentDelta), texts.map(ReasoningDelta), calls), max_size=8), st.data())
def test_any_deltas_in_any_portions(items: list[Any], data: st.DataObject) -> None:
    deltas: list[Delta] = []
    for index, item in enumerate(items):
        if isinstance(item, tuple):
            deltas.append(ToolCallStart(index, f"id{index}", item[0]))
            deltas += [ToolCallArguments(index, text) for text in item[1]]
        else:
            deltas.append(item)
    whole, writer = ContentBlocks(), BlockEvents()
    whole.add(deltas)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(deltas)), max_size=3)))
    sent = b"".join(
        writer.events(deltas[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(deltas)], strict=True)
    )
    assert gathered(events(sent + writer.finish())) == whole.finish()
