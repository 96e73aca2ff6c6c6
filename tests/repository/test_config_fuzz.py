"""Configurations that were changed at random: each is read or refused, and refused only by an error with a sentence.

`TRIOTON_FUZZ_EXAMPLES` makes it go on for longer.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.errors import ServerError
from repository.backend_fields import fill_backend_fields
from repository.faults import all_faults
from repository.instance_groups import NO_GPUS
from repository.json_form import from_json_form, to_json_form
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig
from repository.pbtxt import format_pbtxt, parse_on, parse_pbtxt
from repository.protobuf_form import new_message
from repository.readable_pbtxt import format_readable
from repository.unsupported import refuse_unbuilt
from repository.validation import normalise, validate
from repository.warmup_data import warmup_samples
from tests.repository.test_examples import DYNAMIC, ENSEMBLE, SEQUENCE

pytestmark = pytest.mark.slow

EXAMPLES = 4 * int(os.environ.get("TRIOTON_FUZZ_EXAMPLES", "200"))

OTHERS = """
platform: "onnxruntime_onnx" max_batch_size: 4 version_policy { specific { versions: [ 1, 3 ] } }
input [ { name: "A" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, 8 ] reshape { shape: [ 3, -1 ] } } ]
output { name: "B" data_type: TYPE_STRING dims: [ 1 ] label_filename: "labels.txt" }
optimization { graph { level: 1 } cuda { graphs: true graph_spec { batch_size: 1 input { key: "A" value { dim: 3 } } } }
  execution_accelerators { gpu_execution_accelerator [ { name: "tensorrt" parameters { key: "a" value: "b" } } ] } }
