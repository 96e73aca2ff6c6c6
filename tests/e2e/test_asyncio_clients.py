"""NVIDIA's two asyncio clients, each in an event loop of its own."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.client import Array, add_sub_inputs, outputs_of, tensors
from tests.e2e.server_process import ServerProcess


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_many_requests_at_once(server: ServerProcess, protocol: str) -> None:
    """Twenty requests to an ONNX model and to a Python model in flight together, each with its own answer."""

    async def run() -> tuple[list[dict[str, Array]], bool, Any]:
        api: Any = importlib.import_module(f"tritonclient.{protocol}.aio")
        async with api.InferenceServerClient(server.addresses[protocol]) as client:
            results = await asyncio.gather(
                *(client.infer("add_sub", tensors(api, add_sub_inputs(seed=i)), model_version="1") for i in range(20)),
                *(client.infer("completed", tensors(api, {"X": np.full((1, 2), i, np.int32)})) for i in range(20)),
            )
            ready = await client.is_model_ready("add_sub")
            with pytest.raises(api.InferenceServerException, match="'absent'"):
                await client.infer("absent", tensors(api, add_sub_inputs()))
            return [outputs_of(result) for result in results], ready, await client.get_server_metadata()

    answers, ready, _ = asyncio.run(run())
    assert ready
    for i in range(20):
        inputs = add_sub_inputs(seed=i)
        np.testing.assert_array_equal(answers[i]["OUTPUT0"], inputs["INPUT0"] + inputs["INPUT1"])
        assert answers[20 + i]["Y"].tolist() == [[2 * i, 2 * i]]


def test_an_asyncio_stream(server: ServerProcess) -> None:
    """`stream_infer` takes requests from an iterator and gives answers as they come."""
    api: Any = importlib.import_module("tritonclient.grpc.aio")

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for i in range(5):
            sent = tensors(api, add_sub_inputs(seed=i))
            yield {"model_name": "add_sub", "inputs": sent, "model_version": "1", "request_id": str(i)}

    async def run() -> dict[str, Array]:
        answers: dict[str, Array] = {}
        async with api.InferenceServerClient(server.addresses["grpc"]) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                answers[result.get_response().id] = result.as_numpy("OUTPUT0")
        return answers

    answers = asyncio.run(run())
    assert set(answers) == set("01234")
    for name, found in answers.items():
        inputs = add_sub_inputs(seed=int(name))
        np.testing.assert_array_equal(found, inputs["INPUT0"] + inputs["INPUT1"])
