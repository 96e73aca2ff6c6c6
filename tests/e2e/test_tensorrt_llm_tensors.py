"""TensorRT-LLM's tensor names: its documented calls to an engine, and OpenAI's routes before models that have them."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.backends.engines.models import write_model
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

QUESTION = "What is machine learning?"
DOCUMENTED = {"text_input": QUESTION, "max_tokens": 20, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}

# Answers with what it was given, in pieces; as a user of the ensemble's names would write it.
TOLD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            given = {each.name(): each.as_numpy() for each in request.inputs()}
            told = {
                name: [str(value.dtype), list(value.shape), [each.decode() if isinstance(each, bytes) else each
                       for each in value.reshape(-1).tolist()]]
                for name, value in given.items()
            }
            text = json.dumps(told)
            sender = request.get_response_sender()
            for piece in (text[:10], text[10:]):
                outputs = [
                    pb_utils.Tensor("text_output", np.array([[piece.encode()]], dtype=object)),
                    pb_utils.Tensor("num_input_tokens", np.array([[7]], dtype=np.int32)),
                    pb_utils.Tensor("num_output_tokens", np.array([[4]], dtype=np.int32)),
                ]
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_TOLD_INPUTS = {
    "STRING": ("stop_words -1", "bad_words -1", "guided_decoding_guide_type 1", "guided_decoding_guide 1"),
    "INT32": ("max_tokens 1", "top_k 1", "min_tokens 1"),
    "FP32": ("temperature 1", "top_p 1", "frequency_penalty 1", "presence_penalty 1"),
    "UINT64": ("seed 1",),
    "BOOL": ("stream 1", "exclude_input_in_output 1", "return_num_input_tokens 1", "return_num_output_tokens 1"),
}


def told_config() -> str:
    rows = ['input { name: "text_input" data_type: TYPE_STRING dims: 1 }']
    for datatype, tensors in _TOLD_INPUTS.items():
        for name, size in (each.split() for each in tensors):
            rows.append(f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: {size} optional: true }}')
    rows.append('output { name: "text_output" data_type: TYPE_STRING dims: -1 }')
    rows += [f'output {{ name: "num_{each}_tokens" data_type: TYPE_INT32 dims: 1 }}' for each in ("input", "output")]
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    rows.append(f'parameters {{ key: "chat_template" value {{ string_value: "{template}" }} }}')
    return "\n".join(
        ['backend: "python"', "max_batch_size: 4", "model_transaction_policy { decoupled: true }", *rows, ""]
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`ensemble` has a batch dimension, as TensorRT-LLM's has, `flat` has none; `told` is a user's own model; `api` and
    `endless` have the tensors of the LLM-API model."""
    repository = tmp_path_factory.mktemp("tensorrt_llm")
    for name in ("ensemble", "flat"):
        write_model(repository / name, "scripted", tensor_names="tensorrt_llm")
    with (repository / "ensemble" / "config.pbtxt").open("a") as config:
        config.write("max_batch_size: 8\n")
    write_model(repository / "api", "scripted", tensor_names="llm_api")
    write_model(repository / "endless", "scripted", tensor_names="llm_api", rule="repeat", step_seconds=0.01)
    (repository / "told" / "1").mkdir(parents=True)
    (repository / "told" / "1" / "model.py").write_text(TOLD)
    (repository / "told" / "config.pbtxt").write_text(told_config())
    with ServerProcess(repository=repository) as started:
        started.addresses  # noqa: B018 (waits until it serves)
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    url = f"http://{server.addresses['http']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", timeout=60, max_retries=0) as made:
        yield made


def post(server: ServerProcess, model: str, verb: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"http://{server.addresses['http']}/v2/models/{model}/{verb}", json=body, timeout=60)


@pytest.mark.parametrize("model", ["ensemble", "flat"])
def test_the_documented_call_of_generate(server: ServerProcess, model: str) -> None:
    answer = post(server, model, "generate", DOCUMENTED)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["text_output"] == QUESTION * 2, "the prompt, and what the engine repeats"
    assert (found["batch_index"], found["sequence_index"]) == (0, 0)
    without = post(server, model, "generate", {**DOCUMENTED, "exclude_input_in_output": True}).json()
    assert without["text_output"] == QUESTION


