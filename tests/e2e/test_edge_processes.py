"""Edge processes: who gets which connection, and what is left of a server when one of its processes dies or hangs."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import numpy as np
import pytest
import tritonclient.grpc
import trustme
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.edge_processes import READY, Asking, edges_of, metric
from tests.e2e.raw import post
from tests.e2e.server_process import ServerProcess, eventually, is_running

pytestmark = pytest.mark.slow
EDGES = 2
ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(each, "IN").as_numpy())
        ]) for each in requests]
"""
ECHO_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edge_models")
    (folder / "echo" / "1").mkdir(parents=True)
    (folder / "echo" / "1" / "model.py").write_text(ECHO)
    (folder / "echo" / "config.pbtxt").write_text(ECHO_CONFIG)
    return folder


@pytest.fixture(scope="module")
def access_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edge_log") / "access.log"


@pytest.fixture(scope="module")
def server(models: Path, access_log: Path) -> Iterator[ServerProcess]:
    """One that its tests leave as it was, but for restarts of edges."""
    flags = (f"--edge-processes={EDGES}", f"--access-log=all,file={access_log}", "--http-max-connections=40")
    with ServerProcess(*flags, repository=models) as running:
        assert len(running.addresses) == 3
        yield running


def connected(server: ServerProcess, count: int, stack: ExitStack) -> list[http.client.HTTPConnection]:
    """So many connections, each of which has had an answer."""
    made = []
    for _ in range(count):
        connection = http.client.HTTPConnection(server.addresses["http"], timeout=30)
        stack.callback(connection.close)
        connection.request("GET", READY)
        assert b"true" in connection.getresponse().read()
        made.append(connection)
    return made


def test_connections_are_spread_evenly(server: ServerProcess) -> None:
    assert eventually(lambda: metric(server, "trioton_connections", protocol="http") == 0)
    with ExitStack() as stack:
        connected(server, 8, stack)
        assert [metric(server, "trioton_edge_connections", edge=str(n)) for n in (1, 2)] == [4, 4]
        assert metric(server, "trioton_connections", protocol="http") == 8
    assert eventually(lambda: metric(server, "trioton_connections", protocol="http") == 0)


def test_a_limit_holds_over_all_edges(server: ServerProcess) -> None:
    refusals = {"protocol": "http", "limit": "max_connections"}
    before = metric(server, "trioton_limit_refusals_total", **refusals)
    with ExitStack() as stack:
        connected(server, 40, stack)
        refused = http.client.HTTPConnection(server.addresses["http"], timeout=30)
        stack.callback(refused.close)
        refused.request("GET", READY)
        response = refused.getresponse()
        assert (response.status, b"40 connections are open" in response.read()) == (503, True)
        assert eventually(lambda: metric(server, "trioton_limit_refusals_total", **refusals) == before + 1)
        assert metric(server, "trioton_connections", protocol="http") == 40


def test_ten_megabytes_both_ways(server: ServerProcess) -> None:
    tensor = np.random.default_rng(1).random(2_500_000, np.float32)
    for protocol in ("http", "grpc"):
        with Client(protocol, server.addresses[protocol]) as client:
            np.testing.assert_array_equal(client.infer("echo", {"IN": tensor})["OUT"], tensor)


def test_a_message_larger_than_an_edges_share_is_told_whose_limit_it_is(models: Path) -> None:
    with (
        ServerProcess("--edge-processes=2", "--max-request-memory=4000000", repository=models) as server,
        Client("grpc", server.addresses["grpc"]) as client,
        pytest.raises(InferenceServerException, match="than the 1000000 bytes that each edge process holds"),
    ):
        client.infer("echo", {"IN": np.zeros(500_000, np.float32)})


