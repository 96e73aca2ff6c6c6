"""Models that do their worst: every caller is answered, every other model serves, and the server can be ended."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.backends.python.processes import shared_memory_files
from tests.e2e.client import Client, add_sub_inputs, status_of
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually, is_running

INSTANCES = 2
EXIT_SECONDS = 2
# The server's own time limit, what cancelling may take after it, and a busy machine's share.
MOST_EXIT_SECONDS = 30


def broken(method: str) -> str:
    """A model in which one phase raises; its other parts are in order."""
    methods = {
        "auto_complete_config": "@staticmethod\n    def auto_complete_config(config)",
        "initialize": "def initialize(self, args)",
        "execute": "def execute(self, requests)",
        "is_ready": "def is_ready(self)",
        "finalize": "def finalize(self)",
    }
    right = {
        "auto_complete_config": "return config",
        "execute": "return [answer() for _ in requests]",
        "is_ready": "return True",
    }
    lines = ["import numpy as np", "import triton_python_backend_utils as pb_utils"]
    if method == "import":
        lines.append("raise RuntimeError('import went wrong')")
    lines += [
        "def answer():",
        "    return pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.ones(1, np.float32))])",
    ]
    lines.append("class TritonPythonModel:")
    for name, head in methods.items():
        body = f"raise RuntimeError('{name} went wrong')" if name == method else right.get(name, "pass")
        lines.append(f"    {head}:\n        {body}")
    return "\n".join(lines) + "\n"


BROKEN_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
PHASES = ("import", "auto_complete_config", "initialize", "execute", "is_ready", "finalize")


def build(directory: Path) -> Path:
    add_add_sub(directory / "add_sub", versions=(1,))
    copy_python_model("hostile", directory)
    for phase in PHASES:
        (directory / f"{phase}_raises" / "1").mkdir(parents=True)
        (directory / f"{phase}_raises" / "1" / "model.py").write_text(broken(phase))
        (directory / f"{phase}_raises" / "config.pbtxt").write_text(BROKEN_CONFIG)
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("hostile_models"))


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--exit-timeout-secs=2")
    with ServerProcess(*flags, repository=models) as process:
        yield process


@pytest.fixture(params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, server.addresses[request.param]) as made:
        yield made


def others_serve(client: Client) -> bool:
    inputs = add_sub_inputs()
    answer = client.infer("add_sub", inputs)["OUTPUT0"]
    return np.array_equal(answer, inputs["INPUT0"] + inputs["INPUT1"])


def act(client: Client, action: str) -> int:
    return int(client.infer("hostile", {"ACTION": np.array([action.encode()], np.object_)})["PID"][0])


def act_by_json(address: str, action: str) -> int:
    """Over a connection of its own; answers the status."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    tensor = {"name": "ACTION", "datatype": "BYTES", "shape": [1], "data": [action]}
    try:
        connection.request("POST", "/v2/models/hostile/infer", json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        response.read()
        return response.status
    except (ConnectionError, http.client.RemoteDisconnected):
        return 0
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("raise", "IndexError: list index out of range"),
        ("memory", "MemoryError"),
        ("huge array", "Unable to allocate"),
        ("recursion", "RecursionError"),
        ("exit", "SystemExit: done with this"),
    ],
)
def test_an_exception_ends_its_request_alone(client: Client, server: ServerProcess, action: str, text: str) -> None:
    """Also that of a process which has no memory left: the same process goes on."""
    assert eventually(lambda: client.is_ready("hostile"))
    workers = server.descendants()
    with pytest.raises(InferenceServerException, match=text) as raised:
        act(client, action)
    assert status_of(raised.value) == "INTERNAL"
    assert client.is_ready("hostile")
    assert act(client, "live") in workers
    assert server.descendants() == workers
    assert others_serve(client)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("os._exit", "exited with code 7"),
        ("segfault", "was killed by SIGSEGV"),
        ("abort", "was killed by SIGABRT"),
    ],
)
def test_a_process_that_ends(client: Client, action: str, text: str) -> None:
    """Its caller is told how; the other instance serves at once, and soon both do again."""
    assert eventually(lambda: client.is_ready("hostile"))
    with pytest.raises(InferenceServerException, match=text) as raised:
        act(client, action)
    assert status_of(raised.value) == "UNAVAILABLE"
    assert act(client, "live") > 0
    assert others_serve(client)
    assert eventually(lambda: client.is_ready("hostile"))


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A control group whose processes may have 64 MiB together."""
    folder, limit = (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")
        if Path("/sys/fs/cgroup/memory").is_dir()
        else (Path("/sys/fs/cgroup"), "memory.max")
    )
    group = folder / f"trioton_test_{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(64 << 20))
        except OSError as error:
            pytest.skip(f"control groups do not limit memory here: {error}")
        yield group
    finally:
        group.rmdir()


def test_a_process_that_the_kernel_kills_for_its_memory(
    models: Path, memory_cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each caller is told, the other instance and the other models serve, and the killed one comes back."""
    monkeypatch.setenv("TRIOTON_TEST_CGROUP", str(memory_cgroup))
    with (
        ServerProcess("--exit-on-error=false", repository=models) as server,
        Client("http", server.addresses["http"]) as client,
    ):
        for _ in range(2):
            with pytest.raises(InferenceServerException, match="was killed by SIGKILL") as raised:
                act(client, "no memory left")
            assert status_of(raised.value) == "UNAVAILABLE"
            assert act(client, "live") > 0
            assert others_serve(client)
            assert eventually(lambda: client.is_ready("hostile"))
    assert (memory_cgroup / "cgroup.procs").read_text() == ""


