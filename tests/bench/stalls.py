"""How far one client's large or many requests hold up a small one's: `python -m tests.bench.stalls [NAME…]`.

A server in a process of its own, with a model that answers at once, and a client of it at a steady rate in another.
Each cause (`stall_causes`) is provoked several times beside it. `--source FOLDER` measures the server of another
checkout.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

import trustme

from tests.bench.machine import this_machine
from tests.bench.memory import process_tree
from tests.bench.peers import HOST, SOURCE, PeerError, Server, our_server
from tests.bench.stall_causes import CAUSES, OVER_TLS
from tests.bench.stall_probe import Probe
from tests.bench.stall_provoker import Provoker
from tests.bench.stall_target import Target
from tests.bench.table import table
from tests.bench.turns import PARTS, Turns, edge_file, parts_file, read, together

IDENTITY = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({seconds})
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """
backend: "python"
input {{ name: "IN" data_type: {datatype} dims: -1 }}
output {{ name: "OUT" data_type: {datatype} dims: -1 }}
{more}
"""
CHAT = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        text = np.array([b"yes"], np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]) for _ in requests]
"""
CHAT_CONFIG = """
backend: "python"
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
input { name: "image" data_type: TYPE_STRING dims: -1 optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: 1 }
parameters { key: "chat_template" value { string_value:
  "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}" } }
"""
IN_LOOP = 'parameters { key: "ISOLATION" value { string_value: "in_loop" } }'
# By name: datatype, seconds of a request, and what else its configuration has.
MODELS = {
    "probe": ("TYPE_FP32", 0.0, IN_LOOP),
    "large": ("TYPE_FP32", 0.0, ""),
    "integers": ("TYPE_INT32", 0.0, ""),
    "texts": ("TYPE_STRING", 0.0, ""),
    "slow": ("TYPE_FP32", 5.0, ""),
}
LOAD_SECONDS = 300
LIMIT = 512 << 20
TURNS_SECONDS = 30
EDGE_NAME = "trioton-edge-"
REST_SECONDS = 1.0  # between two times
_BUCKET = re.compile(r'^trioton_loop_lag_seconds_bucket{le="([^"]+)"} (\d+)', re.MULTILINE)


@dataclass(slots=True)
class Measured:
    """What requests took in milliseconds; of the server's loop, how late it was at most, in seconds, and its
    turns."""

    cause: str
    requests: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    lag: str = ""
    turns: Turns = field(default_factory=Turns)
    edge_turns: Turns = field(default_factory=Turns)

    def cells(self) -> list[str]:
        percentiles = quantiles(self.requests, n=100)
        each = f"{sum(self.seconds) / len(self.seconds):.2f}" if self.seconds else ""
        return [
            self.cause,
            f"{percentiles[49]:.1f}",
            f"{percentiles[98]:.1f}",
            f"{max(self.requests):.0f}",
            self.lag,
            f"{self.turns.longest * 1000:.1f}",
            str(self.turns.long),
            f"{self.edge_turns.longest * 1000:.1f}",
            str(self.edge_turns.long),
            each,
        ]


HEADER = ["beside", "p50, ms", "p99, ms", "max, ms", "lag <= s", "longest turn, CPU ms", "turns > 2 ms"]
HEADER += ["edges' longest", "edges' > 2 ms", "takes, s"]


@contextmanager
def repository_of(count: int) -> Iterator[Path]:
    with TemporaryDirectory() as name:
        models = MODELS | {f"model_{number:04}": ("TYPE_FP32", 0.0, IN_LOOP) for number in range(count)}
        for model, (datatype, seconds, more) in models.items():
            folder = Path(name) / model
            (folder / "1").mkdir(parents=True)
            (folder / "1" / "model.py").write_text(IDENTITY.format(seconds=seconds))
            (folder / "config.pbtxt").write_text(CONFIG.format(datatype=datatype, more=more))
        chat = Path(name) / "chat"
        (chat / "1").mkdir(parents=True)
        (chat / "1" / "model.py").write_text(CHAT)
        (chat / "config.pbtxt").write_text(CHAT_CONFIG)
        yield Path(name)