@pytest.mark.parametrize("model", ["ensemble", "flat"])
def test_the_documented_call_of_generate_stream(server: ServerProcess, model: str) -> None:
    body = {**DOCUMENTED, "stream": True, "return_log_probs": True, "return_num_output_tokens": True}
    lines = post(server, model, "generate_stream", body).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert len(events) > 2
    assert "".join(event["text_output"] for event in events) == QUESTION
    assert sum(event["num_output_tokens"] for event in events) > 2
    assert all(isinstance(event["cum_log_probs"], float) for event in events)


def test_stop_words_and_the_length(server: ServerProcess) -> None:
    stopped = {**DOCUMENTED, "exclude_input_in_output": True, "stop_words": ["machine", "x"]}
    assert post(server, "ensemble", "generate", stopped).json()["text_output"] == "What is "
    short = {**DOCUMENTED, "exclude_input_in_output": True, "max_tokens": 2, "return_num_output_tokens": True}
    assert post(server, "ensemble", "generate", short).json()["num_output_tokens"] == 2


def test_what_is_not_there_is_refused_by_name(server: ServerProcess) -> None:
    for name, value in (("beam_width", 2), ("return_context_logits", True), ("bad_words", "a")):
        refused = post(server, "flat", "generate", {**DOCUMENTED, name: value})
        assert refused.status_code == 400
        assert name in refused.json()["error"]


def tensors(rows: int, **values: Any) -> list[grpcclient.InferInput]:
    """With a batch dimension, as the project's own clients have it."""
    made = []
    for name, value in values.items():
        array = np.array([[value]] * rows)
        array = array.astype(object) if array.dtype.kind == "U" else array
        made.append(grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array)
    return made


def test_a_stream_over_grpc(server: ServerProcess) -> None:
    """As the ensemble's clients send it: every tensor [1, 1]."""
    answers: queue.Queue[tuple[grpcclient.InferResult | None, Exception | None]] = queue.Queue()
    inputs = tensors(
        1,
        text_input=QUESTION,
        max_tokens=np.int32(64),
        stream=True,
        temperature=np.float32(1),
        top_k=np.int32(1),
        seed=np.uint64(7),
        beam_width=np.int32(1),
        end_id=np.int32(2),
        pad_id=np.int32(2),
    )
    with grpcclient.InferenceServerClient(server.addresses["grpc"]) as grpc:
        grpc.start_stream(lambda result, error: answers.put((result, error)))
        grpc.async_stream_infer("ensemble", inputs, request_id="1", enable_empty_final_response=True)
        text = ""
        while True:
            result, error = answers.get(timeout=60)
            assert error is None
            assert result is not None
            found = result.as_numpy("text_output")
            if found is not None:
                assert found.shape == (1, 1)
                text += found[0][0].decode()
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        grpc.stop_stream()
        assert text == QUESTION
        grpc.start_stream(lambda result, error: answers.put((result, error)))
        grpc.async_stream_infer("ensemble", tensors(2, text_input=QUESTION, max_tokens=np.int32(4)))
        _, error = answers.get(timeout=60)
        assert isinstance(error, InferenceServerException)
        assert "must have one element, got 2" in str(error)


@pytest.mark.parametrize("model", ["ensemble", "flat"])
def test_openais_client_before_the_engine(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt=QUESTION, max_tokens=64, stop=["learn"], seed=-1)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("What is machine ", "stop")
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 2
    cut = client.completions.create(model=model, prompt=QUESTION, max_tokens=2, temperature=0.5)
    assert cut.choices[0].finish_reason == "length"
    with client.completions.create(model=model, prompt=QUESTION, max_tokens=64, stream=True) as chunks:
        assert "".join(chunk.choices[0].text for chunk in chunks) == QUESTION
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.completions.create(model=model, prompt=QUESTION, logprobs=1)


def told(client: openai.OpenAI, **more: Any) -> dict[str, Any]:
    made = client.chat.completions.create(model="told", messages=[{"role": "user", "content": "hi"}], **more)
    content = made.choices[0].message.content
    if content is None:
        calls = made.choices[0].message.tool_calls
        assert calls is not None
        (call,) = calls
        assert call.type == "function"
        content = call.function.arguments
    found: dict[str, Any] = json.loads(content)
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (7, 8)
    return found


