"""What scrapes cost the requests beside them, with a thousand models: `python -m tests.bench.scrapes`.

A server in a process of its own has many copies of a model that answers at once. One client sends it request after
request, while another asks for the metrics once in a second, then for the statistics, the index and the OpenAPI
document. `--source FOLDER` measures the server of another checkout.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from tests.bench.peers import SOURCE, Server, our_server
from tests.bench.table import table

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
parameters { key: "ISOLATION" value { string_value: "in_loop" } }
"""
REQUEST = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}'
LOAD_SECONDS = 300
# What is asked for, by method and path; the metrics are on a port of their own.
PAGES = {
    "metrics": ("GET", "/metrics"),
    "statistics": ("GET", "/v2/models/stats"),
    "index": ("POST", "/v2/repository/index"),
    "OpenAPI": ("GET", "/v2/docs/openapi.json"),
}


@dataclass(slots=True)
class Measured:
    """Of one page: what requests took beside it in milliseconds, and what it took itself, in bytes and seconds."""

    page: str
    requests: list[float] = field(default_factory=list)
    scrapes: list[float] = field(default_factory=list)
    size: int = 0
    sent: int = 0

    def cells(self) -> list[str]:
        percentiles = quantiles(self.requests, n=100)
        cells = [self.page, f"{percentiles[49]:.2f}", f"{percentiles[98]:.2f}", f"{max(self.requests):.1f}"]
        if not self.scrapes:
            return [*cells, "", "", "", ""]
        return [*cells, str(len(self.scrapes)), f"{median(self.scrapes):.3f}", f"{self.size:,}", f"{self.sent:,}"]


@contextmanager
def repository_of(models: int) -> Iterator[Path]:
    with TemporaryDirectory() as name:
        for index in range(models):
            folder = Path(name) / f"model_{index:03}"
            (folder / "1").mkdir(parents=True)
            (folder / "1" / "model.py").write_text(MODEL)
            (folder / "config.pbtxt").write_text(CONFIG)
        yield Path(name)


def requests_until(stop: threading.Event, port: int, taken: list[float]) -> None:
    """Send request after request on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while not stop.is_set():
        began = time.perf_counter()
        connection.request("POST", "/v2/models/model_000/infer", REQUEST)
        answer = connection.getresponse()
        body = answer.read()
        taken.append((time.perf_counter() - began) * 1000)
        assert answer.status == 200, body
    connection.close()


def scrape(port: int, page: str, measured: Measured) -> None:
    method, path = PAGES[page]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.perf_counter()
    connection.request(method, path, headers={"accept-encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    measured.scrapes.append(time.perf_counter() - began)
    assert answer.status == 200, body
    is_coded = answer.getheader("content-encoding") == "gzip"
    measured.sent, measured.size = len(body), len(gzip.decompress(body) if is_coded else body)
    connection.close()


def measure(server: Server, page: str, seconds: float) -> Measured:
    """Requests for so long, and the page once in each second; an empty name stands for none."""
    measured, stop = Measured(page or "nothing"), threading.Event()
    client = threading.Thread(target=requests_until, args=(stop, server.ports[0], measured.requests))
    client.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1)
        if page:
            scrape(server.ports[2 if page == "metrics" else 0], page, measured)
    stop.set()
    client.join()
    return measured


def report(rows: Sequence[Measured]) -> str:
    header = ["beside", "p50, ms", "p99, ms", "max, ms", "scrapes", "each, s", "bytes", "sent"]
    return table(header, [row.cells() for row in rows], text_columns=1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scrapes", description="Measure what scrapes cost.")
    parser.add_argument("--models", type=int, default=1000, help="how many (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="for each page (default %(default)s)")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the checkout whose server is measured")
    options = parser.parse_args(arguments)
    with repository_of(options.models) as models, TemporaryDirectory() as folder:
        peer = our_server(options.source)
        command = (*peer.command, "--backend-config=python,allow-in-process=true")
        peer = replace(peer, command=command, models=models)
        server = Server(peer, Path(folder) / "log", ready_seconds=LOAD_SECONDS)
        server.start()
        try:
            print(report([measure(server, page, options.seconds) for page in ("", *PAGES)]))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
