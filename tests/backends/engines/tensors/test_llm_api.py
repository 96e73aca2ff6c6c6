"""Requests as clients of TensorRT-LLM's LLM-API model write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.engines.tensors.images import Given
from backends.engines.tensors.llm_api import INPUTS, parse_llm_api
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from tests.backends.helpers import objects

DATATYPES = {name: datatype for name, datatype, _ in INPUTS}


def request(request_id: str = "", /, **tensors: Any) -> InferenceRequest:
    """Names without a prefix of their own are those of sampling parameters."""
    inputs = []
    for given, value in tensors.items():
        name = given if given in DATATYPES else f"sampling_param_{given}"
        values = value if isinstance(value, list) else [value]
        array = objects(*values) if isinstance(values[0], str) else np.array(values, DATATYPES[name].dtype)
        inputs.append(Tensor.from_numpy(name, array))
    return InferenceRequest("m", inputs, id=request_id)


def test_the_least_that_there_is() -> None:
    parsed = parse_llm_api(request(text_input="x"))
    assert (parsed.text, parsed.sampling.temperature, parsed.options.accumulates) == ("x", 0, True)
    assert (parsed.options.has_prompt, parsed.options.is_streaming) == (False, False)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_tokens", 5, 5),
        ("temperature", 0.5, 0.5),
        ("top_k", 5, 5),
        ("top_p", 0.5, 0.5),
        ("seed", 5, 5),
        ("frequency_penalty", 0.5, 0.5),
        ("presence_penalty", 0.5, 0.5),
    ],
)
def test_sampling_parameters(name: str, value: float, expected: float) -> None:
    assert getattr(parse_llm_api(request(text_input="x", **{name: value})).sampling, name) == expected


def test_what_is_shown() -> None:
    shown = parse_llm_api(request(text_input="x", exclude_input_from_output=False)).options
    assert shown.has_prompt
    streamed = parse_llm_api(request(text_input="x", exclude_input_from_output=False, streaming=True)).options
    assert (streamed.has_prompt, streamed.is_streaming) == (False, True)
    extras = parse_llm_api(request(text_input="x", return_finish_reason=True, return_cumulative_logprob=True))
    assert extras.options.extras == {"finish_reason", "cumulative_logprob"}
    assert extras.sampling.logprobs == 0


def test_an_adapter_by_its_name() -> None:
    parsed = parse_llm_api(request(text_input="x", lora_id=1, lora_name="poet", lora_path="/p", lora_ckpt_source="hf"))
    assert parsed.sampling.lora_name == "poet"


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"best_of": 2}, "best_of 2 is not supported"),
        ({"return_perf_metrics": True}, "'sampling_param_return_perf_metrics' True is not supported"),
        ({"logits_post_processor_name": "p"}, "'sampling_param_logits_post_processor_name' 'p' is not supported"),
        ({"image_url": "file:///x"}, "image_url: expected a data URL .* got b'file:///x'"),
        ({"lora_ckpt_source": "nemo"}, "'lora_ckpt_source' 'nemo' is not supported"),
    ],
)
def test_what_is_refused_by_name(tensors: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        parse_llm_api(request(text_input="x", **tensors))


def test_pictures() -> None:
    assert parse_llm_api(request(text_input="x", image_url=["data:image/png;base64,YQ=="])).images == [
        Given("image_url", b"YQ==")
    ]
    assert not parse_llm_api(request(text_input="x", image_url="")).images


def test_a_stop_needs_an_id() -> None:
    stop = Tensor.from_numpy("stop", np.array([True]))
    assert parse_llm_api(InferenceRequest("m", [stop], id="7")).stops_id == "7"
    with pytest.raises(InvalidArgument, match="A request id must be provided for request cancellation"):
        parse_llm_api(InferenceRequest("m", [stop]))
    assert parse_llm_api(InferenceRequest("m", [Tensor.from_numpy("text_input", objects("x"))], id="7")).stops_id == ""
