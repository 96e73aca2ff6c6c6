"""Engines behind a real server: the calls that Triton's vLLM backend documents, and clients that leave."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.backends.engines.models import sampling, write_model, write_scripted
from tests.backends.helpers import objects
from tests.e2e.engine_calls import events, generate, is_free, url
from tests.e2e.server_process import ServerProcess, eventually, is_running

pytestmark = pytest.mark.slow

TEXT = "The scheduler gives größere batches 🙂 to instances."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("engines")
    write_scripted(repository)
    with ServerProcess(repository=repository) as started:
        started.addresses  # noqa: B018 (waits until it serves)
        yield started


# The calls of the documentation


def test_generate_as_documented(server: ServerProcess) -> None:
    answer = generate(server, {"text_input": TEXT, "parameters": {"stream": False, "temperature": 0}})
    assert answer.status_code == 200
    assert answer.json() == {"model_name": "echo", "model_version": "1", "text_output": TEXT * 2}
    answer = generate(
        server,
        {
            "text_input": TEXT,
            "stream": False,
            "exclude_input_in_output": True,
            "sampling_parameters": sampling(temperature=0.1, top_p=0.95, max_tokens=5),
            "return_finish_reason": True,
            "return_cumulative_logprob": False,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        },
    )
    found = answer.json()
    assert TEXT.startswith(found["text_output"])
    assert found["finish_reason"] == "length"
    assert found["num_output_tokens"] == 5


def test_generate_stream_as_documented(server: ServerProcess) -> None:
    body = {"text_input": TEXT, "parameters": {"stream": True, "temperature": 0}}
    with httpx.stream("POST", url(server, "echo", "generate_stream"), json=body, timeout=60) as response:
        found = list(events(response))
    assert "".join(each["text_output"] for each in found) == TEXT
    assert len(found) > 1


def test_a_grpc_stream_as_documented(server: ServerProcess) -> None:
    """As client.py of Triton's vLLM backend."""
    found: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(server.addresses["grpc"]) as client:
        client.start_stream(callback=lambda result, error: found.put(error or result))
        for number, stream in enumerate((True, False)):
            inputs = []
            arrays = {
                "text_input": (objects(TEXT), "BYTES"),
                "stream": (np.array([stream], dtype=bool), "BOOL"),
                "sampling_parameters": (objects(sampling(temperature=0.1, top_p=0.95)), "BYTES"),
                "exclude_input_in_output": (np.array([True], dtype=bool), "BOOL"),
            }
            for name, (array, datatype) in arrays.items():
                tensor = grpcclient.InferInput(name, [1], datatype)
                tensor.set_data_from_numpy(array)
                inputs.append(tensor)
            client.async_stream_infer("echo", inputs, request_id=str(number), enable_empty_final_response=True)
        texts = {"0": "", "1": ""}
        ended: set[str] = set()
        while len(ended) < 2:
            result = found.get(timeout=60)
            assert not isinstance(result, Exception), result
            response = result.get_response()
            text = result.as_numpy("text_output")
            if text is not None:
                texts[response.id] += text.reshape(-1)[0].decode()
            if response.parameters["triton_final_response"].bool_param:
                ended.add(response.id)
        client.stop_stream()
    assert texts == {"0": TEXT, "1": TEXT}


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"text_input": "x", "sampling_parameters": "{"}, 400, "'sampling_parameters' is no JSON"),
        ({"text_input": "x", "sampling_parameters": '{"top_p": 2}'}, 400, "top_p"),
        ({"text_input": "x", "parameters": {"max_tokens": 5000}}, 400, "context of 512 tokens"),
        ({"text_input": "x", "image": "abc"}, 400, "image"),
        ({"stream": False}, 400, "text_input"),
    ],
)
def test_a_clients_mistake(server: ServerProcess, body: dict[str, Any], status: int, text: str) -> None:
    answer = generate(server, body)
    assert answer.status_code == status, answer.text
    assert text in answer.json()["error"]


# Clients that leave


ENDLESS = {"text_input": TEXT, "stream": True, "sampling_parameters": sampling(max_tokens=450, ignore_eos=True)}


def test_a_client_that_leaves_a_whole_answer_frees_the_cache(server: ServerProcess) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url(server, "endless", "generate"), json={"text_input": TEXT}, timeout=0.3)
    assert is_free(server)


# Ends of processes


def test_a_worker_dies_with_its_server(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "endless", "scripted", rule="repeat", step_seconds=2)
    with ServerProcess(repository=tmp_path / "models") as server:
        with httpx.stream("POST", url(server, "endless", "generate_stream"), json=ENDLESS, timeout=60) as response:
            next(events(response))
            workers = server.workers()
            assert workers
            server.signal(signal.SIGKILL)
            server.wait()
        assert eventually(lambda: not any(map(is_running, workers)))


def test_an_unload_ends_the_process(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "echo", "scripted")
    with ServerProcess("--model-control-mode=explicit", "--load-model=echo", repository=tmp_path / "models") as server:
        assert generate(server, {"text_input": TEXT}).status_code == 200
        workers = server.workers()
        assert workers
        assert httpx.post(f"http://{server.addresses['http']}/v2/repository/models/echo/unload").status_code == 200
        assert eventually(lambda: not any(map(is_running, workers)))