model_warmup [ { name: "w" batch_size: 1 count: 2
  inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 3, 4, 8 ] random_data: true } } } ]
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] rate_limiter { resources { name: "R" count: 4 } priority: 2 } } ]
batch_input { kind: BATCH_ELEMENT_COUNT target_name: "I" data_type: TYPE_INT32 source_input: "A" }
model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { buckets: [ 1, 2 ] } } }
response_cache { enable: true } cc_model_filenames { key: "7.5" value: "a" } parameters { key: "k" }
"""

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[A-Za-z_][\w]*|-?\d+(?:\.\d+)?|\s+|.')
_VALUES = (
    "0", "-1", "1", "2147483647", "2147483648", "-9223372036854775808", "18446744073709551615", "99999999999999999999",
    "1e400", "nan", "-inf", "0x10", "true", "True", "maybe", '""', '"A"', '"\\377"', '"\\000"', "'x'", '"\U0001f600"',
    "TYPE_BF16",
 "TYPE_INVALID", "KIND_MODEL", "[]", "{}", "{", "}", "[", "]", "<", ">", ":", ",", ";", "#", "\ufeff", "\0", "${x}",
)  # fmt: skip


def _field_names(descriptor: Any, seen: set[str]) -> set[str]:
    names = {field.name for field in descriptor.fields}
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.full_name not in seen:
            seen.add(field.message_type.full_name)
            names |= _field_names(field.message_type, seen)
    return names


NAMES = tuple(sorted(_field_names(new_message().DESCRIPTOR, set())))


def _changed(tokens: list[str], dice: random.Random) -> list[str]:
    """A few tokens removed, doubled, moved or replaced."""
    tokens = list(tokens)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        place = dice.randrange(len(tokens))
        end = min(len(tokens), place + dice.choice((1, 1, 1, 5, 20)))
        match dice.randrange(6):
            case 0:
                del tokens[place:end]
            case 1:
                tokens[place:place] = tokens[place:end]
            case 2:
                tokens[place] = dice.choice(_VALUES)
            case 3:
                tokens.insert(place, f" {dice.choice(NAMES)} ")
            case 4:
                tokens[place] = dice.choice(NAMES)
            case 5:
                other = dice.randrange(len(tokens))
                tokens[place], tokens[other] = tokens[other], tokens[place]
        if not tokens:
            return [" "]
    return tokens


def judge(config: ModelConfig, directory: ModelDirectory) -> None:
    """What a load does with a configuration before any backend sees it, and what doctor does."""
    config = msgspec.structs.replace(config, name=config.name or "m")
    steps: list[Callable[[], object]] = [lambda: refuse_unbuilt(config), lambda: all_faults(config)]
    try:
        filled = fill_backend_fields(config, directory)
        whole = normalise(filled, gpus=NO_GPUS, backend_default_cpu_count=1, backend_prefers_gpu=False)
        steps += [lambda: validate(whole), lambda: all_faults(whole), lambda: format_readable(whole)]
        steps += [lambda: warmup_samples(whole, directory.path)]
    except ServerError:
        pass
    for step in steps:
        with suppress(ServerError):
            step()


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").touch()
    return ModelDirectory("m", tmp_path / "m", tmp_path)


SEEDS = {"dynamic": DYNAMIC, "sequence": SEQUENCE, "ensemble": ENSEMBLE, "others": OTHERS}


@pytest.mark.parametrize("name", SEEDS)
def test_no_text_breaks_the_reading(name: str, directory: ModelDirectory) -> None:
    dice = random.Random(7)
    seed = SEEDS[name]
    tokens = _TOKEN.findall(seed)
    assert "".join(tokens).split() == seed.split()
    read = 0
    for _ in range(EXAMPLES // 4):
        text = "".join(_changed(tokens, dice))
        for error in parse_on(text, source="m/config.pbtxt")[1]:
            assert error.message.startswith("m/config.pbtxt:")
        try:
            config = parse_pbtxt(text, source="m/config.pbtxt")
        except ServerError:
            continue
        read += 1
        judge(config, directory)
        whole = format_pbtxt(config)  # not the values themselves: NaN is not equal to itself
        assert format_pbtxt(parse_pbtxt(whole, source="again")) == whole
        assert format_pbtxt(from_json_form(msgspec.json.encode(to_json_form(config)))) == whole
    assert read > EXAMPLES // 200  # else the changes were too coarse to test what comes after the parser


_JSON_VALUES: tuple[object, ...] = (
    None,
    True,
    0,
    -1,
    2**63,
    1e308,
    "",
    "TYPE_FP32",
    "x",
    [],
    {},
    [None],
    [[]],
    {"a": 1},
    "1" * 5000,
)


def _changed_json(value: object, dice: random.Random) -> object:
    if dice.random() < 0.05:
        return dice.choice(_JSON_VALUES)
    if isinstance(value, dict):
        made = {key: _changed_json(each, dice) for key, each in value.items() if dice.random() > 0.03}
        if dice.random() < 0.1:
            made[dice.choice(NAMES)] = dice.choice(_JSON_VALUES)
        return made
    if isinstance(value, list):
        return [_changed_json(each, dice) for each in value for _ in range(dice.choice((1, 1, 1, 1, 2)))]
    return value


def test_no_override_breaks_the_reading(directory: ModelDirectory) -> None:
    """The JSON that a load call brings."""
    dice = random.Random(8)
    forms = [to_json_form(parse_pbtxt(text, source="x")) for text in SEEDS.values()]
    for number in range(EXAMPLES):
        body = msgspec.json.encode(_changed_json(forms[number % len(forms)], dice))
        try:
            config = from_json_form(body)
        except ServerError:
            continue
        judge(config, directory)


@pytest.mark.parametrize(
    "text",
    [
        "input " + "{ reshape " * 3000,
        "<" * 10_000,
        "[" * 10_000,
        "parameters: [" * 5000,
    ],
)
def test_texts_that_nest_or_go_on(text: str) -> None:
    with pytest.raises(ServerError):
        parse_pbtxt(text, source="x")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{ "name": "m" }', "This is JSON"),
        ("max_batch_size: ${batch_size}", "It is a placeholder that was not filled in."),
        ("max_batch_size: {{ batch_size }}", "It is a placeholder that was not filled in."),
        ("// a comment", "Comments begin with '#'."),
        ("input [ { dims: [ 1, ] } ]", "No comma may stand before ']'."),
        ('input { data_type: "TYPE_FP32" }', "Write it without quotes."),
    ],
)
def test_what_was_meant_is_told(text: str, hint: str) -> None:
    with pytest.raises(ServerError) as caught:
        parse_pbtxt(text, source="x")
    assert hint in caught.value.message


def test_a_byte_order_mark_is_skipped() -> None:
    """Notepad writes one, and the original's parser does not mind."""
    assert parse_pbtxt("\ufeffname: 'm'", source="x").name == "m"


def test_a_right_name_with_something_behind_it() -> None:
    """Its nearest name is the name itself."""
    (error,) = parse_on("input { data_type: TYPE_FP32-1 }", source="x")[1]
    assert "TYPE_FP32" in error.message
    assert "Did you mean" not in error.message


def test_numbers_without_an_end_survive() -> None:
    """The last bucket of a histogram may be all the rest."""
    text = "model_metrics { metric_control { histogram_options { buckets: [ 1, inf, -inf ] } } }"
    config = parse_pbtxt(text, source="x")
    assert config.model_metrics is not None
    assert config.model_metrics.metric_control[0].histogram_options is not None
    assert config.model_metrics.metric_control[0].histogram_options.buckets == (1.0, float("inf"), float("-inf"))
    assert parse_pbtxt(format_pbtxt(config), source="x") == config
    assert from_json_form(msgspec.json.encode(to_json_form(config))) == config
