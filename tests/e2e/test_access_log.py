"""The access log of a running server: one line for each request that has ended, and a place for them that may hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.attack.access_log import attack, body, write_models
from tests.backends.engines.models import write_scripted
from tests.e2e.client import Client
from tests.e2e.server_process import ServerProcess, eventually

KEYS = '[keys.alice]\nkey = "0123456789abcdef"\nallow = ["inference", "metadata"]\n'
INFER = "/v2/models/echo/infer"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def lines_of(file: Path, count: int) -> list[dict[str, Any]]:
    """The lines, once there are so many."""
    assert eventually(lambda: file.read_bytes().count(b"\n") >= count), file.read_text()
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access_models")
    write_models(folder)
    cached = folder / "cached"
    (cached / "1").mkdir(parents=True)
    (cached / "1" / "model.py").write_text((folder / "echo" / "1" / "model.py").read_text())
    config = (folder / "echo" / "config.pbtxt").read_text()
    (cached / "config.pbtxt").write_text(f"{config}response_cache {{ enable: true }}")
    ensemble = folder / "two_steps"
    (ensemble / "1").mkdir(parents=True)
    maps = 'input_map { key: "IN" value: "%s" } output_map { key: "OUT" value: "%s" }'
    step = f'step {{ model_name: "echo" model_version: -1 {maps} }}'
    (ensemble / "config.pbtxt").write_text(
        'platform: "ensemble"\nmax_batch_size: 8\ninput { name: "A" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        'output { name: "C" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        f"ensemble_scheduling {{ {step % ('A', 'B')} {step % ('B', 'C')} }}\n"
    )
    return folder


@pytest.fixture(scope="module")
def logged(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    folder = tmp_path_factory.mktemp("access")
    (folder / "keys.toml").write_text(KEYS)
    flags = (
        f"--access-log=all,file={folder / 'access.log'}",
        f"--auth-keys-file={folder / 'keys.toml'}",
        "--cache-config=local,size=1000000",
    )
    with ServerProcess(*flags, repository=models) as server:
        assert len(server.addresses) == 3
        yield server, folder / "access.log"


def test_mixed_requests(tmp_path: Path) -> None:
    assert attack(400, tmp_path) >= 400


def test_who_and_what(logged: tuple[ServerProcess, Path]) -> None:
    server, file = logged
    before = len(file.read_text().splitlines())
    headers = ["-H", "authorization: Bearer 0123456789abcdef", "-H", f"traceparent: 00-{TRACE}-{SPAN}-01"]
    url = f"http://{server.addresses['http']}"
    for path in (f"{INFER}?secret=1", "/v2/health/ready", "/v2/models/echo/ready"):
        curl(*headers, f"{url}{path}")
    curl(f"{url}{INFER}")
    known, unknown = lines_of(file, before + 2)[before:]
    assert (known["key"], known["trace_id"], known["span_id"]) == ("alice", TRACE, SPAN)
    assert known["request_id"] == TRACE
    assert known["path"] == INFER
    assert known["client"].startswith("127.0.0.1:")
    assert (unknown["status"], unknown["key"]) == (401, "anonymous")
    assert "0123456789abcdef" not in file.read_text()
    assert "secret" not in file.read_text()


def curl(*words: str) -> None:
    subprocess.run(["curl", "-s", *words, "-d", body(1).decode()], check=True, capture_output=True)


def test_cached_answers_and_ensembles(logged: tuple[ServerProcess, Path]) -> None:
    server, file = logged
    before = len(file.read_text().splitlines())
    headers = {"authorization": "Bearer 0123456789abcdef"}
    with httpx.Client(base_url=f"http://{server.addresses['http']}", headers=headers) as client:
        for _ in range(2):
            assert client.post("/v2/models/cached/infer", content=body(3)).status_code == 200
        assert client.post("/v2/models/two_steps/infer", content=body(3).replace(b'"IN"', b'"A"')).status_code == 200
    missed, hit, ensemble = lines_of(file, before + 3)[before:]
    assert (missed["cached"], missed["instance"], missed["batch_size"]) == (False, "cached_0", 1)
    assert hit["cached"] is True
    assert hit["version"] == "1"
    assert "instance" not in hit
    assert "compute_us" not in hit
    assert ensemble["queue_us"] >= 0
    assert ensemble["compute_us"] > 0


def test_requests_of_a_batch(logged: tuple[ServerProcess, Path]) -> None:
    """Each has its own line, with the batch's size."""
    server, file = logged
    before = len(file.read_text().splitlines())
    headers = {"authorization": "Bearer 0123456789abcdef"}
    with Client("http", server.addresses["http"]) as client:
        array = np.full((1, 1), 99, np.float32)
        running = [client.raw.async_infer("echo", client.tensors({"IN": array}), headers=headers) for _ in range(9)]
        for each in running:
            each.get_result()
    lines = lines_of(file, before + 9)[before:]
    assert max(line["batch_size"] for line in lines) > 1


