"""The benchmark of language models: `python -m tests.bench.language`, a part of `make bench`.

Rows take turns, ours and what they are held against; figures are medians over the rounds. What is not installed is left
out, and its cells are empty: OpenVINO GenAI in this Python, a Python with torch and optimum that builds the model of 30
million parameters, and one with vLLM.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

from tests.backends.engines.models import TINY as TINY_FILES
from tests.bench.goals import at_least, at_most
from tests.bench.language import aiperf
from tests.bench.language.models import (
    ADD_SUB,
    NEW_TOKENS,
    ONE_THREAD,
    PACED,
    SMALL,
    TINY,
    prompt_tokens,
    question,
    write_models,
)
from tests.bench.language.server_cost import Serving, Turn, load, turn
from tests.bench.language.vllm_server import READY_SECONDS, VllmServer, write_vllm_model
from tests.bench.machine import this_machine
from tests.bench.measurement import LoadFailed
from tests.bench.peers import SOURCE, PeerError, Server, our_server
from tests.bench.prepare import DEFAULT_FOLDER
from tests.bench.table import NOT_MEASURED, table

STREAMS = (1, 16, 64)
# The goals: how many times vLLM's tokens per second, µs of a token, seconds, the part of the engine's own.
SERVER_PATH, TOKEN_US, SMALL_MODEL, START_SECONDS, P99_MS = 2.0, 30.0, 1.5, 3.0, 2.0
SAME_VLLM = 0.95
OF_THE_ENGINE = {16: 0.95, 64: 0.97}
TURN_TOKENS = {1: 4_000, 16: 20_000, 64: 60_000}
SMALL_TOKENS = {1: 1_000, 16: 8_000, 64: 16_000}
AIPERF_REQUESTS = 320
SMALL_SECONDS = 5.0
BUILD_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    row: str
    ours: str
    beside: str = NOT_MEASURED
    goal: str = NOT_MEASURED


class Benchmark:
    """The servers of a run; `vllm` is a Python that has vLLM."""

    def __init__(self, stack: ExitStack, folder: Path, rounds: int, small: Path | None, vllm: Path | None) -> None:
        self._stack = stack
        self._folder = folder
        self._rounds = rounds
        self._small = small
        self._vllm = vllm
        write_models(folder / "models", has_engine=True, small=None if small is None else small / "openvino")
        self._ours = Server(replace(our_server(), models=folder / "models"), folder / "server.log")
        stack.callback(self._ours.stop)
        self._ours.start()

    def lines(self) -> list[Line]:
        return [
            *self._server_path(),
            *self._by_aiperf(),
            *self._small_model(),
            *self._beside_streams(),
            self._first_token(),
        ]

    def _server_path(self) -> list[Line]:
        ours, theirs = self._turns(TINY, STREAMS, self._vllm_of(TINY), TURN_TOKENS)
        lines = [
            against(
                f"tiny model, {streams} streams, tokens/s",
                ours[streams],
                theirs.get(streams),
                goal=SERVER_PATH,
            )
            for streams in STREAMS
        ]
        most = STREAMS[-1]
        own = median(each.server_us for each in ours[most])
        beside = f"{median(each.server_us for each in theirs[most]):.1f}" if theirs else NOT_MEASURED
        text = f"server's processor time of a token, {most} streams, µs"
        return [*lines, Line(text, f"{own:.1f}", beside, at_most(own, TOKEN_US))]

    def _by_aiperf(self) -> list[Line]:
        """The same by another load generator, which reads all that comes."""
        if not aiperf.PROGRAM.is_file():
            return []
        streams = 16
        other = self._vllm_of(TINY)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(self._rounds):
            for address, found in ((self._ours.address("http"), ours), (other and other.address("http"), theirs)):
                if address:
                    found.append(
                        aiperf.tokens_per_second(address, TINY, TINY_FILES, streams, AIPERF_REQUESTS, self._folder)
                    )
        if other is not None:
            other.stop()
        row, speed = f"tiny model, {streams} streams, tokens/s, by AIPerf", median(ours)
        if not theirs:
            return [Line(row, f"{speed:,.0f}")]
        return [Line(row, f"{speed:,.0f}", f"{median(theirs):,.0f}", at_least(speed / median(theirs), SERVER_PATH))]

    def _small_model(self) -> list[Line]:
        if self._small is None:
            return []
        ours, theirs = self._turns(SMALL, STREAMS, self._vllm_of(SMALL), SMALL_TOKENS)
        lines = [
            against(
                f"30 M parameters, {streams} streams, tokens/s",
                ours[streams],
                theirs.get(streams),
                goal=SMALL_MODEL if streams == 16 else None,
            )
            for streams in STREAMS
        ]
        return [
            *lines,
            *self._same_vllm(),
            *(self._beside_the_engine(streams, goal) for streams, goal in OF_THE_ENGINE.items()),
        ]

    def _same_vllm(self) -> list[Line]:
        """vLLM's engine behind our routes and behind its own, where its Python can run our server, too."""
        if self._vllm is None or self._small is None or not _has_server(self._vllm):
            return []
        write_vllm_model(self._folder / "vllm" / SMALL, self._small / "huggingface")
        peer = our_server()
        peer = replace(peer, command=(str(self._vllm), *peer.command[1:]), models=self._folder / "vllm")
        server = Server(peer, self._folder / "vllm-ours.log", ready_seconds=READY_SECONDS)
        theirs = self._vllm_of(SMALL)
        assert theirs is not None
        self._stack.callback(server.stop)
        asked, streams = question("chat", SMALL), 16
        ours: list[Turn] = []
        own: list[Turn] = []
        server.start()
        for number in range(self._rounds):
            pair: list[tuple[Serving, list[Turn]]] = [(server, ours), (theirs, own)]
            for one, turns in pair if number % 2 == 0 else reversed(pair):
                turns.append(turn(one, asked, streams, self._folder, SMALL_TOKENS[streams]))
        server.stop()
        theirs.stop()
        return same_engine(f"vLLM's engine, 30 M parameters, {streams} streams, tokens/s", ours, own)

    def _beside_the_engine(self, streams: int, goal: float) -> Line:
        """The engine has one thread, so that where there are two cores the server has the other. Both get the same
        tokens: a chat's template would add to the prompt. It runs alone before and after each turn of the server, since
        the machine's speed drifts by more than is looked for."""
        ours: list[float] = []
        alone = [self._alone(streams)]
        asked, tokens = question("completions", ONE_THREAD), SMALL_TOKENS[streams]
        for _ in range(self._rounds):
            ours.append(turn(self._ours, asked, streams, self._folder, tokens).tokens_per_second)
            alone.append(self._alone(streams))
        around = [(before + after) / 2 for before, after in pairwise(alone)]
        ratio = median(one / other for one, other in zip(ours, around, strict=True))
        row = f"30 M parameters, one thread, {streams} streams, beside the engine alone"
        return Line(row, f"{median(ours):,.0f}", f"{median(alone):,.0f}", at_least(ratio, goal))

    def _turns(
        self, model: str, streams: Sequence[int], other: VllmServer | None, tokens: dict[int, int]
    ) -> tuple[dict[int, list[Turn]], dict[int, list[Turn]]]:
        """Ours and theirs, in turns."""
        ours: dict[int, list[Turn]] = {each: [] for each in streams}
        theirs: dict[int, list[Turn]] = {} if other is None else {each: [] for each in streams}
        asked = question("chat", model)
        for _ in range(self._rounds):
            for each in streams:
                ours[each].append(turn(self._ours, asked, each, self._folder, tokens[each]))
                if other is not None:
                    theirs[each].append(turn(other, asked, each, self._folder, tokens[each] // 2))
        if other is not None:
            other.stop()
        return ours, theirs

    def _vllm_of(self, model: str) -> VllmServer | None:
        """Started, where there is vLLM and a model for it."""
        if self._vllm is None or self._small is None:
            return None
        files = self._small / ("huggingface" if model == SMALL else "tiny")
        server = VllmServer(self._vllm, files, model, self._folder / f"vllm-{model}.log")
        self._stack.callback(server.stop)
        server.start()
        return server

    def _alone(self, streams: int) -> float:
        assert self._small is not None
        folder = self._small / "openvino"
        answers = max(SMALL_TOKENS[streams] // NEW_TOKENS // streams, 1)
        command = [
            *(sys.executable, "-m", "tests.bench.language.engine_alone", "--folder", str(folder)),
            *("--prompt", ",".join(map(str, prompt_tokens(folder))), "--new-tokens", str(NEW_TOKENS)),
            *("--streams", str(streams), "--answers", str(answers)),
        ]
        return float(json.loads(subprocess.run(command, capture_output=True, check=True, cwd=SOURCE).stdout))

    def _beside_streams(self) -> list[Line]:
        """A small model's requests, alone and while 64 streams decode."""
        alone = [value for _ in range(self._rounds) for value in self._small_requests()]
        beside: list[float] = []
        asked, streams = question("chat", PACED), STREAMS[-1]
        for _ in range(self._rounds):
            answers = int(SMALL_SECONDS * 2 / (NEW_TOKENS * 0.02))
            command = functools.partial(load, self._ours.address("http"), asked, streams, answers, self._folder)
            beside += self._during(command)
        before, after = (1000 * quantiles(each, n=100)[-1] for each in (alone, beside))
        row = f"p99 of {ADD_SUB} while {streams} streams decode, ms more"
        return [Line(row, f"{after:.2f}", f"{before:.2f}", at_most(after - before, P99_MS))]

    def _during(self, streams: Callable[[], object]) -> list[float]:
        loading = threading.Thread(target=streams)
        loading.start()
        try:
            time.sleep(1.0)  # until all of them run
            return self._small_requests()
        finally:
            loading.join()

    def _small_requests(self) -> list[float]:
        command = [sys.executable, "-m", "tests.bench.language.small_requests", self._ours.address("http")]
        ended = subprocess.run([*command, str(SMALL_SECONDS)], capture_output=True, check=True, cwd=SOURCE)
        return list(json.loads(ended.stdout))

    def _first_token(self) -> Line:
        """From the start of the server to the first token of a chat, with one model."""
        self._ours.stop()
        models = self._folder / "one"
        models.mkdir()
        (models / TINY).symlink_to(self._folder / "models" / TINY)
        seconds = []
        for _ in range(self._rounds):
            server = Server(replace(our_server(), models=models), self._folder / "first.log")
            self._stack.callback(server.stop)
            began = time.monotonic()
            server.start()
            load(server.address("http"), question("chat", TINY, 1), 1, 1, self._folder)
            seconds.append(time.monotonic() - began)
            server.stop()
        found = median(seconds)
        return Line("start to first token, s", f"{found:.2f}", goal=at_most(found, START_SECONDS))


def _has_server(python: Path) -> bool:
    """Whether our server can run there."""
    imports = [str(python), "-c", "import trioton.cli"]
    return subprocess.run(imports, capture_output=True, cwd=SOURCE, check=False).returncode == 0


def against(row: str, ours: Sequence[Turn], theirs: Sequence[Turn] | None, goal: float | None) -> Line:
    speed = median(each.tokens_per_second for each in ours)
    if not theirs:
        return Line(row, f"{speed:,.0f}", goal=at_least(None, goal))
    other = median(each.tokens_per_second for each in theirs)
    return Line(row, f"{speed:,.0f}", f"{other:,.0f}", at_least(speed / other, goal))


def same_engine(row: str, ours: Sequence[Turn], theirs: Sequence[Turn]) -> list[Line]:
    """Speed and first token of one engine behind two servers, held to each other by turns that were side by side."""
    pairs = list(zip(ours, theirs, strict=True))
    speed = median(one.tokens_per_second / other.tokens_per_second for one, other in pairs)
    first = median(one.first_token_ms / other.first_token_ms for one, other in pairs)
    speeds = [f"{median(each.tokens_per_second for each in side):,.0f}" for side in (ours, theirs)]
    firsts = [f"{median(each.first_token_ms for each in side):.0f}" for side in (ours, theirs)]
    return [
        Line(row, speeds[0], speeds[1], at_least(speed, SAME_VLLM)),
        Line("the same, first token, ms", firsts[0], firsts[1], at_most(first, 1.0)),
    ]


def build(converter: Path | None, folder: Path = DEFAULT_FOLDER) -> Path | None:
    """The folder of the model of 30 million parameters, made once; None where there is none."""
    target = folder / SMALL
    if not target.is_dir() and converter is not None:
        command = [str(converter), "-m", "tests.bench.language.build_model", str(target)]
        subprocess.run(command, check=True, cwd=SOURCE, timeout=BUILD_SECONDS)
    return target if target.is_dir() else None


def report(lines: Sequence[Line]) -> str:
    machine = this_machine()
    about = f"{machine.processor}, {machine.cores} cores, Python {machine.python}; {machine.date}"
    cells = [[each.row, each.ours, each.beside, each.goal] for each in lines]
    return f"{table(['row', 'trioton', 'beside', 'goal'], cells, text_columns=1)}\n\n{about}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.language", description="Measure language models.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--converter", type=Path, help="a Python with torch, transformers and optimum-intel[openvino], to build a model"
    )
    parser.add_argument("--vllm", type=Path, help="a Python with vLLM, whose server is measured beside")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("openvino_genai") is None:
        sys.exit("error: openvino-genai is not installed: pip install 'trioton[openvino-genai]'")
    print(f"the files of the tiny model: {TINY_FILES}", file=sys.stderr)
    try:
        small = build(options.converter)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            print(report(Benchmark(stack, folder, options.rounds, small, options.vllm).lines()))
    except (PeerError, LoadFailed, ValueError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
