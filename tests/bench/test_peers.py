"""Starting and ending a server process, with a stand-in that only answers that it is ready."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from repository.pbtxt import parse_pbtxt
from tests.bench import peers
from tests.bench.peers import Peer, PeerError, Server, free_ports, in_process, our_server, shared_flags

READY_SERVER = """
import http.server, sys
flags = dict(flag[2:].split("=", 1) for flag in sys.argv[1:])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v2/health/ready" else 404)
        self.end_headers()
print("listening", flush=True)
http.server.HTTPServer((flags["http-address"], int(flags["http-port"])), Handler).serve_forever()
"""


def server(folder: Path, program: str) -> Server:
    return Server(Peer("stand-in", (sys.executable, "-c", program), {}, "2.0.1"), folder / "log")


def test_both_servers_are_told_the_models_and_the_addresses_and_nothing_else() -> None:
    flags = dict(flag.split("=", 1) for flag in shared_flags((1, 2, 3)))
    assert flags == {
        "--model-repository": str(peers.MODELS),
        "--http-address": "127.0.0.1",
        "--http-port": "1",
        "--grpc-address": "127.0.0.1",
        "--grpc-port": "2",
        "--metrics-address": "127.0.0.1",
        "--metrics-port": "3",
    }


def test_the_ports_differ() -> None:
    assert len(set(free_ports())) == 3


def test_a_server_is_started_waited_for_and_stopped(tmp_path: Path) -> None:
    one = server(tmp_path, READY_SERVER)
    try:
        assert one.start() > 0
        assert one.is_running()
        assert one.end_description() == ""
        assert one.address("http") == f"127.0.0.1:{one.ports[0]}"
        assert one.address("grpc") == f"127.0.0.1:{one.ports[1]}"
        process = one.process
        assert process is not None
    finally:
        one.stop()
    assert process.returncode == -signal.SIGTERM
    assert not one.is_running()
    one.stop()  # a second time is harmless


def test_a_server_that_ends_at_start_is_reported_with_its_log(tmp_path: Path) -> None:
    one = server(tmp_path, "print('no such flag'); raise SystemExit(3)")
    with pytest.raises(PeerError, match=r"(?s)exit code 3.*no such flag"):
        one.start()
    assert one.process is None


def test_python_s_settings_do_not_reach_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("OTHER", "kept")
    one = server(tmp_path, "import os; print(*sorted(os.environ)); raise SystemExit(1)")
    with pytest.raises(PeerError) as raised:
        one.start()
    names = str(raised.value).splitlines()[-1].split()
    assert "OTHER" in names
    assert "PYTHONDONTWRITEBYTECODE" not in names


def test_a_server_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    one = server(tmp_path, "import time; time.sleep(600)")
    one.ready_seconds = 0.1
    with pytest.raises(PeerError, match="not ready within"):
        one.start()
    assert one.process is None


def test_a_server_that_ignores_the_request_to_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "STOP_SECONDS", 0.1)
    one = server(tmp_path, f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{READY_SERVER}")
    one.start()
    process = one.process
    one.stop()
    assert process is not None
    assert process.returncode == -signal.SIGKILL


def test_another_checkout_s_server_runs_there(tmp_path: Path) -> None:
    """Both are needed: the folder that a program runs in comes before PYTHONPATH."""
    peer = our_server(tmp_path)
    assert (peer.folder, peer.environment) == (tmp_path, {"PYTHONPATH": str(tmp_path)})


def test_the_models_in_the_server_s_process_differ_in_nothing_else(tmp_path: Path) -> None:
    for _ in range(2):  # a second time is harmless
        peer = in_process(our_server(), tmp_path)
    assert "--backend-config=python,allow-in-process=true" in peer.command
    for model in ("add_sub", "large"):
        ours, original = (
            parse_pbtxt((models / model / "config.pbtxt").read_text(), source=model)
            for models in (peer.models, peers.MODELS)
        )
        assert ours.parameters.pop("ISOLATION").string_value == "in_loop"
        assert ours == original
        program = Path(model) / "1" / "model.py"
        assert (peer.models / program).read_bytes() == (peers.MODELS / program).read_bytes()
