"""Wrong requests: each gets its status and a sentence that says what was expected and what came; none does harm.

After each of them the same server answers a right request: the fixture `unharmed` sees to it.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs, status_of
from tests.e2e.conftest import MAX_INPUT_SIZE
from tests.e2e.raw import Answer, infer_bytes, infer_json, post, read_answer
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess


@pytest.fixture(autouse=True)
def unharmed(http: Client, grpc: Client) -> Iterator[None]:
    yield
    inputs = add_sub_inputs()
    for client in (http, grpc):
        np.testing.assert_array_equal(client.infer("add_sub", inputs)["OUTPUT0"], inputs["INPUT0"] + inputs["INPUT1"])


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


ROW = array(1, 16)
# name: model, inputs, more arguments, status, pieces of the text
WRONG_REQUESTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, tuple[str, ...]]] = {
    "unknown model": ("absent", {"INPUT0": ROW}, {}, "NOT_FOUND", ("unknown model", "'absent'")),
    "unknown version": (
        "add_sub",
        {"INPUT0": ROW, "INPUT1": ROW},
        {"model_version": "9"},
        "NOT_FOUND",
        ("'add_sub'", "version 9"),
    ),
    "missing input": (
        "add_sub",
        {"INPUT0": ROW},
        {},
        "INVALID_ARGUMENT",
        ("expected 2 inputs but got 1", "'add_sub'", "INPUT1"),
    ),
    "extra input": (
        "add_sub",
        {"INPUT0": ROW, "INPUT1": ROW, "INPUT2": ROW},
        {},
        "INVALID_ARGUMENT",
        ("INPUT2", "'add_sub'"),
    ),
    "another input's name": (
        "add_sub",
        {"INPUT0": ROW, "OTHER": ROW},
        {},
        "INVALID_ARGUMENT",
        ("OTHER", "'add_sub'"),
    ),
    "wrong datatype": (
        "add_sub",
        {"INPUT0": ROW, "INPUT1": array(1, 16, dtype=np.int32)},
        {},
        "INVALID_ARGUMENT",
        ("'INPUT1'", "INT32", "FP32"),
    ),
    "wrong shape": (
        "add_sub",
        {"INPUT0": ROW, "INPUT1": array(1, 15)},
        {},
        "INVALID_ARGUMENT",
        ("'INPUT1'", "[-1,16]", "[1,15]"),
    ),
    "wrong rank": (
        "add_sub",
        {"INPUT0": array(1, 16, 1), "INPUT1": array(1, 16, 1)},
        {},
        "INVALID_ARGUMENT",
        ("'INPUT0'", "[-1,16]", "[1,16,1]"),
    ),
    "batches that differ": (
        "add_sub",
        {"INPUT0": ROW, "INPUT1": array(2, 16)},
        {},
        "INVALID_ARGUMENT",
        ("'INPUT1'", "batch size"),
    ),
    "batch over the maximum": (
        "add_sub",
        {"INPUT0": array(9, 16), "INPUT1": array(9, 16)},
        {},
        "INVALID_ARGUMENT",
        ("batch-size must be <= 8", "'add_sub'"),
    ),
    "empty batch": (
        "add_sub",
        {"INPUT0": array(0, 16), "INPUT1": array(0, 16)},
        {},
        "INVALID_ARGUMENT",
        ("add_sub",),
    ),
}


@pytest.mark.parametrize("name", WRONG_REQUESTS)
def test_requests_that_a_model_cannot_take(client: Client, name: str) -> None:
    """Both protocols refuse them alike."""
    model, inputs, more, status, pieces = WRONG_REQUESTS[name]
    with pytest.raises(InferenceServerException) as raised:
        client.infer(model, inputs, **more)
    assert status_of(raised.value) == status
    for piece in pieces:
        assert piece in raised.value.message(), raised.value.message()


def test_an_output_that_does_not_exist(client: Client) -> None:
    with pytest.raises(
        InferenceServerException, match=r"unexpected inference output 'OTHER' for model 'add_sub'"
    ) as raised:
        client.infer("add_sub", add_sub_inputs(), outputs=["OTHER"])
    assert status_of(raised.value) == "INVALID_ARGUMENT"


def test_an_output_that_is_requested_twice(client: Client) -> None:
    with pytest.raises(InferenceServerException) as raised:
        client.infer("add_sub", add_sub_inputs(), outputs=["OUTPUT0", "OUTPUT1", "OUTPUT0"])
    assert status_of(raised.value) == "INVALID_ARGUMENT"
    assert "output 'OUTPUT0' " in str(raised.value)


@pytest.mark.parametrize("length", [0, 63, 65])
def test_data_that_do_not_fill_the_shape(client: Client, length: int) -> None:
    """One input's bytes are too few or too many for [1,16] FP32."""
    inputs = client.tensors(add_sub_inputs())
    if client.protocol == "http":
        inputs[0]._raw_data = b"\0" * length
        inputs[0]._parameters["binary_data_size"] = length
    else:
        inputs[0]._raw_content = b"\0" * length
    with pytest.raises(InferenceServerException) as raised:
        client.raw.infer("add_sub", inputs)
    assert status_of(raised.value) == "INVALID_ARGUMENT"
    for piece in ("'INPUT0'", "64", str(length)):
        assert piece in raised.value.message(), raised.value.message()


