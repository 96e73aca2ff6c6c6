"""Inference with NVIDIA's clients: every datatype, batches, versions, outputs, ids, streams."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.e2e.client import Array, Client, add_sub_inputs, outputs_of, slow_inputs, tensors
from tests.e2e.repository import NUMPY_TYPES
from tests.e2e.server_process import TIMEOUT_SECONDS

# The extremes of each datatype; what a careless copy would spoil.
VALUES: dict[str, Array] = {
    "BOOL": np.array([True, False, True]),
    **{
        (word + bits).upper(): np.array([np.iinfo(word + bits).min, 1, np.iinfo(word + bits).max], word + bits)
        for word in ("uint", "int")
        for bits in ("8", "16", "32", "64")
    },
    "FP16": np.array([-65504, 0.5, np.inf], np.float16),
    "FP32": np.array([-1.5, np.nan, 3.4e38], np.float32),
    "FP64": np.array([-1.5, 5e-324, np.inf], np.float64),
    "BYTES": np.array([b"", "Größe".encode(), b"\x00\xff" * 1000], np.object_),
    "BF16": np.array([-1.5, 0.1, np.inf], ml_dtypes.bfloat16),
}
MODELS = [("onnx_types", NUMPY_TYPES, "IN_"), ("onnx_bf16", ("BF16",), "IN_"), ("python_types", NUMPY_TYPES, "")]


@pytest.mark.parametrize(("model", "types", "prefix"), MODELS)
@pytest.mark.parametrize("length", [3, 0])
def test_every_datatype_comes_back_as_it_went(
    client: Client, model: str, types: tuple[str, ...], prefix: str, length: int
) -> None:
    """Also tensors without elements. Bytes of a Python model may be any; those of ONNX are text."""
    sent = {name: VALUES[name][:length] for name in types}
    if model == "onnx_types":
        sent["BYTES"] = np.array([b"", "Größe".encode(), b"x" * 1000], np.object_)[:length]
    answers = client.infer(model, {prefix + name: array for name, array in sent.items()})
    assert set(answers) == set(types)
    for name, array in sent.items():
        assert answers[name].dtype == array.dtype, name
        np.testing.assert_array_equal(answers[name], array, err_msg=name)


@pytest.mark.parametrize(("model", "prefix"), [("onnx_types", "IN_"), ("python_types", "")])
def test_every_datatype_as_json(http: Client, model: str, prefix: str) -> None:
    """JSON knows no FP16, which goes the binary way in the same request. Text must be UTF-8."""
    binary = {"FP16"}
    sent = {name: VALUES[name] for name in NUMPY_TYPES}
    sent["BYTES"] = np.array(["", "Größe", 'quote " and \n'], np.object_)
    sent["FP32"] = np.array([-1.5, 0.1, 3.4e38], np.float32)
    sent["FP64"] = np.array([-1.5, 5e-324, 0.1], np.float64)
    made = [
        tensor
        for name, array in sent.items()
        for tensor in http.tensors({prefix + name: array}, binary_data=name in binary)
    ]
    wanted = [http.api.InferRequestedOutput(name, binary_data=name in binary) for name in sent]
    answers = outputs_of(http.raw.infer(model, made, outputs=wanted))
    for name, array in sent.items():
        if name == "BYTES":
            assert [str(text) for text in answers[name]] == list(array)
        else:
            np.testing.assert_array_equal(answers[name], array, err_msg=name)


def test_versions_and_the_latest(client: Client) -> None:
    """Without a version the highest one answers, and says that it was it."""
    inputs = add_sub_inputs(3)
    difference = inputs["INPUT0"] - inputs["INPUT1"]
    for version, expected in (("1", difference), ("2", -difference), ("", -difference)):
        result = client.raw.infer("add_sub", client.tensors(inputs), model_version=version, request_id="the-id")
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), expected)
        response = result.get_response()
        told = response if isinstance(response, dict) else {"id": response.id, "model_version": response.model_version}
        assert told["id"] == "the-id"
        assert told["model_version"] == (version or "2")


def test_only_the_outputs_that_were_asked_for(client: Client) -> None:
    inputs = add_sub_inputs()
    assert set(client.infer("add_sub", inputs, outputs=["OUTPUT1"])) == {"OUTPUT1"}
    assert list(client.infer("add_sub", inputs, outputs=["OUTPUT1", "OUTPUT0"])) in (
        ["OUTPUT1", "OUTPUT0"],
        ["OUTPUT0", "OUTPUT1"],
    )
    assert set(client.infer("add_sub", inputs)) == {"OUTPUT0", "OUTPUT1"}


def test_requests_carry_batches_of_their_own(client: Client) -> None:
    """Of any size up to the maximum."""
    for rows in (1, 3, 8):
        inputs = add_sub_inputs(rows, seed=rows)
        answers = client.infer("add_sub", inputs, model_version="1")
        np.testing.assert_array_equal(answers["OUTPUT0"], inputs["INPUT0"] + inputs["INPUT1"])


def test_a_python_model_that_completed_itself(client: Client) -> None:
    sent = np.arange(6, dtype=np.int32).reshape(2, 3)
    np.testing.assert_array_equal(client.infer("completed", {"X": sent})["Y"], sent * 2)


def test_requests_are_run_together(grpc: Client) -> None:
    """Four requests make one batch of the preferred size; each gets its own rows back."""

    def ask(_: int) -> list[list[int]]:
        counts: list[list[int]] = grpc.infer("count_batch", {"X": np.zeros((1, 1), np.float32)})["COUNTS"].tolist()
        return counts

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [[[4, 4]]] * 4


def test_requests_of_several_rows_are_run_together(http: Client) -> None:
    """Batches are counted in rows: 1 and 3 make the preferred 4."""
    pending = [
        http.raw.async_infer("count_batch", http.tensors({"X": np.zeros((rows, 1), np.float32)})) for rows in (1, 3)
    ]
    answers = [request.get_result().as_numpy("COUNTS").tolist() for request in pending]
    assert answers == [[[2, 4]], [[2, 4]] * 3]


def test_two_requests_run_at_once_on_two_instances(grpc: Client) -> None:
    """A short request overtakes a long one that came first: each instance has a process of its own."""
    order: queue.Queue[int] = queue.Queue()

    def ask(value: int, seconds: float) -> None:
        assert grpc.infer("slow", slow_inputs(value, seconds))["VALUE"].tolist() == [value]
        order.put(value)

    with ThreadPoolExecutor(2) as threads:
        for asked in [threads.submit(ask, 1, 2.0), threads.submit(ask, 2, 0.0)]:
            asked.result()
    assert [order.get(), order.get()] == [2, 1]


@pytest.mark.parametrize("size", [0, 1, 600_000, 20_000_000])
def test_tensors_of_any_size(client: Client, size: int) -> None:
    """Bigger than any buffer on the way, and bigger than the limit on JSON; to a process and back."""
    sent = {name: VALUES[name][:0] for name in NUMPY_TYPES}
    sent["UINT8"] = np.arange(size, dtype=np.uint64).astype(np.uint8)
    answers = client.infer("python_types", sent, outputs=["UINT8"])
    np.testing.assert_array_equal(answers["UINT8"], sent["UINT8"])


def test_a_compressed_request_and_answer(http: Client) -> None:
    inputs = add_sub_inputs(8)
    for algorithm in ("gzip", "deflate"):
        result = http.raw.infer(
            "add_sub",
            http.tensors(inputs),
            model_version="1",
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), inputs["INPUT0"] + inputs["INPUT1"])


def test_a_stream_of_requests(grpc: Client) -> None:
    """Each request of a stream is answered; an error ends one request and not the stream."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc.api.InferenceServerClient(grpc.address) as streaming:
        streaming.start_stream(lambda result, error: answers.put((result, error)))
        for i in range(5):
            model = "add_sub" if i != 2 else "absent"
            streaming.async_stream_infer(model, tensors(grpc.api, add_sub_inputs(seed=i)), request_id=str(i))
        told = [answers.get(timeout=TIMEOUT_SECONDS) for _ in range(5)]
        streaming.stop_stream()
    errors = [error for _, error in told if error is not None]
    assert len(errors) == 1
    assert "absent" in errors[0].message()
    results = {result.get_response().id: result for result, _ in told if result is not None}
    assert set(results) == {"0", "1", "3", "4"}
    for name, result in results.items():
        inputs = add_sub_inputs(seed=int(name))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), inputs["INPUT0"] + inputs["INPUT1"])


def test_a_client_that_gives_up_leaves_the_model_serving(grpc: Client) -> None:
    """Its deadline passes while the model sleeps; the next request is answered."""
    with pytest.raises(grpc.api.InferenceServerException, match=r"(?i)deadline"):
        grpc.infer("slow", slow_inputs(1, 2.0), client_timeout=0.1)
    assert grpc.infer("slow", slow_inputs(5, 0.0))["VALUE"].tolist() == [5]
