"""What a server pays for the number of its models: `python -m tests.bench.repository_scale`.

A server in poll mode gets 10, 100 and 1000 small models, half of them ONNX and half `model.py`, and is asked for all
that looks at every model: the index, the statistics, the metrics, the OpenAPI document; and for what looks at one. With
`--peer`, NVIDIA's server gets the models that its Python backend can run, in turns. `--source FOLDER` measures the
server of another checkout.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.memory import PROC, Memory, process_memory, tree_memory
from tests.bench.peers import SOURCE, Peer, PeerError, Server, our_server, their_server
from tests.bench.prepare import PreparationError, prepare
from tests.bench.processor import process_seconds, tree_times
from tests.bench.scaled_models import KINDS, add_models
from tests.bench.table import NOT_MEASURED, table

LOAD_SECONDS = 900
SETTLE_SECONDS = 3.0
POLL_SECONDS = 5
POLLS = 3
# What is asked for, by method and path; the metrics are on a port of their own. `{}` is a model in the middle.
PAGES = {
    "index": ("POST", "/v2/repository/index"),
    "statistics": ("GET", "/v2/models/stats"),
    "metrics": ("GET", "/metrics"),
    "OpenAPI": ("GET", "/v2/docs/openapi.json"),
    "ready": ("GET", "/v2/health/ready"),
    "metadata": ("GET", "/v2/models/{}"),
    "config": ("GET", "/v2/models/{}/config"),
}


@dataclass(slots=True)
class Scale:
    """What was seen of one server with so many models; bytes, seconds."""

    models: int
    ready: float
    load: float  # of the processor, all processes
    server: Memory
    all: Memory
    threads: int
    descriptors: int
    poll: float  # of the processor
    pages: dict[str, float] = field(default_factory=dict)  # of the processor


def measure(peer: Peer, models: int, kinds: Sequence[str], rounds: int, folder: Path) -> Scale:
    """Start a server with so many models, look, and stop it. Raises PeerError."""
    with TemporaryDirectory(dir=folder) as name:
        names = add_models(Path(name), models, kinds)
        flags = ("--model-control-mode=poll", f"--repository-poll-secs={POLL_SECONDS}")
        peer = replace(peer, command=(*peer.command, *flags), models=Path(name))
        server = Server(peer, folder / f"{peer.name}-{models}.log", ready_seconds=LOAD_SECONDS)
        ready = server.start()
        try:
            return _look(server, ready, names, rounds)
        finally:
            server.stop()


def _look(server: Server, ready: float, names: Sequence[str], rounds: int) -> Scale:
    assert server.process is not None
    pid = server.process.pid
    load = tree_times(pid).total
    time.sleep(SETTLE_SECONDS)
    threads, descriptors = _count(pid, "task"), _count(pid, "fd")
    before = tree_times(pid)
    time.sleep(POLL_SECONDS * POLLS)
    used = tree_times(pid) - before
    scale = Scale(
        models=len(names),
        ready=ready,
        load=load,
        server=process_memory(pid),
        all=tree_memory(pid),
        threads=threads,
        descriptors=descriptors,
        poll=(used.user + used.system) / POLLS,
    )
    for page, (method, path) in PAGES.items():
        port = server.ports[2 if page == "metrics" else 0]
        path = path.format(names[len(names) // 2])
        try:
            times = [_ask(pid, port, method, path) for _ in range(rounds)]
        except http.client.HTTPException:  # a server that has no such page
            continue
        scale.pages[page] = median(times)
    return scale


def _ask(pid: int, port: int, method: str, path: str) -> float:
    """Seconds of the server's processor for one answer. Raises HTTPException where it is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        before = process_seconds(pid)
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise http.client.HTTPException(f"{path}: {answer.status} {body[:200]!r}")
        return process_seconds(pid) - before
    finally:
        connection.close()


def _count(pid: int, what: str) -> int:
    return sum(1 for _ in (PROC / str(pid) / what).iterdir())


def report(title: str, found: Sequence[Scale]) -> str:
    """A row for each figure, a column for each number of models, and how the largest grows beside the one before."""

    def row(name: str, values: Sequence[float | None], form: str) -> list[str]:
        cells = [NOT_MEASURED if value is None else format(value, form) for value in values]
        return [name, *cells, _growth([scale.models for scale in found], values)]

    def per_model(values: Sequence[int]) -> list[float | None]:
        """In KiB, above the smallest server, which stands for one without models."""
        least, fewest = values[0], found[0].models
        differences = zip(values[1:], found[1:], strict=True)
        return [None, *((value - least) / 1024 / (scale.models - fewest) for value, scale in differences)]

    lines = [
        row("ready, s", [scale.ready for scale in found], ".2f"),
        row("ready, s of the processor", [scale.load for scale in found], ".2f"),
        row("RSS of the server, MiB", [scale.server.resident / 2**20 for scale in found], ".1f"),
        row("PSS of all processes, MiB", [scale.all.proportional / 2**20 for scale in found], ".1f"),
        row("processes", [scale.all.processes for scale in found], "d"),
        row("threads of the server", [scale.threads for scale in found], "d"),
        row("descriptors of the server", [scale.descriptors for scale in found], "d"),
        row("poll, ms of the processor", [scale.poll * 1000 for scale in found], ".1f"),
        *(row(f"{page}, ms of the processor", [_of_page(scale, page) for scale in found], ".2f") for page in PAGES),
    ]
    for name, values in (
        ("RSS of the server, KiB a model", [scale.server.resident for scale in found]),
        ("PSS of all processes, KiB a model", [scale.all.proportional for scale in found]),
    ):
        lines.append([*row(name, per_model(values), ".0f")[:-1], ""])
    header = [title, *(f"{scale.models:,}" for scale in found), "growth"]
    return table(header, lines, text_columns=1)


def _of_page(scale: Scale, page: str) -> float | None:
    return scale.pages[page] * 1000 if page in scale.pages else None


def _growth(models: Sequence[int], values: Sequence[float | None]) -> str:
    """Of the last figure over the one before, beside the number of models: 1 is linear, less is better."""
    if len(values) < 2 or not values[-1] or not values[-2]:
        return NOT_MEASURED
    return f"{values[-1] / values[-2] / (models[-1] / models[-2]):.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.repository_scale", description="Measure many models.")
    parser.add_argument("--models", type=int, nargs="+", default=[10, 100, 1000], help="how many, in turns")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["onnx", "python"], help="in turns")
    parser.add_argument("--rounds", type=int, default=5, help="of each page (default %(default)s)")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the checkout whose server is measured")
    parser.add_argument("--peer", action="store_true", help="NVIDIA's server too, with the models of model.py")
    parser.add_argument("--only-peer", action="store_true", help="NVIDIA's server alone")
    options = parser.parse_args(arguments)
    try:
        runs: list[tuple[Peer, list[str]]] = []
        if not options.only_peer:
            peer = our_server(options.source)
            if {"in_process", "in_loop"} & set(options.kinds):
                peer = replace(peer, command=(*peer.command, "--backend-config=python,allow-in-process=true"))
            runs.append((peer, options.kinds))
        if options.peer or options.only_peer:
            runs.append((their_server(prepare()), ["python"]))
        with TemporaryDirectory() as folder:
            for peer, kinds in runs:
                found: list[Scale] = []
                try:
                    found.extend(measure(peer, each, kinds, options.rounds, Path(folder)) for each in options.models)
                finally:  # a server may end of too many
                    if found:
                        print(report(f"{peer.name}: {', '.join(kinds)}", found), flush=True)
    except (PreparationError, PeerError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
