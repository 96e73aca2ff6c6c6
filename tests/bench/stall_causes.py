"""What may hold up everyone else, provoked once by each call: for `stalls`."""

from __future__ import annotations

import base64
import gzip
import json
import random
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from tritonclient import grpc as triton_grpc
from tritonclient.grpc import service_pb2

from tests.bench.peers import HOST
from tests.bench.stall_storms import STORMS
from tests.bench.stall_target import MEGABYTE, WAIT_SECONDS, Cause, Target

MOST_MESSAGE = 256 * MEGABYTE
TOO_LARGE = 413


def _request(data: str, count: int, datatype: str = "FP32", output: str = '{"binary_data": true}') -> bytes:
    """The data goes last, so that it is read before nothing else is known of it."""
    return (
        f'{{"outputs": [{{"name": "OUT", "parameters": {output}}}], "inputs": [{{"name": "IN", '
        f'"datatype": "{datatype}", "shape": [{count}], "data": {data}}}]}}'
    ).encode()


@cache
def _floats() -> bytes:
    numbers = ",".join([str(random.random()) for _ in range(17000)])
    return _request(f"[{','.join([numbers] * 100)}]", 1_700_000)


@cache
def _digits() -> bytes:
    return _request(f"[{','.join(['1'] * 16_000_000)}]", 16_000_000)


@cache
def _nested() -> bytes:
    row = f"[{','.join(['1.25'] * 100)}]"
    return _request(f"[{','.join([row] * 64_000)}]", 6_400_000)


@cache
def _strings() -> bytes:
    words = ",".join(['"some words of a text"'] * 1_400_000)
    return _request(f"[{words}]", 1_400_000, "BYTES").replace(b'"FP32"', b'"BYTES"')


@cache
def _long_string() -> bytes:
    return _request(f'["{"A" * (32 * MEGABYTE)}"]', 1, "BYTES")


def json_floats(target: Target) -> None:
    target.post("/v2/models/large/infer", _floats())


def json_digits(target: Target) -> None:
    target.post("/v2/models/large/infer", _digits())


def json_nested(target: Target) -> None:
    target.post("/v2/models/large/infer", _nested())


def json_strings(target: Target) -> None:
    target.post("/v2/models/texts/infer", _strings())


def json_long_string(target: Target) -> None:
    target.post("/v2/models/texts/infer", _long_string())


def json_malformed(target: Target) -> None:
    target.post("/v2/models/large/infer", _floats()[:-4] + b"}}]}", 400)


def json_generate(target: Target) -> None:
    body = b'{"IN": ' + _floats().partition(b'"data": ')[2][:-3] + b"}"
    target.post("/v2/models/large/generate", body)


