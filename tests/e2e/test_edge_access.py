"""Edge processes of a server with keys and logs: who is let in, what is charged to whom, and what is written of it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import httpx
import numpy as np
import pytest

from tests.e2e.client import Client
from tests.e2e.edge_processes import edges_of, metric
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_edge_processes import ECHO, ECHO_CONFIG

pytestmark = pytest.mark.slow
ALICE, BOB, CAROL = "alice-0123456789abcdef", "bob-0123456789abcdef", "carol-0123456789abcdef"
INFER = "/v2/models/echo/infer"
BODY = json.dumps({"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}).encode()
HELD = """
import os
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        while not os.path.exists(GATE):
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(each, "IN")]) for each in requests]
"""


def keys_text(**keys: str) -> str:
    entries = [f'[keys.{name}]\nkey = "{key}"\nallow = ["inference"]\n' for name, key in keys.items()]
    return "".join((*entries, "[anonymous]\nallow = ['metrics', 'health']\n"))


def put_keys(file: Path, **keys: str) -> None:
    """At once, as a reader sees it."""
    new = file.with_suffix(".new")
    new.write_text(keys_text(**keys))
    new.replace(file)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edge_access")


@pytest.fixture(scope="module")
def models(folder: Path) -> Path:
    for name, code in (("echo", ECHO), ("held", HELD.replace("GATE", repr(str(folder / "gate"))))):
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "1" / "model.py").write_text(code)
        (folder / "models" / name / "config.pbtxt").write_text(
            ECHO_CONFIG if name == "echo" else ECHO_CONFIG.replace('"OUT"', '"IN"')
        )
    return folder / "models"


@pytest.fixture(scope="module")
def server(models: Path, folder: Path) -> Iterator[ServerProcess]:
    put_keys(folder / "keys.toml", alice=ALICE, bob=BOB)
    flags = (
        "--edge-processes=2",
        f"--auth-keys-file={folder / 'keys.toml'}",
        f"--access-log=all,file={folder / 'access.log'}",
        "--http-restricted-api=statistics:x-operator=yes",
        "--http-header-forward-pattern=x-tenant",
    )
    with ServerProcess(*flags, repository=models) as running:
        assert len(running.addresses) == 3
        yield running


def lines_of(*files: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]


def asked(client: httpx.Client, key: str, path: str = INFER) -> int:
    return client.post(path, content=BODY, headers=bearer(key)).status_code


def grpc_status(channel: grpc.Channel, key: str) -> grpc.StatusCode:
    """Of a message that is no request: who may not call is told that, and nothing else."""
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    try:
        call(b"", metadata=(("authorization", f"Bearer {key}"),), timeout=30)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_callers_are_refused_without_the_core(server: ServerProcess) -> None:
    """The core's process is stopped: only an edge can have answered."""
    with (
        httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=30) as client,
        grpc.insecure_channel(server.addresses["grpc"]) as channel,
    ):
        assert asked(client, ALICE) == 200
        assert grpc_status(channel, ALICE) is not grpc.StatusCode.UNAUTHENTICATED
        server.signal(signal.SIGSTOP)
        try:
            assert asked(client, CAROL) == 401
            assert grpc_status(channel, CAROL) is grpc.StatusCode.UNAUTHENTICATED
        finally:
            server.signal(signal.SIGCONT)
        assert asked(client, ALICE) == 200


def test_each_request_has_one_line_and_is_counted_once(server: ServerProcess, folder: Path) -> None:
    """Also while the log is moved away, and those that the core answers."""
    log, old = folder / "access.log", folder / "access.old"
    before = metric(server, "trioton_key_requests_total", key="bob")
    ids: list[str] = []
    with ExitStack() as stack:
        address = f"http://{server.addresses['http']}"
        clients = [stack.enter_context(httpx.Client(base_url=address, timeout=30)) for _ in range(4)]
        rpc = stack.enter_context(Client("grpc", server.addresses["grpc"]))
        for number in range(60):
            if number == 30:
                log.rename(old)
                server.signal(signal.SIGUSR1)
            for at, client in enumerate(clients):
                ids.append(f"one-{number}-{at}")
                headers = {**bearer(BOB), "x-request-id": ids[-1]}
                path = INFER if at else "/v2/models/echo/generate"
                content = BODY if at else b'{"IN": [1, 2]}'
                assert client.post(path, content=content, headers=headers).status_code == 200
            ids.append(f"rpc-{number}")
            headers = {**bearer(BOB), "x-request-id": ids[-1]}
            rpc.raw.infer("echo", rpc.tensors({"IN": np.zeros(2, np.float32)}), headers=headers)
    wanted = Counter(ids)

    def found() -> Counter[str]:
        return Counter(line["request_id"] for line in lines_of(old, log) if line["request_id"] in wanted)

    assert eventually(lambda: found().total() >= len(ids))
    assert found() == wanted
    lines = [line for line in lines_of(old, log) if line["request_id"] in wanted]
    assert {line["key"] for line in lines} == {"bob"}
    assert all(line["instance"] == "echo_0" and line["client"].startswith("127.0.0.1:") for line in lines)
    assert eventually(lambda: metric(server, "trioton_key_requests_total", key="bob") == before + len(ids))
    assert metric(server, "trioton_key_compute_seconds_total", key="bob") > 0


