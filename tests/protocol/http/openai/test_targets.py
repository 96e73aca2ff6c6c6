"""Which model a request means: by its name, or by its adapter's."""

from __future__ import annotations

import pytest

from protocol.http.openai.errors import FieldError, ModelNotFound
from protocol.http.openai.targets import find_target, list_targets, target_members
from protocol.text.model import TextModel
from tests.protocol.http.fake_core import FakeCore

ONE = TextModel("one", 1, adapters={"poet": "/p", "law": "/l"}, context_length=64, loaded_at=5)
TWO = TextModel("two", 1, adapters={"law": "/x", "art": "/a"})


async def found(name: str | None, separator: str = "", *texts: TextModel) -> tuple[str, str]:
    target = await find_target(FakeCore(texts=texts or (ONE, TWO)), name, separator)
    assert name is None or target.name == name
    return target.text.name, target.adapter


async def test_models_and_adapters_by_name() -> None:
    assert await found("one") == ("one", "")
    assert await found("poet") == ("one", "poet")
    assert await found("art", ":") == ("two", "art")
    assert await found("two:law", ":") == ("two", "law")


async def test_the_core_is_asked_by_the_name_that_it_knows() -> None:
    core = FakeCore(texts=(ONE,))
    assert (await find_target(core, "one")).model == "one"
    assert (await find_target(core, "poet")).model == "one"


async def test_without_a_name() -> None:
    assert await found(None, "", ONE) == ("one", "")
    with pytest.raises(FieldError, match="'model': Field required"):
        await found(None)


@pytest.mark.parametrize(
    ("name", "separator", "message"),
    [
        ("three", "", "Unknown model: three"),
        ("one:poet", "", "Unknown model: one:poet"),
        ("one:art", ":", "Unknown LoRA: art; for model: one:art"),
        ("three:art", ":", "Unknown model: three:art"),
        ("one:poet:x", ":", "Unknown model: one:poet:x"),
    ],
)
async def test_what_is_not_there(name: str, separator: str, message: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        await found(name, separator)
    assert caught.value.message == message


async def test_an_adapter_of_two_models() -> None:
    with pytest.raises(FieldError, match="adapter 'law' is one of several models: 'one', 'two'"):
        await found("law")


async def test_a_model_without_text() -> None:
    with pytest.raises(FieldError, match="model 'echo' has no text") as caught:
        await found("echo")
    assert caught.value.param == "model"


async def test_the_list() -> None:
    core = FakeCore(texts=(ONE,))
    assert [target.name for target in await list_targets(core)] == ["one", "poet", "law"]
    _, poet, _ = await list_targets(core, "/")
    assert target_members(poet, "me") == {
        "id": "one/poet",
        "object": "model",
        "created": 5,
        "owned_by": "me",
        "root": "/p",
        "parent": "one",
        "max_model_len": 64,
        "permission": [],
    }
