"""Sequence models whose `execute` is a coroutine that calls other models: steps of different sequences run at once,
those of one never do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.backends.python.pipelines import DECOUPLED, PLUS_ONE, add_model, executing
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_bls import SLOW
from tests.e2e.test_sequence import StreamOf

# Each step turns the number that its sequence has into three times that and its value, so their order shows.
NUMBERING = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.is_decoupled = "decoupled" in self.name
        self.numbers, self.busy = {}, set()
        self.released = None

    async def execute(self, requests):
        self.released = self.released or asyncio.Event()
        answers = await asyncio.gather(*[self.step(r) for r in requests])
        if not self.is_decoupled:
            return answers
        for request, found in zip(requests, answers):
            request.get_response_sender().send(found, FINAL)

    async def step(self, request):
        id = request.correlation_id()
        if not id:  # a row without a request
            return answer([[0, 0]])
        if id in self.busy:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"two steps of sequence {id} at once"))
        self.busy.add(id)
        try:
            return answer([[await self.number(request, id), os.getpid()]])
        finally:
            self.busy.discard(id)

    async def number(self, request, id):
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.numbers[id] = 0
        number, (added, what) = self.numbers[id], given(request)[0]
        if what == 1:
            open(os.path.join(os.environ["SEEN"], request.request_id()), "w").close()
            await self.released.wait()
        elif what == 2:
            self.released.set()
        elif what == 3:
            open(os.path.join(os.environ["SEEN"], request.request_id()), "w").close()
            value(await call("slow", [1], request_id="called by " + request.request_id()).async_exec())
        elif what == 4:
            start = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            called = call(self.name, [[1, 0]], correlation_id=99, flags=start)
            if self.is_decoupled:
                [value(response) for response in await called.async_exec(decoupled=True)]
            else:
                value(await called.async_exec())
        more = value(await call("plus", [added]).async_exec())[0]
        self.numbers[id] = number * 3 + more - 1
        return self.numbers[id]
"""
PLAIN, WAITS, RELEASES, CALLS_SLOW, CALLS_ITSELF = range(5)
BATCHING = "sequence_batching {{ max_sequence_idle_microseconds: 120000000 {} }}\n"
DIRECT = "max_batch_size: 2\n" + BATCHING.format("direct { }")
OLDEST = "max_batch_size: 1\n" + BATCHING.format("oldest { max_candidate_sequences: 8 }")
KINDS = {
    "direct": DIRECT,
    "oldest": OLDEST,
    "decoupled_direct": DIRECT + DECOUPLED,
    "decoupled_oldest": OLDEST + DECOUPLED,
}
# Each has models of its own: what is released there stays so, and what is killed is killed.
TESTS = ("beside", "many", "gone", "dies", "itself")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models leave files for the tests."""
    return tmp_path_factory.mktemp("seen")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, seen: Path) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("numbering")
    add_model(repository, "plus", executing(PLUS_ONE))
    add_model(repository, "slow", executing(SLOW))
    for kind, config in KINDS.items():
        for test in TESTS:
            add_model(repository, f"{kind}_{test}", NUMBERING, config)
    with ServerProcess(repository=repository, environment={"SEEN": str(seen)}) as process:
        assert len(process.addresses) == 3
        yield process


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Callable[[], StreamOf]]:
    """Makes clients, each with a stream of its own."""
    made: list[StreamOf] = []

    def connect() -> StreamOf:
        made.append(StreamOf(server.addresses["grpc"]))
        return made[-1]

    yield connect
    for stream in made:
        stream.close(cancel=True)


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


def send(
    to: StreamOf,
    model: str,
    sequence: int,
    value: int,
    what: int = PLAIN,
    *,
    start: bool = False,
    end: bool = False,
    id: str = "",
) -> None:
    step = {"IN": np.array([[value, what]], np.float32)}
    to.send(model, step, sequence_id=sequence, sequence_start=start, sequence_end=end, request_id=id)


def number(stream: StreamOf) -> int:
    """The next answer's number."""
    return int(stream.answer().as_numpy("OUT")[0, 0])


def refusal(stream: StreamOf) -> str:
    """The next answer's error."""
    with pytest.raises(InferenceServerException) as raised:
        stream.answer()
    return str(raised.value)


def test_steps_of_different_sequences_run_at_once(kind: str, seen: Path, connect: Callable[[], StreamOf]) -> None:
    """The step that waits is answered after those of another sequence, and before the next of its own begins."""
    model, one, other = f"{kind}_beside", connect(), connect()
    send(one, model, 1, 1, WAITS, start=True, id=model)
    send(one, model, 1, 2)
    send(one, model, 1, 0, end=True)
    assert eventually((seen / model).exists)
    send(other, model, 2, 2, start=True)
    assert number(other) == 2
    send(other, model, 2, 1, RELEASES, end=True)
    assert number(other) == 7
    assert [number(one) for _ in range(3)] == [1, 5, 15]


def test_steps_of_each_sequence_keep_their_order(kind: str, connect: Callable[[], StreamOf]) -> None:
    """All are sent at once, and more sequences than there is place for."""
    model, steps = f"{kind}_many", 8
    clients = [connect() for _ in range(6)]
    for step in range(steps):
        for id, client in enumerate(clients, 1):
            send(client, model, id, id + step, start=step == 0, end=step == steps - 1)
    for id, client in enumerate(clients, 1):
        expected = 0
        for step in range(steps):
            expected = expected * 3 + id + step
            assert number(client) == expected


def test_a_client_that_goes_ends_its_sequence_alone(kind: str, seen: Path, connect: Callable[[], StreamOf]) -> None:
    model, gone, other = f"{kind}_gone", connect(), connect()
    send(other, model, 2, 1, start=True)
    assert number(other) == 1
    send(gone, model, 1, 1, CALLS_SLOW, start=True, id=model)
    send(gone, model, 1, 1)
    assert eventually((seen / model).exists)
    send(other, model, 2, 1)
    assert number(other) == 4
    gone.close(cancel=True)
    assert eventually((seen / f"called by {model}").exists), "the call is cancelled too"
    anew = connect()
    send(anew, model, 1, 2, start=True)
    assert number(anew) == 2
    send(other, model, 2, 0, end=True)
    assert number(other) == 12


def test_a_worker_that_dies_ends_what_it_had(kind: str, seen: Path, connect: Callable[[], StreamOf]) -> None:
    model, one, other, late = f"{kind}_dies", connect(), connect(), connect()
    send(other, model, 2, 1, start=True)
    first = other.answer().as_numpy("OUT")
    send(one, model, 1, 1, WAITS, start=True, id=model)
    send(one, model, 1, 1)
    assert eventually((seen / model).exists)
    send(other, model, 2, 1, WAITS, id=f"{model}2")
    assert eventually((seen / f"{model}2").exists)
    os.kill(int(first[0, 1]), signal.SIGKILL)
    runs, waits = sorted([refusal(one), refusal(one)], key=lambda text: "with it the sequences" in text)
    assert "was killed by SIGKILL" in runs
    assert "has died, and with it the sequences that it had" in waits
    assert "was killed by SIGKILL" in refusal(other)
    send(other, model, 2, 1)
    assert "must specify the START flag" in refusal(other)
    send(late, model, 2, 5, start=True)
    assert number(late) == 5


def test_a_step_that_calls_its_own_model_is_refused_and_does_not_hang(
    kind: str, connect: Callable[[], StreamOf]
) -> None:
    model, one = f"{kind}_itself", connect()
    send(one, model, 1, 1, CALLS_ITSELF, start=True)
    assert "could never be answered" in refusal(one)