def json_answer(target: Target) -> None:
    data = np.random.default_rng(1).random(1_700_000, np.float32).tobytes()
    text = (
        '{"outputs": [{"name": "OUT"}], "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1700000], '
        f'"parameters": {{"binary_data_size": {len(data)}}}}}]}}'
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    target.post("/v2/models/large/infer", text + data, headers=headers)


def _chat(messages: str) -> bytes:
    return f'{{"model": "chat", "messages": [{messages}]}}'.encode()


@cache
def _picture() -> bytes:
    url = f"data:image/png;base64,{'A' * (30 * MEGABYTE)}"
    return _chat(json.dumps({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}))


@cache
def _messages() -> bytes:
    message = '{"role": "user", "content": "some words of a text"}'
    return _chat(",".join([message] * (30 * MEGABYTE // len(message))))


@cache
def _token_ids() -> bytes:
    ids = ",".join(["12345"] * (5 * MEGABYTE))
    return f'{{"model": "chat", "prompt": [{ids}]}}'.encode()


@cache
def _empty_lists() -> bytes:
    return f'{{"model": "chat", "prompt": [{"[]," * (10 * MEGABYTE)}1]}}'.encode()


def openai_picture(target: Target) -> None:
    target.post("/v1/chat/completions", _picture())


def openai_messages(target: Target) -> None:
    target.post("/v1/chat/completions", _messages(), TOO_LARGE)


def openai_token_ids(target: Target) -> None:
    target.post("/v1/completions", _token_ids(), TOO_LARGE)


def openai_empty_lists(target: Target) -> None:
    target.post("/v1/completions", _empty_lists(), TOO_LARGE)


@cache
def _job_list() -> bytes:
    numbers = ",".join([str(random.random()) for _ in range(160)])
    tensor = f'{{"name": "IN", "datatype": "FP32", "shape": [160], "data": [{numbers}]}}'
    request = f'{{"model_name": "large", "inputs": [{tensor}]}}'
    return f'{{"requests": [{",".join([request] * (30 * MEGABYTE // len(request)))}]}}'.encode()


def job_list(target: Target) -> None:
    """It is cancelled, and forgotten, as soon as it is there."""
    with target.connection() as connection:
        connection.request("POST", "/v2/jobs", _job_list())
        answer = connection.getresponse()
        job = json.loads(answer.read())
        assert answer.status == 202, job
        connection.request("DELETE", f"/v2/jobs/{job['id']}")
        connection.getresponse().read()


@cache
def _load() -> bytes:
    model = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    files = {"1/model.py": model, "1/weights.bin": random.randbytes(45 * MEGABYTE)}
    texts = {f"file:{name}": base64.b64encode(data).decode() for name, data in files.items()}
    tensors = [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}]
    parts = {"name": "files", "backend": "python", "input": tensors, "output": [{**tensors[0], "name": "Y"}]}
    return json.dumps({"parameters": {"config": json.dumps(parts), **texts}}).encode()


def load_files(target: Target) -> None:
    """45 MB in base64, and unloaded again."""
    target.post("/v2/repository/models/files/load", _load())
    target.post("/v2/repository/models/files/unload", b"{}")


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(64 * MEGABYTE), 9)


def gzip_bomb(target: Target) -> None:
    target.post("/v2/models/large/infer", _bomb(), 400, {"content-encoding": "gzip"})


def handshakes(target: Target) -> None:
    """1000 of TLS, 50 at once."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def shake(_: int) -> None:
        plain = socket.create_connection((HOST, target.ports[1]), WAIT_SECONDS)
        with context.wrap_socket(plain):
            pass

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(shake, range(1000)))


def metrics(target: Target) -> None:
    target.get("/metrics", target.ports[2])


def openapi(target: Target) -> None:
    target.get("/v2/docs/openapi.json")


def index(target: Target) -> None:
    target.post("/v2/repository/index", b"", headers={"accept-encoding": "gzip"})


def statistics(target: Target) -> None:
    target.get("/v2/models/stats")


def metadata_storm(target: Target) -> None:
    """1000 times the metadata and the configuration, by ten clients."""

    def ask(number: int) -> None:
        path = f"/v2/models/model_{number % target.count:04}" if target.count else "/v2/models/probe"
        target.get(path)
        target.get(f"{path}/config")

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(ask, range(1000)))


def loads(target: Target) -> None:
    """250 models are loaded at once, and then unloaded."""
    names = [f"model_{number:04}" for number in range(min(250, target.count))]
    with ThreadPoolExecutor(20) as pool:
        for word in ("unload", "load"):
            list(pool.map(lambda name: target.post(f"/v2/repository/models/{name}/{word}", b"{}"), names))  # noqa: B023


def _grpc_call(target: Target, request: Any) -> None:
    options = [("grpc.max_send_message_length", MOST_MESSAGE), ("grpc.max_receive_message_length", MOST_MESSAGE)]
    with triton_grpc.InferenceServerClient(f"{HOST}:{target.ports[1]}", channel_args=options) as client:
        client._client_stub.ModelInfer(request)


def _grpc_request(count: int) -> Any:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="IN", datatype="FP32", shape=[count])
    return service_pb2.ModelInferRequest(model_name="large", inputs=[tensor])


def grpc_raw(target: Target) -> None:
    request = _grpc_request(16 * MEGABYTE)
    request.raw_input_contents.append(bytes(64 * MEGABYTE))
    _grpc_call(target, request)


def grpc_typed(target: Target) -> None:
    request = _grpc_request(16 * MEGABYTE)
    request.inputs[0].contents.fp32_contents.extend(np.ones(16 * MEGABYTE, np.float32))
    _grpc_call(target, request)


def grpc_typed_strings(target: Target) -> None:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="IN", datatype="BYTES", shape=[1_000_000])
    tensor.contents.bytes_contents.extend([b"some words of a text"] * 1_000_000)
    _grpc_call(target, service_pb2.ModelInferRequest(model_name="texts", inputs=[tensor]))


def grpc_raw_strings(target: Target) -> None:
    """32 MB of texts of 20 bytes."""
    element = (20).to_bytes(4, "little") + b"some words of a text"
    count = 32 * MEGABYTE // len(element)
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="IN", datatype="BYTES", shape=[count])
    request = service_pb2.ModelInferRequest(model_name="texts", inputs=[tensor], raw_input_contents=[element * count])
    _grpc_call(target, request)


def grpc_typed_integers(target: Target) -> None:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="IN", datatype="INT32", shape=[8 * MEGABYTE])
    tensor.contents.int_contents.extend(np.arange(8 * MEGABYTE) % 100_000)
    _grpc_call(target, service_pb2.ModelInferRequest(model_name="integers", inputs=[tensor]))


def failures(target: Target) -> None:
    """1000 requests that are refused, each of which names what it has by long names."""
    body = json.dumps({"inputs": [{"name": "X" * 10000, "datatype": "FP32", "shape": [1], "data": [1]}] * 100}).encode()
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: target.post("/v2/models/large/infer", body, 400), range(100)))


CAUSES: dict[str, Cause] = {
    each.__name__: each
    for each in (
        json_floats,
        json_digits,
        json_nested,
        json_strings,
        json_long_string,
        json_malformed,
        json_generate,
        json_answer,
        openai_picture,
        openai_messages,
        openai_token_ids,
        openai_empty_lists,
        job_list,
        load_files,
        gzip_bomb,
        handshakes,
        metrics,
        openapi,
        index,
        statistics,
        metadata_storm,
        loads,
        grpc_raw,
        grpc_typed,
        grpc_typed_strings,
        grpc_typed_integers,
        grpc_raw_strings,
        failures,
    )
} | STORMS
OVER_TLS = ("handshakes", "closing_tls")