@pytest.mark.parametrize(
    ("elements", "pieces"),
    [
        (b"\x05\0\0", ("string length indicator",)),
        (b"\x05\0\0\0abc", ("5",)),
        (b"", ("expected 1 string elements", "got 0")),
        (b"\0\0\0\0\0\0\0\0", ("expect",)),
    ],
)
def test_broken_strings(client: Client, elements: bytes, pieces: tuple[str, ...]) -> None:
    """Lengths that are cut off, that point past the end, too few elements, too many."""
    inputs = client.tensors({"ACTION": np.array([b"live"], np.object_)})
    if client.protocol == "http":
        inputs[0]._raw_data = elements
        inputs[0]._parameters["binary_data_size"] = len(elements)
    else:
        inputs[0]._raw_content = elements
    with pytest.raises(InferenceServerException) as raised:
        client.raw.infer("fragile", inputs)
    assert status_of(raised.value) == "INVALID_ARGUMENT"
    for piece in ("'ACTION'", *pieces):
        assert piece in raised.value.message(), raised.value.message()


def json_request(**changes: Any) -> dict[str, Any]:
    """A right request to `add_sub`, its second input changed."""
    return {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": [0] * 16},
            {"name": "INPUT1", "datatype": "FP32", "shape": [1, 16], "data": [0] * 16, **changes},
        ]
    }


WRONG_JSON: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no JSON": (b"{not json", ("failed to parse the request JSON buffer",)),
    "cut off": (json.dumps(json_request()).encode()[:-2], ("failed to parse the request JSON buffer",)),
    "not UTF-8": (b'{"inputs": "\xff"}', ()),
    "an array": ([], ("non-object",)),
    "no inputs": ({}, ("inputs",)),
    "inputs that are no array": ({"inputs": 1}, ("inputs",)),
    "an input that is no object": ({"inputs": [1]}, ()),
    "no datatype": ({"inputs": [{"name": "INPUT0", "shape": [1, 16], "data": [0] * 16}]}, ("datatype",)),
    "an unknown datatype": (json_request(datatype="FP31"), ("datatype", "INPUT1")),
    "FP16 as JSON": (json_request(datatype="FP16"), ("FP16", "INPUT1")),
    "a negative dimension": (json_request(shape=[-1, 16]), ("shape",)),
    "dimensions that are text": (json_request(shape=["1", "16"]), ("shape",)),
    "a huge dimension": (json_request(shape=[2**63, 16]), ()),
    "2**63 elements": (json_request(shape=[2**32, 2**31]), ("INPUT1", "9223372036854775807")),
    "2**62 elements of 4 bytes": (json_request(shape=[2**31, 2**31]), ("INPUT1",)),
    "too few elements": (json_request(data=[0] * 15), ("shape",)),
    "too many elements": (json_request(data=[0] * 17), ("shape",)),
    "text for numbers": (json_request(data=["a"] * 16), ()),
    "data too deep": (json_request(data=json.loads("[" * 200 + "]" * 200)), ()),
    "no data": ({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 16]}]}, ("INPUT0", "data")),
    "a parameter of a wrong type": ({**json_request(), "parameters": {"priority": "high"}}, ("priority",)),
}


@pytest.mark.parametrize("name", WRONG_JSON)
def test_wrong_json(server: ServerProcess, name: str) -> None:
    """Never a 500: the client is told what is wrong with what it sent."""
    request, pieces = WRONG_JSON[name]
    answer = infer_json(server.addresses["http"], "add_sub", request)
    assert answer.status == 400, answer
    assert answer.text
    for piece in pieces:
        assert piece in answer.text, answer.text


@pytest.mark.parametrize(
    ("length", "pieces"),
    [
        ("1000000", ("inference header size should be in range (0, ", "1000000")),
        ("-1", ("-1",)),
        ("x", ("Unable to parse Inference-Header-Content-Length, got: x",)),
        ("99999999999999999999", ("99999999999999999999",)),
    ],
)
def test_wrong_header_lengths(server: ServerProcess, length: str, pieces: tuple[str, ...]) -> None:
    """Past the body, negative, no number, no number that fits."""
    body = json.dumps(json_request()).encode()
    answer = post(
        server.addresses["http"], "/v2/models/add_sub/infer", body, {"Inference-Header-Content-Length": length}
    )
    assert answer.status == 400
    for piece in pieces:
        assert piece in answer.text, answer.text