def test_bodies_in_chunks_and_behind_100_continue(server: ServerProcess) -> None:
    body = json.dumps({"inputs": [{"name": "IN", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}]}).encode()
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: localhost\r\n"
    with socket.create_connection(address_of(server)) as client:
        client.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        for byte in body:
            client.sendall(b"1\r\n%c\r\n" % byte)
        client.sendall(b"0\r\n\r\n")
        assert b'"data":[1.0,2.0,3.0]' in client.recv(65536)
        client.sendall(head + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body))
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert b'"data":[1.0,2.0,3.0]' in client.recv(65536)
        client.sendall(head + b"expect: 100-continue\r\ncontent-length: 99999999999\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_the_log_knows_each_client_and_believes_no_header(server: ServerProcess, access_log: Path) -> None:
    with ExitStack() as stack:
        (connection,) = connected(server, 1, stack)
        host, port = connection.sock.getsockname()
        forged = dict.fromkeys(("x-forwarded-for", "forwarded", "x-real-ip", "x-trioton-client", "client"), "10.9.8.7")
        body = json.dumps({"id": "mine", "inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}]})
        connection.request("POST", "/v2/models/echo/infer", body, forged)
        assert connection.getresponse().status == 200
    assert eventually(lambda: '"mine"' in access_log.read_text())
    lines = [line for line in access_log.read_text().splitlines() if '"mine"' in line]
    assert len(lines) == 1, "one line for each request"
    assert f"{host}:{port}" in lines[0]
    assert "10.9.8.7" not in lines[0]


def test_errors_of_calls_are_as_ever(server: ServerProcess) -> None:
    answer = post(server.addresses["http"], "/v2/models/nope/infer", b"{}")
    assert (answer.status, "nope" in answer.text) == (404, True)
    with tritonclient.grpc.InferenceServerClient(server.addresses["grpc"]) as client:
        with pytest.raises(tritonclient.grpc.InferenceServerException, match="nope") as caught:
            client.get_model_metadata("nope")
        assert caught.value.status() == "StatusCode.NOT_FOUND"
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        unknown = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        with pytest.raises(grpc.RpcError) as failed:
            unknown(b"")
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_edge_that_is_killed_loses_its_own_connections_only(server: ServerProcess) -> None:
    edges = edges_of(server)
    assert sorted(edges) == [1, 2]
    with ExitStack() as stack:
        clients = [stack.enter_context(Asking(server.addresses["http"])) for _ in range(6)]
        assert eventually(lambda: all(client.outcomes[200] > 5 for client in clients))
        os.kill(edges[1], signal.SIGKILL)
        assert eventually(lambda: edges_of(server).get(1, edges[1]) != edges[1])
        goals = [client.outcomes[200] + 5 for client in clients]
        assert eventually(lambda: all(each.outcomes[200] > goal for each, goal in zip(clients, goals, strict=True)))
    assert sum(1 for client in clients if set(client.outcomes) != {200}) == 3
    assert all(sum(client.outcomes.values()) - client.outcomes[200] <= 1 for client in clients)
    assert metric(server, "trioton_edge_restarts_total", edge="1") == 1
    assert edges_of(server)[2] == edges[2]
    assert "edge process 1 has ended (signal 9)" in server.log


def test_an_edge_that_hangs_is_passed_by_and_killed(server: ServerProcess) -> None:
    assert eventually(lambda: len(edges_of(server)) == EDGES)
    assert eventually(lambda: metric(server, "trioton_connections", protocol="http") == 0)
    stuck = edges_of(server)[2]
    os.kill(stuck, signal.SIGSTOP)
    try:
        server.wait_for_line("edge process 2 does not answer, and is killed")
        with Asking(server.addresses["http"]) as client:
            assert eventually(lambda: client.outcomes[200] > 20)
        assert eventually(lambda: not is_running(stuck))
        assert eventually(lambda: 2 in edges_of(server))
    finally:
        if is_running(stuck):
            os.kill(stuck, signal.SIGCONT)


def test_signals_to_every_process_do_not_reach_an_edge_that_starts(models: Path) -> None:
    """As a terminal or a supervisor sends them: it has run nothing of its program yet."""
    with ServerProcess("--edge-processes=1", repository=models) as running:

        def starting() -> set[int]:
            return {pid for pid in running.descendants() if b"trioton.edge_processes" in command_of(pid)}

        assert eventually(lambda: bool(starting()))
        (edge,) = starting()
        os.kill(edge, signal.SIGINT)
        os.kill(edge, signal.SIGTERM)
        with Asking(running.addresses["http"]) as client:
            assert eventually(lambda: client.outcomes[200] > 0)
        assert edges_of(running) == {1: edge}
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
        assert "Traceback" not in running.log


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def test_what_a_killed_edge_had_not_received_goes_to_another(models: Path) -> None:
    with ServerProcess(f"--edge-processes={EDGES}", repository=models) as server:
        address = server.addresses["http"]
        edge = edges_of(server)[1]
        os.kill(edge, signal.SIGSTOP)
        try:
            with ExitStack() as stack:
                clients = [stack.enter_context(Asking(address)) for _ in range(6)]
                assert eventually(lambda: sum(client.outcomes[200] > 5 for client in clients) == 3)
                os.kill(edge, signal.SIGKILL)
                assert eventually(lambda: all(client.outcomes[200] > 5 for client in clients))
            assert all(set(client.outcomes) == {200} for client in clients)
        finally:
            if is_running(edge):
                os.kill(edge, signal.SIGKILL)


def test_an_edge_without_a_descriptor_left_serves_again_once_clients_leave(models: Path) -> None:
    """And its connections are counted: it is lost to nobody that the kernel closes those which it has no room for."""
    limited = ("sh", "-c", 'ulimit -n 48; exec "$@"', "sh")
    with ServerProcess("--edge-processes=1", repository=models, launcher=limited) as server:
        host, port = server.addresses["http"].split(":")
        for _ in range(2):
            with ExitStack() as stack:
                for _ in range(100):
                    stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
                server.wait_for_line("edge process 1 has no descriptor left")
            assert eventually(lambda: metric(server, "trioton_edge_connections", edge="1") == 0)
            with Asking(server.addresses["http"]) as client:
                assert eventually(lambda: client.outcomes[200] > 5)
        assert metric(server, "trioton_edge_restarts_total", edge="1") == 0


def test_clients_that_have_left_do_not_use_the_descriptors_of_the_core_up(models: Path) -> None:
    """The connections on which their requests were relayed are kept for a while, for the next ones."""
    limited = ("sh", "-c", 'ulimit -n 320; exec "$@"', "sh")
    with ServerProcess("--edge-processes=2", repository=models, launcher=limited) as server:
        assert len(server.addresses) == 3
        before = len(os.listdir(f"/proc/{server.pid}/fd"))
        for _ in range(200):
            with ExitStack() as stack:
                connected(server, 1, stack)
        # 320 / 32 for each edge, and what is on its way.
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < before + 40


def test_a_core_that_is_killed_takes_its_edges_along(models: Path) -> None:
    with ServerProcess(f"--edge-processes={EDGES}", repository=models) as server:
        assert len(server.addresses) == 3
        family = server.descendants()
        assert len(edges_of(server)) == EDGES
        server.signal(signal.SIGKILL)
        server.wait()
        assert eventually(lambda: not any(map(is_running, family)))


def test_no_request_is_lost_at_the_end(models: Path) -> None:
    with (
        ServerProcess(f"--edge-processes={EDGES}", "--drain-secs=1", repository=models) as server,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(Asking(server.addresses["http"], "/v2/health/live")) for _ in range(4)]
        assert eventually(lambda: all(client.outcomes[200] > 5 for client in clients))
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    for client in clients:
        # 503 is what the server itself says when it has stopped; nothing is cut off.
        assert not set(client.outcomes) - {200, 503, "ConnectionRefusedError"}


def test_tls_and_certificates_of_clients(models: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, own = authority.issue_cert("127.0.0.1"), authority.issue_cert("client@example.org")
    (tmp_path / "key.pem").write_bytes(certificate.private_key_pem.bytes())
    (tmp_path / "cert.pem").write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    authority.cert_pem.write_to_path(str(tmp_path / "root.pem"))
    flags = [
        f"--{word}-{name}={tmp_path / file}"
        for word in ("http", "grpc")
        for name, file in (("server-cert", "cert.pem"), ("server-key", "key.pem"), ("root-cert", "root.pem"))
    ]
    more = ("--http-use-ssl=true", "--grpc-use-ssl-mutual=true", f"--edge-processes={EDGES}")
    with ServerProcess(*flags, *more, repository=models) as server:
        context = ssl.create_default_context(cafile=str(tmp_path / "root.pem"))
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            asked(server, context)
        own.configure_cert(context)
        assert asked(server, context) == 200
        credentials = grpc.ssl_channel_credentials(
            authority.cert_pem.bytes(), own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes()
        )
        with grpc.secure_channel(server.addresses["grpc"], credentials) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert live(b"") == b"\x08\x01"


def asked(server: ServerProcess, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection(server.addresses["http"], context=context, timeout=30)
    try:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status
    finally:
        connection.close()


def address_of(server: ServerProcess) -> tuple[str, int]:
    host, _, port = server.addresses["http"].rpartition(":")
    return host, int(port)


def test_a_change_of_a_model_is_seen_at_once(models: Path) -> None:
    """A raw request says nothing of its datatype: the edge takes it from what it keeps of the model."""
    flags = (f"--edge-processes={EDGES}", "--model-control-mode=explicit", "--load-model=echo")
    with ServerProcess(*flags, repository=models) as server, ExitStack() as stack:
        clients = connected(server, 4, stack)

        def ask(path: str, body: bytes, client: http.client.HTTPConnection, **headers: str) -> tuple[int, bytes]:
            client.request("POST", path, body, headers)
            response = client.getresponse()
            return response.status, response.read()

        def answers() -> list[tuple[int, bytes]]:
            raw = {"inference-header-content-length": "0"}
            return [ask("/v2/models/echo/infer", bytes(8), each, **raw) for each in clients]

        def change(what: str, **parameters: str) -> None:
            body = json.dumps({"parameters": parameters}).encode()
            assert ask(f"/v2/repository/models/echo/{what}", body, clients[0])[0] == 200

        for datatype, size in ("FP32", 2), ("INT64", 1), ("INT8", 8):
            tensor = {"data_type": f"TYPE_{datatype}", "dims": [-1]}
            config = {"backend": "python", "input": [{"name": "IN", **tensor}], "output": [{"name": "OUT", **tensor}]}
            change("load", config=json.dumps(config))
            for status, answer in answers():
                assert status == 200
                assert f'"datatype":"{datatype}","shape":[{size}]'.encode() in answer
        change("unload")
        assert [(status, b"'echo'" in answer) for status, answer in answers()] == [(404, True)] * 4
        change("load")
        assert [status for status, _ in answers()] == [200] * 4
