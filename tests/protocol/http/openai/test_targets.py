"""Which model a request means: by its name, or by its adapter's."""

from __future__ import annotations

import pytest

from protocol.http.openai.errors import FieldError, ModelNotFound
from protocol.http.openai.targets import find_target, list_targets, target_members
from protocol.text.model import TextModel
from tests.protocol.http.fake_core import FakeCore

ONE = TextModel("one", 1, adapters={"poet": "/p", "law": "/l"}, context_length=64, loaded_at=5)
TWO = TextModel("two", 1, adapters={"law": "/x", "art": "/a"})


def found(name: str | None, separator: str = "", *texts: TextModel) -> tuple[str, str]:
    target = find_target(FakeCore(texts=texts or (ONE, TWO)), name, separator)
    assert name is None or target.name == name
    return target.text.name, target.adapter


def test_models_and_adapters_by_name() -> None:
    assert found("one") == ("one", "")
    assert found("poet") == ("one", "poet")
    assert found("art", ":") == ("two", "art")
    assert found("two:law", ":") == ("two", "law")


def test_the_core_is_asked_by_the_name_that_it_knows() -> None:
    core = FakeCore(texts=(ONE,))
    assert find_target(core, "one").model == "one"
    assert find_target(core, "poet").model == "one"


def test_without_a_name() -> None:
    assert found(None, "", ONE) == ("one", "")
    with pytest.raises(FieldError, match="'model': Field required"):
        found(None)


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
def test_what_is_not_there(name: str, separator: str, message: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        found(name, separator)
    assert caught.value.message == message


def test_an_adapter_of_two_models() -> None:
    with pytest.raises(FieldError, match="adapter 'law' is one of several models: 'one', 'two'"):
        found("law")


def test_a_model_without_text() -> None:
    with pytest.raises(FieldError, match="model 'echo' has no text") as caught:
        found("echo")
    assert caught.value.param == "model"


def test_the_list() -> None:
    core = FakeCore(texts=(ONE,))
    assert [target.name for target in list_targets(core)] == ["one", "poet", "law"]
    _, poet, _ = list_targets(core, "/")
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
