"""The end of a server over HTTP/2: clients that are busy when the signal comes have an answer to all that they sent."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess

CLIENTS = 6
BODY = (
    b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,16],"data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]},'
    b'{"name":"INPUT1","datatype":"FP32","shape":[1,16],"data":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]}'
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models_for_http2")
    add_add_sub(directory / "add_sub", versions=(1,))
    return directory


def ask_until_the_end(address: str, outcomes: Counter[str]) -> None:
    """Over one connection after the other, until none can be opened."""
    with httpx.Client(http1=False, http2=True, trust_env=False) as client:
        while True:
            try:
                answer = client.post(f"http://{address}/v2/models/add_sub/infer", content=BODY)
            except httpx.ConnectError:
                return
            except httpx.HTTPError as error:
                outcomes[f"{type(error).__name__}: {error}"] += 1
            else:
                outcomes[str(answer.status_code)] += 1


@pytest.mark.parametrize("drain_secs", [0, 1])
def test_busy_clients_lose_nothing(models: Path, drain_secs: int) -> None:
    """Each request is answered, 200 or 503, or its connection could not be opened any more."""
    outcomes = [Counter[str]() for _ in range(CLIENTS)]
    with ServerProcess(f"--drain-secs={drain_secs}", repository=models) as server, ThreadPoolExecutor(CLIENTS) as pool:
        address = server.addresses["http"]
        ends = [pool.submit(ask_until_the_end, address, each) for each in outcomes]
        while min(each["200"] for each in outcomes) < 20:
            assert not any(end.done() for end in ends)
            time.sleep(0.05)
        server.signal(signal.SIGTERM)
        for end in ends:
            end.result(60)
        assert server.wait() == 0
    found = sum(outcomes, Counter[str]())
    assert set(found) <= {"200", "503"}, found


def test_curl_loses_nothing(models: Path, tmp_path: Path) -> None:
    """One connection of many requests, with prior knowledge; curl retries what a GOAWAY says was not begun."""
    (tmp_path / "body").write_bytes(BODY)
    with ServerProcess("--drain-secs=2", repository=models) as server:
        url = f"http://{server.addresses['http']}/v2/models/add_sub/infer?[1-3000]"
        command = ["curl", "--silent", "--http2-prior-knowledge", "--data-binary", f"@{tmp_path / 'body'}"]
        command += ["--output", "/dev/null", "--write-out", "%{http_code}\\n", url]
        stopping = threading.Timer(0.5, server.signal, [signal.SIGTERM])
        stopping.start()
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        stopping.join()
        assert server.wait() == 0
    statuses = Counter(done.stdout.split())
    # 000: the server had gone when a connection was opened.
    lost = done.stdout.split().index("000") if "000" in statuses else len(done.stdout.split())
    assert set(done.stdout.split()[:lost]) <= {"200", "503"}, statuses
    assert set(done.stdout.split()[lost:]) <= {"000"}, statuses
    assert statuses["200"] > 0
