"""Prompts of chats and completions, and the tokens that may follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Unsupported
from protocol.http.openai.codec.images import Picture
from protocol.http.openai.errors import FieldError
from protocol.http.openai.prompts import Prompt, call_arguments, chat_prompt, completion_prompts, cut_prompt, measured
from protocol.messages import Tensor, encode_bytes_elements
from protocol.text.chat_template import ChatTemplate
from protocol.text.model import TextModel
from protocol.text.tokenizer import Tokenizer
from tests.protocol.http.openai.words import word_tokenizer

ROLES = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def model(template: str = ROLES, **members: Any) -> TextModel:
    return TextModel("m", 1, chat_template=ChatTemplate(template), **members)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (user("hi"), "user:hi|>"),
        (user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "user:a\nb|>"),
        (user([]), "user:|>"),
        ({"role": "assistant", "content": None}, "assistant:|>"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "assistant:no|>"),
        ({"role": "developer", "content": "be brief"}, "system:be brief|>"),
    ],
)
def test_messages(message: dict[str, Any], shown: str) -> None:
    assert chat_prompt(model(), [message]) == shown


def test_templates_that_read_parts_get_parts() -> None:
    template = "{% for m in messages %}{% for c in m['content'] %}<{{ c.text }}>{% endfor %}{% endfor %}"
    assert chat_prompt(model(template), [user("a"), user([{"type": "text", "text": "b"}])]) == "<a><b>"


def test_templates_that_know_developers_see_them() -> None:
    template = "{{ messages[0].role }}{# developer #}"
    assert chat_prompt(model(template), [{"role": "developer", "content": ""}]) == "developer"


@pytest.mark.parametrize("arguments", ["{", '{"a": "\\ud800"}', "NaN", "[" * 100_000])
def test_arguments_of_calls_that_are_not_json(arguments: str) -> None:
    """Half a character has no place in a prompt: it cannot be sent to a model."""
    with pytest.raises(FieldError, match="'x': the arguments of a call are not JSON"):
        call_arguments(arguments, "x")
    assert (call_arguments(None, "x"), call_arguments(" ", "x"), call_arguments([1], "x")) == ({}, {}, [1])


def test_arguments_of_calls_are_objects() -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments.city }}"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Rome"}'}}
    assert chat_prompt(model(template), [{"role": "assistant", "tool_calls": [call]}]) == "Rome"


def test_switches_of_the_template_and_the_end_of_the_prompt() -> None:
    template = ROLES + "{{ mood }}"
    assert chat_prompt(model(template), [user("a")], add_generation_prompt=False, variables={"mood": "!"}) == "user:a|!"
    assert chat_prompt(model(), [user("a"), {"role": "assistant", "content": "b"}], continue_final_message=True) == (
        "user:a|assistant:b"
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "boss", "content": "a"}, "messages[0].role"),
        ({"content": "a"}, "messages[0].role"),
        (user(3), "messages[0].content"),
        (user([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content"),
        (user([{"type": "text"}]), "messages[0].content"),
        (user([3]), "messages[0].content"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "messages[0].tool_calls",
        ),
    ],
)
def test_messages_that_are_none(message: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat_prompt(model(), [message])
    assert caught.value.param == param


def test_pictures_are_refused_in_tritons_words() -> None:
    with pytest.raises(FieldError, match="only text message is supported, but got image_url"):
        chat_prompt(model(), [user([{"type": "image_url"}])])


def test_pictures_of_other_routes_are_refused_by_their_own_place() -> None:
    part = Picture("input[0].content[0].image_url", "YQ==")
    with pytest.raises(FieldError, match=r"'input\[0\].content\[0\].image_url': the model has no input") as caught:
        chat_prompt(model(), [user([part])])
    assert caught.value.param == "input[0].content[0].image_url"
    template = "{% for m in messages %}{% for c in m['content'] %}<{{ c.type }}>{% endfor %}{% endfor %}"
    assert chat_prompt(model(template), [user([part, {"type": "text", "text": "b"}])], sees=True) == "<image><text>"


def test_a_template_may_refuse() -> None:
    with pytest.raises(InvalidArgument, match="no system here"):
        chat_prompt(model("{{ raise_exception('no system here') }}"), [user("a")])


def test_fields_are_no_switches() -> None:
    with pytest.raises(FieldError, match="'chat_template_kwargs': 'messages' is a field of its own"):
        chat_prompt(model(), [user("a")], variables={"messages": []})


def test_a_model_without_a_template() -> None:
    with pytest.raises(Unsupported, match="model 'm' has no chat template"):
        chat_prompt(TextModel("m", 1), [user("a")])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return word_tokenizer()


def test_prompts_of_completions(tokenizer: Tokenizer) -> None:
    hello, world = tokenizer.encode("hello world", add_special_tokens=False)
    assert completion_prompts("a", None, "m") == [Prompt("a")]
    assert completion_prompts(["a", "b"], None, "m") == [Prompt("a"), Prompt("b")]
    both, *one_each = (
        Prompt(text, adds_special_tokens=False, token_ids=ids)
        for text, ids in (("hello world", [hello, world]), ("hello", [hello]), (" world", [world]))
    )
    assert completion_prompts([hello, world], tokenizer, "m") == [both]
    assert completion_prompts([[hello], [world]], tokenizer, "m") == one_each


@pytest.mark.parametrize("prompt", ["", [], None, 3, [True], ["a", 1], [[]], [["a"]], {"a": 1}, [1 << 40], [-1]])
def test_prompts_that_are_none(prompt: Any, tokenizer: Tokenizer) -> None:
    with pytest.raises(FieldError) as caught:
        completion_prompts(prompt, tokenizer, "m")
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("token_id", [-1, 5, 10**9, 10**30])
def test_a_token_id_that_no_token_has_is_named(token_id: int) -> None:
    """Nothing of a prompt is left out silently."""
    with pytest.raises(FieldError, match=f"token id {token_id} is not in the vocabulary of model 'm', which has 5"):
        completion_prompts([1, token_id], word_tokenizer(), "m")


def test_token_ids_without_a_tokenizer() -> None:
    with pytest.raises(FieldError, match="model 'm' has no tokenizer"):
        completion_prompts([1], None, "m")


def test_how_long_an_answer_may_be(tokenizer: Tokenizer) -> None:
    text = TextModel("m", 1, tokenizer=tokenizer, context_length=5)

    def most(prompt: str, wanted: int | None = None, default: int | None = None) -> int | None:
        return measured(text, Prompt(prompt, adds_special_tokens=False), max_tokens=wanted, default=default).max_tokens

    assert most("hello world") == 3
    assert most("hello world", wanted=16) == 16
    assert most("hello world", wanted=0) == 0
    assert most("hello world", default=16) == 16
    assert most("hello world", wanted=2, default=16) == 2
    for words in (5, 6):
        with pytest.raises(
            FieldError, match=f"maximum context length is 5 tokens. However, the prompt has {words}"
        ) as no:
            most(" ".join(["hello"] * words))
        assert no.value.code == "context_length_exceeded"
    ids = Prompt("", adds_special_tokens=False, token_ids=[1] * 5)
    with pytest.raises(FieldError, match="maximum context length is 5 tokens"):
        measured(text, ids, max_tokens=1, default=None)
    assert measured(text, replace(ids, token_ids=[1] * 4), max_tokens=16, default=None).max_tokens == 16


def test_an_unknown_context_is_the_models_matter(tokenizer: Tokenizer) -> None:
    for text in (TextModel("m", 1), TextModel("m", 1, tokenizer=tokenizer), TextModel("m", 1, context_length=5)):
        made = measured(text, Prompt("hello"), max_tokens=None, default=None)
        assert made == Prompt("hello")


def test_a_prompt_may_be_cut_to_the_context() -> None:
    text = model(tokenizer=word_tokenizer(), context_length=4)
    for wanted, most in ((None, 2), (1, 1), (9, 2)):
        prompt = measured(
            text, Prompt("hello world", adds_special_tokens=False), max_tokens=wanted, default=None, fits_context=True
        )
        assert prompt.max_tokens == most
        assert prompt.token_ids is not None
        assert len(prompt.token_ids) == 2
    assert measured(text, Prompt("hello"), max_tokens=9, default=None).max_tokens == 9


def test_the_last_tokens_of_a_prompt(tokenizer: Tokenizer) -> None:
    text = TextModel("m", 1, tokenizer=tokenizer, context_length=5)
    given = Prompt("hello world hello", adds_special_tokens=False)
    ids = tokenizer.encode(given.text, add_special_tokens=False)
    assert cut_prompt(text, given, None, None) is given
    assert cut_prompt(text, given, 2, None) == replace(given, text=" world hello", token_ids=ids[-2:])
    assert cut_prompt(text, given, 5, None) == replace(given, token_ids=ids)
    of_ids = Prompt("hello world", adds_special_tokens=False, token_ids=ids[:2])
    assert cut_prompt(text, of_ids, 1, None) == Prompt(" world", adds_special_tokens=False, token_ids=ids[1:2])
    assert [len(cut_prompt(text, given, -1, most).token_ids or ()) for most in (None, 2, 3, 4, 9)] == [3, 3, 2, 1, 1]


def test_prompts_that_cannot_be_cut(tokenizer: Tokenizer) -> None:
    text = TextModel("m", 1, tokenizer=tokenizer, context_length=5)
    picture = Prompt("hello", images=Tensor("image", DataType.BYTES, (1,), encode_bytes_elements(["YQ=="])))
    for made, prompt, most, message in (
        (TextModel("m", 1), Prompt("hello"), 1, "model 'm' has no tokenizer"),
        (text, picture, 1, "a prompt with pictures is not cut"),
        (text, Prompt("hello"), 6, "expected -1 for the context of model 'm', or a number from 1 to 5, got 6"),
        (text, Prompt("hello"), 0, "a number from 1 to 5, got 0"),
        (TextModel("m", 1, tokenizer=tokenizer), Prompt("hello"), -1, "expected a number from 1 on, got -1"),
    ):
        with pytest.raises(FieldError, match=message) as caught:
            cut_prompt(made, prompt, most, None)
        assert caught.value.param == "truncate_prompt_tokens"