def lag_counts(port: int) -> dict[str, int]:
    """How often the loop was late by so much at most, by the bound."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {bound: int(count) for bound, count in _BUCKET.findall(text)}


def largest_lag(before: dict[str, int], after: dict[str, int]) -> str:
    """The least bound that all measurements in between have kept."""
    counts = {bound: count - before.get(bound, 0) for bound, count in after.items()}
    return next((bound for bound, count in counts.items() if count == counts.get("+Inf")), "")


def measure(server: Server, turns: Path, cause: str, provoker: Provoker, options: argparse.Namespace) -> Measured:
    """An empty cause is none."""
    measured = Measured(cause or "nothing")
    assert server.process is not None
    if cause:
        provoker.provoke(cause)  # once unmeasured: what is made for it, here and there, is made
    before = lag_counts(server.ports[2])
    with Probe(server.ports[0]) as probe:
        time.sleep(0.2)
        _turns(server, turns)
        end = time.monotonic() + options.seconds
        for _ in range(options.times):
            began = time.monotonic()
            if cause:
                provoker.provoke(cause)
                measured.seconds.append(time.monotonic() - began)
            time.sleep(REST_SECONDS)
            if time.monotonic() > end:
                break
        measured.turns, measured.edge_turns = _turns(server, turns)
    measured.requests = probe.taken
    measured.lag = largest_lag(before, lag_counts(server.ports[2]))
    return measured


def _turns(server: Server, file: Path) -> tuple[Turns, Turns]:
    """Since it was called last: those of the server's own process, and those of its edge processes."""
    assert server.process is not None
    files = {edge_file(file, number): pid for number, pid in _edges(server.process.pid)} | {file: server.process.pid}
    for each, pid in files.items():
        each.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR2)
    end = time.monotonic() + TURNS_SECONDS
    while not all(each.is_file() for each in files):
        if time.monotonic() > end:
            raise PeerError("the server has not written its turns")
        time.sleep(0.01)
    return read(file), together(read(each) for each in files if each != file)


def _print_longest(server: Server, file: Path, count: int) -> None:
    """Of the server's own process, and of each edge process."""
    assert server.process is not None
    for each in (file, *(edge_file(file, number) for number, _ in _edges(server.process.pid))):
        texts = json.loads(parts_file(each).read_text())
        print(f"{each.suffix[1:]}:", *texts[:count], sep="\n", file=sys.stderr, flush=True)


def _edges(server: int) -> Iterator[tuple[int, int]]:
    """Their numbers and processes."""
    for pid in process_tree(server):
        with suppress(OSError):  # it has ended meanwhile
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if name.startswith(EDGE_NAME):
                yield int(name.removeprefix(EDGE_NAME)), pid


@contextmanager
def started(options: argparse.Namespace, models: Path, folder: Path, *flags: str) -> Iterator[tuple[Server, Path]]:
    peer, turns = our_server(options.source), folder / "turns.json"
    python, _, _, *rest = peer.command
    parts = (PARTS,) if options.longest else ()
    command = (python, str(Path(__file__).with_name("turns.py")), *parts, str(turns), *rest, *flags)
    command += ("--backend-config=python,allow-in-process=true", "--model-control-mode=explicit", "--load-model=*")
    command += (f"--http-max-input-size={LIMIT}", "--debug-loop-lag-ms=10", f"--jobs-store={folder / 'jobs'}")
    command += (f"--edge-processes={options.edges}",)
    server = Server(replace(peer, command=command, models=models), folder / "log", ready_seconds=LOAD_SECONDS)
    server.start()
    try:
        yield server, turns
    finally:
        server.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stalls", description="Measure what holds others up.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CAUSES)} (default: all)")
    parser.add_argument("--models", type=int, default=100, help="how many more models (default %(default)s)")
    parser.add_argument("--times", type=int, default=5, help="that each is provoked (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="after which no time begins (default %(default)s)")
    parser.add_argument("--edges", type=int, default=0, help="edge processes of the server (default %(default)s)")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the checkout whose server is measured")
    parser.add_argument("--holders", type=int, default=0, help="lines of the log to print: what has held the loop")
    parser.add_argument("--longest", type=int, default=0, help="turns of the loop to print: what they consisted of")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(CAUSES):
        parser.error(f"no such name: {', '.join(sorted(unknown))}")
    names = options.names or list(CAUSES)
    machine = this_machine()
    print(f"{datetime.date.today()}, {machine.cores} cores, load average {machine.load_average:.1f}", file=sys.stderr)
    rows = [HEADER]
    with ExitStack() as stack:
        models = stack.enter_context(repository_of(options.models))
        for over_tls in (False, True):
            chosen = [name for name in names if (name in OVER_TLS) is over_tls]
            if not chosen:
                continue
            folder = Path(stack.enter_context(TemporaryDirectory()))
            flags = tls_flags(folder) if over_tls else ()
            with started(options, models, folder, *flags) as (server, turns):
                provoker = Provoker(Target(server.ports, models, options.models))
                with provoker:
                    for name in ("", *chosen):
                        measured = measure(server, turns, name, provoker, options)
                        rows.append(measured.cells())
                        print(*measured.cells(), sep="\t", file=sys.stderr, flush=True)
                        if options.longest:
                            _print_longest(server, turns, options.longest)
            lines = [line for line in (folder / "log").read_text().splitlines() if "the loop was held" in line]
            print(*lines[len(lines) - options.holders :], sep="\n", file=sys.stderr)
    print(table(rows[0], rows[1:], text_columns=1))
    return 0


def tls_flags(folder: Path) -> tuple[str, ...]:
    authority = trustme.CA()
    made = authority.issue_cert(HOST)
    certificate, key = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return ("--grpc-use-ssl=true", f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}")


if __name__ == "__main__":
    sys.exit(main())