def test_what_a_users_own_model_is_given(client: openai.OpenAI) -> None:
    found = told(
        client,
        max_tokens=9,
        stop=["a", "b"],
        temperature=0.5,
        top_p=0.25,
        frequency_penalty=1,
        presence_penalty=-1,
        seed=5,
        extra_body={"top_k": 3, "min_tokens": 1, "bad_words": ["no"]},
    )
    assert found == {
        "text_input": ["object", [1, 1], ["hi"]],
        "stream": ["bool", [1, 1], [False]],
        "exclude_input_in_output": ["bool", [1, 1], [True]],
        "return_num_input_tokens": ["bool", [1, 1], [True]],
        "return_num_output_tokens": ["bool", [1, 1], [True]],
        "max_tokens": ["int32", [1, 1], [9]],
        "stop_words": ["object", [1, 2], ["a", "b"]],
        "bad_words": ["object", [1, 1], ["no"]],
        "temperature": ["float32", [1, 1], [0.5]],
        "top_p": ["float32", [1, 1], [0.25]],
        "frequency_penalty": ["float32", [1, 1], [1.0]],
        "presence_penalty": ["float32", [1, 1], [-1.0]],
        "seed": ["uint64", [1, 1], [5]],
        "top_k": ["int32", [1, 1], [3]],
        "min_tokens": ["int32", [1, 1], [1]],
    }


def test_a_tool_is_asked_for_by_a_guide(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    found = told(client, tools=[tool], tool_choice=choice)
    assert found["guided_decoding_guide_type"] == ["object", [1, 1], ["json_schema"]]
    assert json.loads(found["guided_decoding_guide"][2][0]) == schema


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"extra_body": {"stop_token_ids": [1]}}, "stop_token_ids"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"extra_body": {"guided_choice": ["a", "b"]}}, "structured_outputs"),
    ],
)
def test_what_it_cannot_be_given_is_refused_by_name(client: openai.OpenAI, fields: Any, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as failure:
        told(client, **fields)
    assert failure.value.param == name


def test_the_llm_api_form(server: ServerProcess) -> None:
    body = {"text_input": QUESTION, "sampling_param_max_tokens": 64, "return_finish_reason": True}
    found = post(server, "api", "generate", body).json()
    assert (found["text_output"], found["finish_reason"]) == (QUESTION, "stop")
    more = {"sampling_param_exclude_input_from_output": False, "sampling_param_stop": ["learn"]}
    stopped = post(server, "api", "generate", {**body, **more, "return_stop_reason": True}).json()
    assert (stopped["text_output"], stopped["stop_reason"]) == (f"{QUESTION}What is machine ", "learn")
    lines = post(server, "api", "generate_stream", {**body, "streaming": True}).text.split("\n\n")
    texts = [json.loads(line.removeprefix("data: "))["text_output"] for line in lines if line]
    assert len(texts) > 2
    assert all(after.startswith(before) for before, after in pairwise(texts)), "each has all text so far"
    assert texts[-1] == QUESTION


def test_a_second_request_stops_the_first(server: ServerProcess) -> None:
    url = f"http://{server.addresses['http']}/v2/models/endless"
    body = {"text_input": QUESTION, "sampling_param_max_tokens": 400, "streaming": True}
    with httpx.stream("POST", f"{url}/generate_stream", json=body, headers={"triton-request-id": "7"}) as reply:
        lines = (line for line in reply.iter_lines() if line)
        next(lines)
        other = httpx.post(f"{url}/generate", json={"text_input": "", "stop": True}, headers={"triton-request-id": "8"})
        assert other.json()["text_output"] == ""
        assert "text_output" in json.loads(next(lines).removeprefix("data: ")), "another id stops nothing"
        stop = httpx.post(f"{url}/generate", json={"text_input": "", "stop": True}, headers={"triton-request-id": "7"})
        assert (stop.status_code, stop.json()["text_output"]) == (200, "")
        *_, last = lines
    assert "Request cancelled by client" in last
    nameless = httpx.post(f"{url}/generate", json={"text_input": "", "stop": True})
    assert (nameless.status_code, "A request id must be provided" in nameless.text) == (400, True)


def test_openais_client_before_the_llm_api_form(client: openai.OpenAI) -> None:
    text = "größere 🙂 batches"
    with client.completions.create(model="api", prompt=text, max_tokens=64, stream=True) as chunks:
        choices = [chunk.choices[0] for chunk in chunks]
    assert len(choices) > 2
    assert "".join(choice.text for choice in choices) == text
    assert choices[-1].finish_reason == "stop"
    stopped = client.completions.create(model="api", prompt=QUESTION, max_tokens=64, stop=["learn"])
    assert stopped.choices[0].text == "What is machine "
    assert client.completions.create(model="api", prompt=QUESTION, max_tokens=2).choices[0].finish_reason == "length"