def test_rules_of_headers(server: ServerProcess) -> None:
    with httpx.Client(base_url=f"http://{server.addresses['http']}", headers=bearer(ALICE), timeout=30) as client:
        assert client.post(INFER, content=BODY, headers={"x-tenant": "a"}).status_code == 200
        assert client.get("/v2/models/echo/stats").status_code == 403


def test_a_revoked_key_is_let_in_nowhere(server: ServerProcess, folder: Path) -> None:
    """Once the server says that other keys are in force, under load on all edges."""
    file = folder / "keys.toml"
    over = threading.Event()
    outcomes: list[tuple[float, int]] = []  # when it was sent, and the status
    address = f"http://{server.addresses['http']}"

    def ask() -> None:
        with httpx.Client(base_url=address, timeout=30) as client:
            while not over.is_set():
                sent = time.monotonic()
                status = asked(client, CAROL)
                outcomes.append((sent, status))

    for _ in range(2):
        put_keys(file, alice=ALICE, bob=BOB, carol=CAROL)
        with httpx.Client(base_url=address, timeout=30) as client:
            assert eventually(lambda: asked(client, CAROL) == 200)
        outcomes.clear()
        over.clear()
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        said = server.log.count('its keys are now: alice, bob"')
        put_keys(file, alice=ALICE, bob=BOB)
        assert eventually(lambda: server.log.count('its keys are now: alice, bob"') > said)  # noqa: B023
        in_force = time.monotonic()
        assert eventually(lambda: sum(sent > in_force for sent, _ in outcomes) > 50)  # noqa: B023
        over.set()
        for thread in threads:
            thread.join()
        assert {status for sent, status in outcomes if sent > in_force} == {401}
        assert {status for _, status in outcomes} == {200, 401}


def test_an_edge_that_was_stopped_lets_nobody_in_by_old_keys(server: ServerProcess, folder: Path) -> None:
    """It has not heard of the new ones when it goes on, with a request on its connection. A stream on it ends."""
    file, address = folder / "keys.toml", server.addresses["grpc"]
    put_keys(file, alice=ALICE, bob=BOB, carol=CAROL)
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=30))
        assert eventually(lambda: asked(client, CAROL) == 200)
        channel = stack.enter_context(grpc.insecure_channel(address))
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        over = threading.Event()
        stack.callback(over.set)
        answers = stream(_until(over), metadata=(("authorization", f"Bearer {CAROL}"),), wait_for_ready=True)
        said = server.log.count('its keys are now: alice, bob"')
        next(answers)  # it runs: a message that is no request is answered with an error in the stream
        for pid in edges_of(server).values():
            os.kill(pid, signal.SIGSTOP)
        try:
            put_keys(file, alice=ALICE, bob=BOB)
            assert eventually(lambda: server.log.count('its keys are now: alice, bob"') > said)
            threading.Timer(0.2, _let_go_on, (server,)).start()
            assert asked(client, CAROL) == 401
        finally:
            _let_go_on(server)
        with pytest.raises(grpc.RpcError) as ended:
            list(answers)
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED


def _let_go_on(server: ServerProcess) -> None:
    for pid in edges_of(server).values():
        os.kill(pid, signal.SIGCONT)


def _until(over: threading.Event) -> Iterator[bytes]:
    yield b""
    over.wait()


def test_what_ran_in_an_edge_that_is_killed_runs_no_more(server: ServerProcess, folder: Path) -> None:
    def running() -> float:
        return metric(server, "trioton_key_running_requests", key="alice")

    def ask() -> None:
        try:
            httpx.post(f"http://{server.addresses['http']}/v2/models/held/infer", content=BODY, headers=bearer(ALICE))
        except httpx.HTTPError:
            return

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: running() == 4)
    edges = edges_of(server)
    os.kill(edges[1], signal.SIGKILL)
    assert eventually(lambda: running() == 2)
    (folder / "gate").touch()
    for thread in threads:
        thread.join()
    assert eventually(lambda: running() == 0)
    assert eventually(lambda: len(edges_of(server)) == 2)
    with httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=30) as client:
        assert eventually(lambda: asked(client, ALICE) == 200)
        assert asked(client, CAROL) == 401


def test_the_console_and_capture_see_what_edges_answer(tmp_path: Path) -> None:
    model, captured = tmp_path / "models" / "echo", tmp_path / "captured"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(ECHO)
    (model / "config.pbtxt").write_text(ECHO_CONFIG)
    flags = ("--edge-processes=2", "--console", f"--capture={captured}", "--capture-share=1")
    with ServerProcess(*flags, repository=tmp_path / "models") as server:
        with httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=30) as client:
            assert client.post(INFER, content=BODY).status_code == 200
            assert client.post(INFER, content=b"{").status_code == 400
            with Client("grpc", server.addresses["grpc"]) as rpc:
                rpc.infer("echo", {"IN": np.zeros(3, np.float32)})

            def errors() -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = client.get("/v2/console/errors").json()
                return found

            assert eventually(lambda: len(errors()) == 1)
            (error,) = errors()
            assert (error["call"], error["status"], error["kind"], error["model"]) == (
                *("HTTP infer", "400"),
                *("INVALID_ARG", "echo"),
            )
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    lines = [line for file in captured.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 2
