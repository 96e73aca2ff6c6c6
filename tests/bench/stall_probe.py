"""A client of a small model at a steady rate, in a process of its own: `python -m tests.bench.stall_probe PORT`.

A request leaves when its time has come, or as soon as the one before it is answered; what it takes counts from its
time, so that one stall shows in all requests that should have been sent meanwhile. When its input ends, it writes the
milliseconds as JSON.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from types import TracebackType

from tests.bench.peers import HOST, SOURCE

RATE = 50  # requests a second
PATH = "/v2/models/probe/infer"
REQUEST = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}'
WAIT_SECONDS = 60


class Probe:
    """The process, while the block lasts; then `taken` has the milliseconds."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.taken: list[float] = []

    def __enter__(self) -> Probe:
        command = [sys.executable, "-m", "tests.bench.stall_probe", str(self._port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=SOURCE)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # the first request is answered
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            answer, _ = self._process.communicate(timeout=WAIT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
        self.taken = json.loads(answer)


def main(port: int) -> None:
    over = threading.Event()
    threading.Thread(target=_end, args=(over,), daemon=True).start()
    connection = http.client.HTTPConnection(HOST, port, timeout=WAIT_SECONDS)
    send(connection)
    print("begun", flush=True)
    taken: list[float] = []
    due = time.perf_counter()
    while not over.is_set():
        due += 1 / RATE
        time.sleep(max(0.0, due - time.perf_counter()))
        send(connection)
        taken.append((time.perf_counter() - due) * 1000)
    print(json.dumps(taken))


def _end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def send(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", PATH, REQUEST)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body


if __name__ == "__main__":
    main(int(sys.argv[1]))