def test_language_models(tmp_path: Path) -> None:
    """With their tokens; a stream has its line at its end."""
    file = tmp_path / "access.log"
    write_scripted(tmp_path / "models")
    with ServerProcess(f"--access-log=all,file={file}", repository=tmp_path / "models") as server:
        with httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=60) as client:
            for stream in (False, True):
                asked = {"model": "echo", "prompt": "some words", "max_tokens": 5, "stream": stream}
                answer = client.post("/v1/completions", json=asked)
                assert answer.status_code == 200, answer.text
            assert client.post("/v1/completions", json={"model": "nobody", "prompt": "x"}).status_code == 404
        whole, streamed, refused = lines_of(file, 3)
    for line in (whole, streamed):
        assert (line["path"], line["model"], line["status"], line["cancelled"]) == (
            *("/v1/completions", "echo", 200),
            False,
        )
        assert line["input_tokens"] > 0
        assert line["output_tokens"] > 0
    assert refused["status"] == 404


def test_errors_alone_and_slow_ones(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    with ServerProcess(f"--access-log=errors,slow=40,file={file}", repository=models) as server:
        with httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=60) as client:
            for value in (1, -1, 99):
                client.post(INFER, content=body(value), headers={"x-request-id": str(value)})
        assert {line["request_id"] for line in lines_of(file, 2)} >= {"-1", "99"}


def test_lines_in_the_servers_log(models: Path) -> None:
    with ServerProcess("--access-log=errors", "--log-format=json", repository=models) as server:
        httpx.get(f"http://{server.addresses['http']}/nowhere")
        line = json.loads(server.wait_for_line('.*"path":"/nowhere".*').group())
    assert line["status"] == 404


def test_a_file_that_hangs_holds_up_nobody(models: Path, tmp_path: Path) -> None:
    """A named pipe whose reader reads nothing: every request is answered, and lines are lost and counted."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with ServerProcess(f"--access-log=all,file={pipe}", repository=models) as server:
            with httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=60) as client:
                path = f"/v2/models/{'x' * 200}"
                for _ in range(12_000):  # about 5 MB of lines, more than the ring and the pipe hold
                    assert client.get(path).status_code == 404
                assert client.post(INFER, content=body(1)).status_code == 200
            metrics = httpx.get(f"http://{server.addresses['metrics']}/metrics").text
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
    finally:
        os.close(reader)
    (lost,) = [line for line in metrics.splitlines() if line.startswith('trioton_log_lost_lines_total{log="access"')]
    assert float(lost.rpartition(" ")[2]) > 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_full_disk(models: Path) -> None:
    with ServerProcess("--access-log=all,file=/dev/full", "--log-file=/dev/full", repository=models) as server:
        # Its log is lost, and so are its addresses: it is asked by the system where it listens.
        assert eventually(lambda: bool(_ports(server.pid)))
        assert eventually(lambda: any(_answers(port) for port in _ports(server.pid)))


def _ports(pid: int) -> list[int]:
    """The TCP ports that a process listens on."""
    inodes = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    except OSError:
        return []
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def _answers(port: int) -> bool:
    try:
        return httpx.post(f"http://127.0.0.1:{port}{INFER}", content=body(1), timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
