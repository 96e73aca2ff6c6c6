"""Requests as clients of TensorRT-LLM's ensemble write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.engines.answer import Answer
from backends.engines.tensors.images import Given
from backends.engines.tensors.sets import TENSORRT_LLM, VLLM, tensor_set
from backends.engines.tensors.tensorrt_llm import INPUTS, parse_tensorrt_llm
from backends.engines.worker.trioton_engine.engine import Event, TokenLogprob
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from repository.pbtxt import parse_pbtxt
from tests.backends.engines.models import tiny_tokenizer
from tests.backends.helpers import objects

DATATYPES = {name: datatype for name, datatype, _ in INPUTS}
WHERE = "model 'm': "


def request(parameters: dict[str, Any] | None = None, /, *, row: bool = False, **tensors: Any) -> InferenceRequest:
    """Each value in a tensor of the datatype that the ensemble has; with `row` it has a batch dimension."""
    inputs = []
    for name, value in tensors.items():
        values = value if isinstance(value, list) else [value]
        array = objects(*values) if isinstance(values[0], str) else np.array(values, DATATYPES[name].dtype)
        inputs.append(Tensor.from_numpy(name, array.reshape(1, -1) if row else array))
    return InferenceRequest("m", inputs, parameters=parameters or {})


def asked(**tensors: Any) -> dict[str, Any]:
    """The sampling fields that are not as they are by default."""
    fields = parse_tensorrt_llm(request(text_input="x", **tensors)).sampling
    default = type(fields)()
    return {
        name: value
        for name in type(fields).__struct_fields__
        if (value := getattr(fields, name)) != getattr(default, name)
    }


def with_tensors(**arrays: Any) -> InferenceRequest:
    made = request(text_input="x")
    return InferenceRequest("m", [*made.inputs, *(Tensor.from_numpy(*each) for each in arrays.items())])


def test_pictures() -> None:
    url = objects("data:image/jpeg;base64,YQ==").reshape(1, 1)
    assert parse_tensorrt_llm(with_tensors(image_url_input=url)).images == [Given("image_url_input", b"YQ==")]
    pixels = np.zeros((1, 2, 200, 300, 3), np.uint8)
    found = parse_tensorrt_llm(with_tensors(image_bytes_input=pixels)).images
    assert [(each.input, np.shape(each.data)) for each in found] == [("image_bytes_input", (200, 300, 3))] * 2
    for arrays, text in (
        ({"image_url_input": url, "image_bytes_input": pixels}, "'image_url_input' and 'image_bytes_input' exclude"),
        ({"image_input": np.zeros((1, 3, 2, 2), np.float16)}, "'image_input' is not supported"),
        ({"video_bytes_input": pixels}, "'video_bytes_input' is not supported"),
        ({"image_url_input": objects("file:///x")}, "image_url_input: expected a data URL"),
        ({"image_bytes_input": np.zeros(5, np.uint8)}, "image_bytes_input: expected UINT8 with the axes"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            parse_tensorrt_llm(with_tensors(**arrays))


@pytest.mark.parametrize("row", [False, True])
def test_the_documented_call(row: bool) -> None:
    made = request(
        row=row, text_input="What is machine learning?", max_tokens=20, bad_words="", stop_words="", pad_id=2, end_id=2
    )
    parsed = parse_tensorrt_llm(made)
    assert parsed.text == "What is machine learning?"
    assert (parsed.sampling.max_tokens, parsed.sampling.temperature) == (20, 0)
    assert parsed.sampling.stop_token_ids == (2,)
    assert (parsed.sampling.stops, parsed.sampling.bad_words) == ((), None)
    assert (parsed.options.has_prompt, parsed.options.is_streaming) == (True, False)
    assert parsed.options.row == ((1,) if row else ())


@pytest.mark.parametrize(
    ("tensors", "fields"),
    [
        ({}, {"temperature": 0}),
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"top_k": 5}, {"top_k": 5}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"top_p": 0.0}, {"temperature": 0}),
        ({"top_k": 1, "seed": 2**64 - 1}, {"top_k": 1, "seed": 2**64 - 1}),
        ({"top_k": 1, "min_tokens": 3}, {"top_k": 1, "min_tokens": 3}),
        ({"top_k": 1, "repetition_penalty": 1.5}, {"top_k": 1, "repetition_penalty": 1.5}),
        ({"top_k": 1, "presence_penalty": 0.5}, {"top_k": 1, "presence_penalty": 0.5}),
        ({"top_k": 1, "frequency_penalty": 0.5}, {"top_k": 1, "frequency_penalty": 0.5}),
        ({"top_k": 1, "stop_words": ["a", "", "b"]}, {"top_k": 1, "stop": ("a", "b")}),
        ({"top_k": 1, "bad_words": ["a"]}, {"top_k": 1, "bad_words": ("a",)}),
        ({"top_k": 1, "end_id": -1}, {"top_k": 1, "ignore_eos": True}),
        ({"top_k": 1, "return_log_probs": True}, {"top_k": 1, "logprobs": 0}),
        ({"top_k": 1, "lora_task_id": 7}, {"top_k": 1, "lora_name": "7"}),
        (
            {"top_k": 1, "guided_decoding_guide_type": "json_schema", "guided_decoding_guide": "{}"},
            {"top_k": 1, "structured_outputs": {"json": "{}"}},
        ),
        ({"top_k": 1, "guided_decoding_guide_type": "json"}, {"top_k": 1, "structured_outputs": {"json_object": True}}),
        (
            {"top_k": 1, "guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": "g"},
            {"top_k": 1, "structured_outputs": {"grammar": "g"}},
        ),
        ({"top_k": 1, "pad_id": 3, "beam_width": 1, "length_penalty": 1.0, "num_return_sequences": 1}, {"top_k": 1}),
        ({"top_k": 1, "return_context_logits": False, "decoder_text_input": ""}, {"top_k": 1}),
    ],
)
def test_what_becomes_of_each_input(tensors: dict[str, Any], fields: dict[str, Any]) -> None:
    assert asked(**tensors) == fields


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"beam_width": 2}, "'beam_width' 2 is not supported"),
        ({"num_return_sequences": 2}, "'num_return_sequences' 2 is not supported"),
        ({"length_penalty": 0.5}, "'length_penalty' 0.5 is not supported"),
        ({"return_context_logits": True}, "'return_context_logits' True is not supported"),
        ({"return_generation_logits": True}, "'return_generation_logits' True is not supported"),
        ({"return_perf_metrics": True}, "'return_perf_metrics' True is not supported"),
        ({"embedding_bias_words": ["a"]}, "'embedding_bias_words' 'a' is not supported"),
        ({"lora_weights": [0.5]}, "'lora_weights' is not supported"),
        ({"prompt_vocab_size": 0}, "'prompt_vocab_size' is not supported"),
        ({"decoder_text_input": "a"}, "'decoder_text_input' 'a' is not supported"),
        ({"guided_decoding_guide": "a"}, "'guided_decoding_guide_type' must be one of json, json_schema, regex"),
        ({"max_tokens": [1, 2]}, "'max_tokens' must have one element, got 2"),
        ({"top_p": 2.0}, "top_p: Expected `float` <= 1.0"),
        ({"max_tokens": 0}, "max_tokens: Expected `int` >= 1"),
    ],
)
def test_what_is_refused_by_name(tensors: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        parse_tensorrt_llm(request(text_input="x", **tensors))
    assert failure.value.message.startswith(WHERE)
    assert text in failure.value.message


def test_one_row_at_a_time() -> None:
    with pytest.raises(InvalidArgument, match="'text_input' must have one element, got 2"):
        parse_tensorrt_llm(request(text_input=["a", "b"], row=True))


def test_parameters_count_where_there_is_no_input() -> None:
    parsed = parse_tensorrt_llm(request({"min_p": 0.5, "temperature": 0.7, "lora_name": "poet"}, text_input="x"))
    assert (parsed.sampling.min_p, parsed.sampling.temperature, parsed.sampling.lora_name) == (0.5, 0.7, "poet")


TOKENIZER = tiny_tokenizer()


def outputs(made: InferenceRequest) -> dict[str, tuple[str, tuple[int, ...], list[Any]]]:
    parsed = parse_tensorrt_llm(made)
    answer = Answer(made, parsed.options, TOKENIZER, prompt="", prompt_tokens=3, version=1)
    answer.push(Event(1, TOKENIZER.encode("The", add_special_tokens=False), logprobs=[TokenLogprob(-0.5)]))
    answer.push(Event(1, TOKENIZER.encode(" in", add_special_tokens=False)[:1], "length", logprobs=[TokenLogprob(-1)]))
    return {
        each.name: (each.datatype.name, each.shape, each.as_numpy().reshape(-1).tolist())
        for each in answer.take().outputs
    }


@pytest.mark.parametrize("row", [(), (1,)])
def test_the_outputs(row: tuple[int, ...]) -> None:
    found = outputs(
        request(
            row=bool(row),
            text_input="x",
            return_log_probs=True,
            return_num_input_tokens=True,
            return_num_output_tokens=True,
        )
    )
    text = found.pop("text_output")
    assert text[:2] == ("BYTES", (*row, 1))
    assert found == {
        "cum_log_probs": ("FP32", (*row, 1), [-1.5]),
        "output_log_probs": ("FP32", (*row, 1, 2), [-0.5, -1.0]),
        "batch_index": ("INT32", (*row, 1), [0]),
        "sequence_index": ("INT32", (*row, 1), [0]),
        "num_input_tokens": ("INT32", (*row, 1), [3]),
        "num_output_tokens": ("INT32", (*row, 1), [2]),
    }


def test_outputs_that_are_not_asked_for_are_left_out() -> None:
    assert set(outputs(request(text_input="x"))) == {"text_output", "batch_index", "sequence_index"}


@pytest.mark.parametrize(("text", "expected"), [("", VLLM), ('"vllm"', VLLM), ('"tensorrt_llm"', TENSORRT_LLM)])
def test_the_parameter_chooses(text: str, expected: object) -> None:
    given = f'parameters {{ key: "tensor_names" value {{ string_value: {text} }} }}' if text else ""
    assert tensor_set(parse_pbtxt(f'backend: "scripted" {given}', source="config.pbtxt")) is expected


def test_another_one_is_refused() -> None:
    config = parse_pbtxt(
        'name: "m" parameters { key: "tensor_names" value { string_value: "x" } }', source="config.pbtxt"
    )
    with pytest.raises(InvalidArgument, match="expected 'vllm' or 'tensorrt_llm' or 'llm_api'"):
        tensor_set(config)


@pytest.mark.parametrize("name", ["embedding_bias_weights", "lora_weights", "stop_words"])
def test_more_elements_than_anybody_needs_are_refused_unread(name: str) -> None:
    many: Any = np.full(1 << 15, b"", np.object_) if name == "stop_words" else np.zeros(1 << 15, np.float32)
    with pytest.raises(InvalidArgument, match=f"'{name}' may have 16384 elements, got 32768"):
        parse_tensorrt_llm(request(text_input="x", max_tokens=np.array([1], np.int32), **{name: many}))
