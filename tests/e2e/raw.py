"""Requests that NVIDIA's clients would refuse to make: HTTP and gRPC by hand."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc  # type: ignore[import-untyped]  # grpcio ships no types

from tests.e2e.server_process import TIMEOUT_SECONDS


@dataclass(frozen=True)
class Answer:
    """A status (HTTP's number or gRPC's word) and what it says."""

    status: int | str
    text: str


def post(address: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
    """An HTTP POST; of an error the text is taken out of its JSON."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", path, body, dict(headers or {}))
        return read_answer(connection)
    finally:
        connection.close()


def read_answer(connection: http.client.HTTPConnection) -> Answer:
    response = connection.getresponse()
    text = response.read().decode()
    if response.status >= 400:
        text = json.loads(text)["error"]
    return Answer(response.status, text)


def infer_json(address: str, model: str, request: Any, *, version: str = "") -> Answer:
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return post(address, path, body)


def infer_bytes(address: str, message: bytes) -> Answer:
    """A ModelInfer call whose message is these bytes, whatever they are."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        try:
            call(message, timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            return Answer(error.code().name, error.details())
    return Answer("OK", "")