def test_binary_data_that_are_not_there(server: ServerProcess) -> None:
    """The JSON part announces more bytes than follow it; or fewer."""
    header = json.dumps(
        {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}]}
    ).encode()
    for tail, piece in ((b"\0" * 7, "unexpected size for input 'X'"), (b"\0" * 9, "unexpected additional input data")):
        answer = post(
            server.addresses["http"],
            "/v2/models/completed/infer",
            header + tail,
            {"Inference-Header-Content-Length": str(len(header))},
        )
        assert answer.status == 400
        assert piece in answer.text


def test_a_body_over_the_limit_is_refused_while_it_comes(server: ServerProcess) -> None:
    """The answer is there though most of the announced body was never sent."""
    connection = http.client.HTTPConnection(server.addresses["http"], timeout=TIMEOUT_SECONDS)
    connection.putrequest("POST", "/v2/models/add_sub/infer")
    connection.putheader("Content-Length", str(100 * MAX_INPUT_SIZE))
    connection.endheaders()
    connection.send(b" " * (2 * MAX_INPUT_SIZE))
    answer = read_answer(connection)
    connection.close()
    assert answer.status in (400, 413)
    assert str(MAX_INPUT_SIZE) in answer.text


def test_an_endless_body_is_refused(server: ServerProcess) -> None:
    """A chunked body that announces no size, and goes on past the limit."""
    connection = http.client.HTTPConnection(server.addresses["http"], timeout=TIMEOUT_SECONDS)
    connection.putrequest("POST", "/v2/models/add_sub/infer")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    chunk = b" " * 65536
    for _ in range(2 * MAX_INPUT_SIZE // len(chunk)):
        connection.send(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
    answer = read_answer(connection)
    connection.close()
    assert answer.status in (400, 413)
    assert str(MAX_INPUT_SIZE) in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/add_sub/infer/", 404),
        ("/v2/models/add_sub/versions/x/infer", 404),
        ("/v2/models/add_sub/versions/99999999999999999999/infer", 400),
        ("/v2/health/live", 405),
        ("/nowhere", 404),
    ],
)
def test_wrong_paths(server: ServerProcess, path: str, status: int) -> None:
    assert post(server.addresses["http"], path, b"{}").status == status


def grpc_message(**changes: Any) -> Any:
    message = service_pb2.ModelInferRequest(model_name="add_sub")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="FP32", shape=[1, 16])
        message.raw_input_contents.append(b"\0" * 64)
    for name, value in changes.items():
        setattr(message.inputs[1], name, value) if name == "datatype" else None
    if "shape" in changes:
        del message.inputs[1].shape[:]
        message.inputs[1].shape.extend(changes["shape"])
    return message


def without_last_content() -> Any:
    message = grpc_message()
    del message.raw_input_contents[-1]
    return message


def with_both_contents() -> Any:
    message = grpc_message()
    message.inputs[0].contents.fp32_contents.extend([0.0] * 16)
    return message


WRONG_MESSAGES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "no protobuf": (b"\xff\xff\xff\xff", ()),
    "cut off": (grpc_message().SerializeToString()[:-3], ()),
    "empty": (b"", ()),
    "an unknown datatype": (grpc_message(datatype="FP31").SerializeToString(), ("FP31",)),
    "a negative dimension": (grpc_message(shape=[-1, 16]).SerializeToString(), ("INPUT1",)),
    "2**63 elements": (grpc_message(shape=[2**32, 2**31]).SerializeToString(), ("INPUT1",)),
    "2**62 elements of 4 bytes": (grpc_message(shape=[2**31, 2**31]).SerializeToString(), ("INPUT1",)),
    "fewer contents than inputs": (without_last_content().SerializeToString(), ()),
    "contents twice": (with_both_contents().SerializeToString(), ("INPUT0",)),
}


@pytest.mark.parametrize("name", WRONG_MESSAGES)
def test_wrong_messages(server: ServerProcess, name: str) -> None:
    """The client's fault is told as such: never INTERNAL or UNKNOWN."""
    message, pieces = WRONG_MESSAGES[name]
    answer: Answer = infer_bytes(server.addresses["grpc"], message)
    assert answer.status in ("INVALID_ARGUMENT", "NOT_FOUND"), answer
    assert answer.text
    for piece in pieces:
        assert piece in answer.text, answer.text


@pytest.mark.parametrize(
    ("action", "status", "pieces"),
    [
        (b"raise", "INTERNAL", ("raised on purpose", "failing")),
        (b"error", "INVALID_ARGUMENT", ("refused on purpose",)),
        (b"nothing", "INTERNAL", ("InferenceResponse",)),
    ],
)
def test_a_model_that_fails(client: Client, action: bytes, status: str, pieces: tuple[str, ...]) -> None:
    """Its own error passes unchanged; its exceptions and mistakes are the server's errors, with what happened."""
    with pytest.raises(InferenceServerException) as raised:
        client.infer("failing", {"ACTION": np.array([action], np.object_)})
    assert status_of(raised.value) == status
    for piece in pieces:
        assert piece in raised.value.message(), raised.value.message()