@pytest.mark.parametrize("phase", ["import", "auto_complete_config", "initialize"])
def test_a_model_that_does_not_load(client: Client, server: ServerProcess, phase: str) -> None:
    """The index and whoever loads it are told the exception; the whole traceback is in the log."""
    name = f"{phase}_raises"
    index = client.json("get_model_repository_index")
    entries = index if isinstance(index, list) else index["models"]
    (entry,) = [each for each in entries if each["name"] == name]
    assert entry["state"] == "UNAVAILABLE"
    assert f"RuntimeError: {phase} went wrong" in entry["reason"]
    with pytest.raises(InferenceServerException, match=f"{phase} went wrong") as raised:
        client.raw.load_model(name)
    assert status_of(raised.value) == "INVALID_ARGUMENT"
    assert not client.is_ready(name)
    assert others_serve(client)


def test_a_model_that_raises_in_execute(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="execute went wrong"):
        client.infer("execute_raises", {"IN": np.ones(1, np.float32)})
    assert client.is_ready("execute_raises")


def test_a_model_that_raises_in_is_ready(client: Client) -> None:
    """It answers all the same."""
    assert client.infer("is_ready_raises", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [1]


def test_a_model_that_raises_in_finalize(client: Client, server: ServerProcess) -> None:
    """It is unloaded, and can be loaded again."""
    for _ in range(2):
        client.raw.load_model("finalize_raises")
        assert client.is_ready("finalize_raises")
        client.raw.unload_model("finalize_raises")
        assert eventually(lambda: not client.is_ready("finalize_raises"))
    server.wait_for_line("finalize failed: RuntimeError: finalize went wrong")
    assert others_serve(client)


@pytest.mark.parametrize("action", ["loop", "hang", "lock"])
def test_all_instances_busy_for_ever(models: Path, action: str) -> None:
    """Others serve; those who wait behind are answered when the server ends, which it does within its time, and no
    process and no segment is left."""
    flags = ("--exit-on-error=false", f"--exit-timeout-secs={EXIT_SECONDS}")
    with ServerProcess(*flags, repository=models) as server, ThreadPoolExecutor(8) as threads:
        address = server.addresses["http"]
        pending: list[Future[int]] = [threads.submit(act_by_json, address, action) for _ in range(INSTANCES)]
        said = {"loop": "looping", "hang": "hanging", "lock": "holding"}[action]
        assert eventually(lambda: server.log.count(f": {said}") == INSTANCES)
        pending += [threads.submit(act_by_json, address, "live") for _ in range(3)]
        with Client("grpc", server.addresses["grpc"]) as grpc, Client("http", address) as web:
            assert others_serve(grpc)
            assert others_serve(web)
        assert not any(future.done() for future in pending)
        workers = server.descendants()
        segments = shared_memory_files(server.pid, *workers)
        asked = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        assert time.monotonic() - asked < MOST_EXIT_SECONDS
        for future in pending:
            assert future.result(TIMEOUT_SECONDS) in (0, 503)
    assert len(workers) >= INSTANCES
    assert eventually(lambda: not any(map(is_running, workers)))
    assert not [file for file in segments if file.exists()]


def test_a_caller_who_gives_up(models: Path) -> None:
    """A client that does not wait for a model that hangs is told so; the other instance goes on."""
    flags = ("--exit-on-error=false", "--exit-timeout-secs=1")
    with ServerProcess(*flags, repository=models) as server, Client("grpc", server.addresses["grpc"]) as grpc:
        with pytest.raises(InferenceServerException) as raised:
            grpc.infer("hostile", {"ACTION": np.array([b"hang"], np.object_)}, client_timeout=1.0)
        assert status_of(raised.value) == "DEADLINE_EXCEEDED"
        assert act(grpc, "live") > 0
        assert others_serve(grpc)
