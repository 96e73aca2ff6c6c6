"""Output items: the events of a stream, however it is cut, say what the items say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Internal
from protocol.http.openai.responses.output import OutputWriter
from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart


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


def gathered(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that the deltas make; what the events of the ends say has to be the same."""
    items: list[dict[str, Any]] = []
    for number, each in enumerate(found):
        assert each["sequence_number"] == number
        kind = each["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert each["output_index"] == len(items)
            items.append(each["item"])
            continue
        item = items[-1]
        assert each["output_index"] == len(items) - 1
        assert each.get("item_id", item["id"]) == item["id"]
        match kind:
            case "content_part.added":
                item["content"].append(each["part"])
            case "output_text.delta" | "reasoning_text.delta":
                item["content"][0]["text"] += each["delta"]
                item["content"][0].get("logprobs", []).extend(each.get("logprobs", ()))
            case "function_call_arguments.delta":
                item["arguments"] += each["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert each["text"] == item["content"][0]["text"]
            case "function_call_arguments.done":
                assert each["arguments"] == item["arguments"]
            case "content_part.done":
                assert each["part"] == item["content"][0]
            case "output_item.done":
                item["status"] = each["item"]["status"]
                assert each["item"] == item
    return items


def test_the_bytes_of_a_text() -> None:
    writer = OutputWriter()
    writer.write([ContentDelta("a")])
    item_id = events(writer.write([ContentDelta("")]))[0]["item_id"]
    assert writer.write([ContentDelta('b"')]) == (
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"%b",'
        b'"output_index":0,"content_index":0,"delta":"b\\"","logprobs":[],"sequence_number":4}\n\n' % item_id.encode()
    )


def test_an_answer_that_is_cut_in_its_last_item() -> None:
    writer = OutputWriter()
    data = writer.write([ContentDelta("a"), ToolCallStart(0, "c", "f"), ToolCallArguments(0, '{"x":')])
    items = gathered(events(data + writer.finish("incomplete")))
    assert items == writer.items
    assert [(item["type"], item["status"]) for item in items] == [
        ("message", "completed"),
        ("function_call", "incomplete"),
    ]
    assert (items[1]["call_id"], items[1]["name"], items[1]["arguments"]) == ("c", "f", '{"x":')


def test_logprobs_wait_for_a_text() -> None:
    writer = OutputWriter()
    data = writer.write([ReasoningDelta("hm")], [{"token": "1"}])
    data += writer.write([], [{"token": "2"}])
    data += writer.write([ContentDelta("a"), ContentDelta("b")], [{"token": "3"}])
    deltas = [each for each in events(data) if each["type"] == "response.output_text.delta"]
    assert [[token["token"] for token in each["logprobs"]] for each in deltas] == [[], ["1", "2", "3"]]
    writer.finish()
    assert len(writer.items[1]["content"][0]["logprobs"]) == 3


def test_a_model_that_does_not_come_to_an_end() -> None:
    writer = OutputWriter()
    deltas = [ContentDelta("x" * (1 << 20))] * 5
    with pytest.raises(Internal, match="the model has written more than 4194304 characters"):
        writer.write(deltas)
    writer.finish("incomplete")
    assert len(writer.items[0]["content"][0]["text"]) == 5 << 20


def test_nothing_is_no_item() -> None:
    writer = OutputWriter()
    assert (writer.write([]), writer.finish(), writer.items) == (b"", b"", [])


texts = st.text(alphabet='ab"\\\n\u20ac', max_size=4)
calls = st.tuples(texts, st.lists(texts, max_size=3))


@given(st.lists(st.one_of(texts.map(ContentDelta), texts.map(ReasoningDelta), calls), max_size=8), st.data())
def test_any_deltas_in_any_portions(found: list[Any], data: st.DataObject) -> None:
    deltas: list[Delta] = []
    for index, each in enumerate(found):
        if isinstance(each, tuple):
            deltas.append(ToolCallStart(index, f"id{index}", each[0]))
            deltas += [ToolCallArguments(index, text) for text in each[1]]
        else:
            deltas.append(each)
    writer = OutputWriter()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(deltas)), max_size=3)))
    sent = b"".join(
        writer.write(deltas[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(deltas)], strict=True)
    )
    assert gathered(events(sent + writer.finish())) == writer.items
    said = [each.text for each in deltas if isinstance(each, ContentDelta)]
    assert "".join(part["text"] for item in writer.items for part in item.get("content", ())) == "".join(
        each.text for each in deltas if isinstance(each, ContentDelta | ReasoningDelta)
    )
    assert "".join(said) == "".join(item["content"][0]["text"] for item in writer.items if item["type"] == "message")
