"""What a streamed token costs the server in processor time: `python -m tests.bench.language.server_cost`.

For use while developing, as `tests.bench.processor_time` is: servers of several checkouts are measured in turns. The
time is that of the server's own process, not that of the engine's worker.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Protocol, get_args

from tests.bench.language.models import NEW_TOKENS, SCRIPTED, TINY, Question, Way, question, write_models
from tests.bench.language.streams import LIMIT_SECONDS, Streamed
from tests.bench.peers import SOURCE, PeerError, Server, our_server
from tests.bench.processor import MICROSECONDS, tree_times
from tests.bench.rows import Port
from tests.bench.table import table

STREAMS = (1, 16, 64)
TOKENS = 40_000  # of a turn, about
MEASURE_SECONDS = 2 * LIMIT_SECONDS


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn's figures."""

    tokens_per_second: float
    server_us: float  # of the server's own process, for a token
    first_token_ms: float  # the median
    tokens_per_event: float  # more than one where the client has not taken the one before


def load(address: str, asked: Question, streams: int, answers: int, folder: Path) -> Streamed:
    """Run the load in a process of its own. Raises ValueError with what it says if it fails."""
    body = folder / "body.json"
    body.write_bytes(asked.body)
    command = [
        *(sys.executable, "-m", "tests.bench.language.streams", "--address", address, "--path", asked.path),
        *("--body", str(body), "--streams", str(streams), "--answers", str(answers), "--mark", asked.mark),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_SECONDS, cwd=SOURCE, check=False)
    if ended.returncode:
        raise ValueError(ended.stderr.strip())
    return Streamed(**json.loads(ended.stdout))


class Serving(Protocol):
    """A server that was started."""

    @property
    def process(self) -> subprocess.Popen[bytes] | None: ...

    def address(self, port: Port) -> str: ...


def turn(server: Serving, asked: Question, streams: int, folder: Path, tokens: int = TOKENS) -> Turn:
    """Raises ValueError."""
    assert server.process is not None
    answers = max(tokens // NEW_TOKENS // streams, 1)
    load(server.address("http"), asked, streams, 1, folder)  # warms up
    before = tree_times(server.process.pid)
    streamed = load(server.address("http"), asked, streams, answers, folder)
    used = tree_times(server.process.pid) - before
    made = streamed.answers * NEW_TOKENS
    own = (used.user + used.system) / made * MICROSECONDS
    return Turn(made / streamed.seconds, own, median(streamed.first_token) * 1000, made / streamed.events)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.language.server_cost", description="Measure what a streamed token costs the server."
    )
    parser.add_argument("--source", action="append", type=Path, metavar="FOLDER", help="another checkout; repeatable")
    parser.add_argument("--way", action="append", choices=get_args(Way), help="default all; repeatable")
    parser.add_argument("--streams", action="append", type=int, help=f"default {STREAMS}; repeatable")
    parser.add_argument("--model", action="append", choices=(SCRIPTED, TINY), help="default both; repeatable")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a turn, about (default %(default)s)")
    parser.add_argument(
        "--step-seconds", type=float, default=0.0, help="how long a step of the scripted engine takes (default none)"
    )
    options = parser.parse_args(arguments)
    has_engine = importlib.util.find_spec("openvino_genai") is not None
    models = options.model or ([SCRIPTED, TINY] if has_engine else [SCRIPTED])
    cases = list(product(models, options.way or get_args(Way), options.streams or STREAMS))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        write_models(folder / "models", has_engine=has_engine, step_seconds=options.step_seconds)
        servers: dict[str, Server] = {}
        for source in options.source or [SOURCE]:
            log = folder / f"{len(servers)}.log"
            server = Server(replace(our_server(source.resolve()), models=folder / "models"), log)
            stack.callback(server.stop)
            try:
                server.start()
            except PeerError as error:
                sys.exit(f"error: {error}")
            servers[str(source)] = server
        turns: dict[tuple[object, ...], list[Turn]] = {}
        for _, (model, way, streams), (source_name, server) in product(
            range(options.rounds), cases, list(servers.items())
        ):
            found = turn(server, question(way, model), streams, folder, options.tokens)
            turns.setdefault((model, way, streams, source_name), []).append(found)
    print(report(turns))


def report(turns: dict[tuple[object, ...], list[Turn]]) -> str:
    header = ["model", "way", "streams", "server", "server µs a token", "tokens/event", "tokens/s", "first token ms"]
    lines = [
        [
            *map(str, case),
            f"{median(each.server_us for each in found):.1f}",
            f"{median(each.tokens_per_event for each in found):.2f}",
            f"{median(each.tokens_per_second for each in found):,.0f}",
            f"{median(each.first_token_ms for each in found):.1f}",
        ]
        for case, found in turns.items()
    ]
    return table(header, lines, text_columns=4)


if __name__ == "__main__":
    main()
