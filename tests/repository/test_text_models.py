"""Which models have text, what their tensors are called, and what is read of their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, ServerError
from protocol.text.model import TensorNames, TextModel
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig, ModelInput, ModelOutput, ModelParameter
from repository.text_models import read_text_model, text_tensors

STRING, FLOAT = DataType.BYTES, DataType.FP32


def config(
    inputs: dict[str, DataType] | None = None, outputs: dict[str, DataType] | None = None, **parameters: str
) -> ModelConfig:
    given_inputs = {"text_input": STRING} if inputs is None else inputs
    given_outputs = {"text_output": STRING} if outputs is None else outputs
    return ModelConfig(
        name="m",
        input=tuple(ModelInput(name=name, data_type=kind) for name, kind in given_inputs.items()),
        output=tuple(ModelOutput(name=name, data_type=kind) for name, kind in given_outputs.items()),
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (config(), TensorNames()),
        (
            config({"P": STRING}, {"A": STRING}, openai_text_input="P", openai_text_output="A"),
            TensorNames(text_input="P", text_output="A"),
        ),
        (
            config({"T": STRING}, {"V": FLOAT}, openai_embedding_input="T", openai_embedding_output="V"),
            TensorNames(text_input="", text_output="", embedding_input="T", embedding_output="V"),
        ),
        (
            config({"embedding_request": STRING}),
            TensorNames(text_input="", embedding_request="embedding_request"),
        ),
        (
            config({"text_input": STRING, "embedding_request": STRING}),
            TensorNames(embedding_request="embedding_request"),
        ),
        (config({"text_input": FLOAT}), None),
        (config(outputs={"text_output": FLOAT}), None),
        (config({"x": STRING}), None),
    ],
)
def test_which_models_have_text(given: ModelConfig, names: TensorNames | None) -> None:
    assert text_tensors(given) == names


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"openai_text_input": "P", "openai_text_output": "text_output"},
            r"model 'm', parameters\['openai_text_input'\]: expected the name of an input of TYPE_STRING, got 'P': "
            "there is none of that name",
        ),
        ({"openai_text_input": "text_input"}, r"parameters\['openai_text_output'\]"),
        (
            {"openai_embedding_input": "text_input", "openai_embedding_output": "text_output"},
            r"parameters\['openai_embedding_output'\]: expected the name of an output of TYPE_FP32, got 'text_output': "
            "it is of TYPE_STRING",
        ),
    ],
)
def test_names_of_tensors_that_are_not_there(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        text_tensors(config(None, None, **parameters))


def tokenizer() -> str:
    words = {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}, "added_tokens": []}
    return json.dumps(words)


def read(folder: Path, given: ModelConfig | None = None, **more: Any) -> TextModel:
    directory = ModelDirectory("m", folder, folder.parent, **more)
    text = read_text_model(directory, given or config(), 3)
    assert text is not None
    return text


@pytest.fixture
def version(tmp_path: Path) -> Path:
    (tmp_path / "3").mkdir()
    return tmp_path / "3"


def test_a_model_without_files(version: Path) -> None:
    text = read(version.parent)
    assert (text.name, text.version, text.tokenizer, text.chat_template) == ("m", 3, None, None)
    assert (text.context_length, dict(text.adapters)) == (None, {})
    assert text.loaded_at > 0


def test_a_model_without_text(tmp_path: Path) -> None:
    assert read_text_model(ModelDirectory("m", tmp_path, tmp_path), config({"x": STRING}), 3) is None


@pytest.mark.parametrize("place", ["3", "."])
def test_a_tokenizer_in_the_version_or_the_model(version: Path, place: str) -> None:
    folder = version.parent / place
    (folder / "tokenizer.json").write_text(tokenizer())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "hi"}))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 12}))
    text = read(version.parent)
    assert text.tokenizer is not None
    assert text.chat_template is not None
    assert (text.chat_template.render([]), text.context_length) == ("hi", 12)


def test_a_model_without_version_folders(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer())
    assert read(tmp_path, is_flat=True).tokenizer is not None


@pytest.mark.parametrize("said_by", ["parameter", "model", "tokenizer"])
def test_a_tokenizer_elsewhere(version: Path, said_by: str) -> None:
    elsewhere = version.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "tokenizer.json").write_text(tokenizer())
    if said_by == "parameter":
        assert read(version.parent, config(tokenizer="../elsewhere")).tokenizer is not None
        return
    (version / "model.json").write_text(json.dumps({said_by: "../elsewhere"}))
    assert read(version.parent).tokenizer is not None


def test_what_parameters_say(version: Path) -> None:
    given = config(
        chat_template="{{ messages[0].content }}",
        max_model_len="64",
        tool_call_parser="hermes",
        reasoning_parser="think",
    )
    text = read(version.parent, given)
    assert text.chat_template is not None
    assert text.chat_template.render([{"role": "user", "content": "x"}]) == "x"
    assert (text.context_length, text.tool_parser, text.reasoning_parser) == (64, "hermes", "think")


@pytest.mark.parametrize(("given", "length"), [("0", None), ("40", 40)])
def test_the_context_length(version: Path, given: str, length: int | None) -> None:
    assert read(version.parent, config(max_model_len=given)).context_length == length


def test_a_template_in_a_file(version: Path) -> None:
    (version.parent / "chat.jinja").write_text("from a file")
    text = read(version.parent, config(chat_template="chat.jinja"))
    assert text.chat_template is not None
    assert text.chat_template.render([]) == "from a file"


@pytest.mark.parametrize(
    ("engine", "adapters"),
    [
        (None, {"a": "x"}),
        ({"enable_lora": "true"}, {"a": "x"}),
        ({"enable_lora": True}, {"a": "x"}),
        ({"model": "y"}, {}),
    ],
)
def test_adapters(version: Path, engine: dict[str, Any] | None, adapters: dict[str, str]) -> None:
    (version / "multi_lora.json").write_text(json.dumps({"a": "x"}))
    if engine is not None:
        (version / "model.json").write_text(json.dumps(engine))
    assert read(version.parent).adapters == adapters


@pytest.mark.parametrize(
    ("file", "content", "given", "message"),
    [
        ("tokenizer.json", "{}", {"tokenizer": "."}, "model 'm': '.*/3/tokenizer.json': not a tokenizer.json: "),
        ("multi_lora.json", "[1]", {}, "model 'm': file '.*/3/multi_lora.json' is not a JSON object: "),
        (
            "x",
            "",
            {"chat_template": "nope.jinja"},
            "model 'm': parameters.'chat_template'.: file '.*nope.jinja' cannot",
        ),
        ("x", "", {"chat_template": "{% if %}"}, "model 'm': chat template: line 1: "),
        ("x", "", {"tokenizer": "nowhere"}, "model 'm', parameters.'tokenizer'.: expected a folder"),
        ("x", "", {"max_model_len": "many"}, "model 'm', parameters.'max_model_len'.: expected a number of tokens"),
        ("x", "", {"tool_call_parser": "x"}, "model 'm', parameters: tool_call_parser: expected one of .*, got 'x'"),
    ],
)
def test_what_is_wrong_is_named(version: Path, file: str, content: str, given: dict[str, str], message: str) -> None:
    (version / file).write_text(content)
    with pytest.raises(ServerError, match=message):
        read(version.parent, config(None, None, **given))


def test_a_tokenizer_that_nobody_asked_for_fails_no_load(version: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may be for the model's own program alone."""
    (version / "tokenizer.json").write_text("{}")
    text = read(version.parent)
    assert (text.tokenizer, text.chat_template) == (None, None)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"model 'm': '{version / 'tokenizer.json'}': not a tokenizer.json: ")
