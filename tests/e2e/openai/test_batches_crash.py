"""Batches through the ends of real servers: killed again and again in the middle, stopped, cancelled while they run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.openai.batch_files import begin, ended, line, results
from tests.e2e.openai.repository import add_python
from tests.e2e.server_process import ServerProcess, eventually

# Each takes a start of a server.
KILLS = int(os.environ.get("TRIOTON_JOB_KILLS", "2"))
LINES = 60
URL = "/v1/completions"

SLOW = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0].decode()
        value = np.array([prompt.upper().encode()], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", value)])
"""
CONFIG = (
    'max_batch_size: 0\ninput [ { name: "text_input", data_type: TYPE_STRING, dims: [ 1 ] } ]\n'
    'output [ { name: "text_output", data_type: TYPE_STRING, dims: [ 1 ] } ]\n'
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_python(tmp_path / "models", "slow", SLOW, CONFIG)
    return tmp_path / "models"


def serve(repository: Path) -> ServerProcess:
    flags = (f"--jobs-store={repository.parent / 'jobs'}", f"--jobs-max-interruptions={KILLS + 2}")
    return ServerProcess(*flags, repository=repository)


def connected(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{server.addresses['http']}/v1", api_key="none", max_retries=0)


def lines() -> list[bytes]:
    return [line(f"line {number}", URL, {"model": "slow", "prompt": f"p{number}"}) for number in range(LINES)]


def _until_completed(client: Any, batch_id: str, wanted: int) -> None:
    assert eventually(lambda: client.batches.retrieve(batch_id).request_counts.completed >= wanted)


def check_whole(client: Any, batch: Any) -> None:
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert (batch.request_counts.total, batch.request_counts.completed) == (LINES, LINES)
    found = results(client, batch.output_file_id)
    assert [each["custom_id"] for each in found] == [f"line {number}" for number in range(LINES)]
    assert [each["response"]["body"]["choices"][0]["text"] for each in found] == [f"P{n}" for n in range(LINES)]


@pytest.mark.timeout(600)
def test_a_server_that_is_killed_in_the_middle_answers_each_line_once(repository: Path) -> None:
    batch_id = ""
    for number in range(KILLS):
        with serve(repository) as server, connected(server) as client:
            if not batch_id:
                batch_id = begin(client, lines(), URL).id
            _until_completed(client, batch_id, (number + 1) * LINES // (KILLS + 2))
            server.signal(signal.SIGKILL)
            server.wait()
    with serve(repository) as server, connected(server) as client:
        check_whole(client, ended(client, batch_id))
        assert len(list(client.files.list())) == 2
        assert len(list((repository.parent / "jobs" / "payloads").iterdir())) == 2


@pytest.mark.timeout(600)
def test_a_server_that_is_killed_while_it_reads_the_input_reads_it_again(repository: Path) -> None:
    with serve(repository) as server, connected(server) as client:
        batch_id = begin(client, lines(), URL).id
        server.signal(signal.SIGKILL)
        server.wait()
    with serve(repository) as server, connected(server) as client:
        check_whole(client, ended(client, batch_id))


@pytest.mark.timeout(600)
def test_a_server_that_is_told_to_end_goes_on_when_it_starts_again(repository: Path) -> None:
    with serve(repository) as server, connected(server) as client:
        batch_id = begin(client, lines(), URL).id
        _until_completed(client, batch_id, 6)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "error" not in server.log.lower()
    with serve(repository) as server, connected(server) as client:
        check_whole(client, ended(client, batch_id))


def test_cancelled_in_the_middle_its_files_have_what_was_done_and_what_was_not(repository: Path) -> None:
    with serve(repository) as server, connected(server) as client:
        batch_id = begin(client, lines(), URL).id
        _until_completed(client, batch_id, 6)
        assert client.batches.cancel(batch_id).status == "cancelling"
        batch = ended(client, batch_id)
        assert batch.status == "cancelled"
        assert 5 < batch.request_counts.completed < LINES == batch.request_counts.total
        done, left = results(client, batch.output_file_id), results(client, batch.error_file_id)
        assert len(done) == batch.request_counts.completed
        assert {each["error"]["code"] for each in left} == {"batch_cancelled"}
        assert sorted(each["custom_id"] for each in (*done, *left)) == sorted(f"line {n}" for n in range(LINES))
