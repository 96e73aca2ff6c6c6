"""Lines of batches beside live requests, on the ordinary core, in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from actors.jobs.background import BackgroundRequests
from actors.jobs.inference import InferenceExecutor
from actors.mail.reply_slot import ReplySlot
from backends.interface import BatchResult
from backends.registry import BackendRegistry
from protocol.datatypes import DataType
from protocol.failures import CallbackFailures
from protocol.http.openai.batches.execution import LineExecutor
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from tests.actors.core.test_server_core import add_model
from tests.actors.fakes import TIMING, FakeBackend
from tests.protocol.http.fake_services import make_services
from trioton.batch_service import line_executor
from trioton.settings import Settings

EMBEDDINGS = "/v1/embeddings"
CONFIG = """
name: "m" backend: "fake" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { priority_levels: 3 default_priority_level: 1 }
parameters { key: "openai_embedding_input" value: { string_value: "IN" } }
parameters { key: "openai_embedding_output" value: { string_value: "OUT" } }
"""


class Vectors(FakeBackend):
    """Embeds each text as [1, 0], in batches of 5 ms; keeps who was in each, and the priorities."""

    seconds = 0.05

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        type(self).batches.append([f"{request.id.partition('-')[0]} {request.priority}" for request in requests])
        await trio.sleep(self.seconds)
        vectors = [Tensor.from_numpy("OUT", np.array([[1.0, 0.0]], np.float32)) for _ in requests]
        return BatchResult([InferenceResponse("m", 1, [each], id="") for each in vectors], TIMING)


@dataclass
class Fixture:
    core: ServerCore
    lines: LineExecutor
    batches: list[list[str]]
    answers: list[Any]

    async def line(self) -> None:
        body = json.dumps({"model": "m", "input": "a cat"}).encode()
        parts = await self.lines.run_body(EMBEDDINGS, "m", body)
        self.answers.append(json.loads(b"".join(map(bytes, parts))))

    async def live(self) -> None:
        slot = ReplySlot()
        tensor = Tensor("IN", DataType.BYTES, (1, 1), encode_bytes_elements(["a dog"]))
        submission = self.core.submit(InferenceRequest("m", [tensor], id="live"), slot, later=True)
        self.core.flush()
        assert isinstance(await slot.receive(), InferenceResponse)
        submission.end()


@asynccontextmanager
async def served(folder: Path, *, is_beside: bool = True) -> AsyncIterator[Fixture]:
    add_model(folder, "m", config=CONFIG)
    backend: type[Vectors] = type("TestBackend", (Vectors,), {"made": [], "batches": []})
    settings = CoreSettings((folder,), control_mode=ControlMode.EXPLICIT, load_models=("m",))
    core = ServerCore(settings, BackendRegistry({"fake": backend}))
    background = BackgroundRequests(core, CallbackFailures())
    executor = InferenceExecutor(core, background=background) if is_beside else None
    lines = line_executor(Settings(model_repository=(folder,)), core, make_services(core), jobs=executor)
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        await nursery.start(background.run)
        yield Fixture(core, lines, backend.batches, [])
        nursery.cancel_scope.cancel()


async def test_they_join_the_batches_of_live_requests_at_the_lowest_priority(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with served(tmp_path) as it, trio.open_nursery() as nursery:
        for _ in range(40):  # so many have to be known
            await it.live()
        for _ in range(99):
            nursery.start_soon(it.line)
        await wait_all_tasks_blocked()
        with trio.fail_after(60):
            while len(it.answers) < 99:
                await it.live()
                await trio.sleep(0.0003)
        shared = [batch for batch in it.batches if len(batch) > 1]
        # What one costs is looked at first; then as many go along as there is room for.
        assert shared == [["live 0", *["embd 3"] * count] for count in (1, *[7] * 14)]
        assert {answer["status_code"] for answer in it.answers} == {200}


async def test_without_live_requests_they_fill_the_batches(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with served(tmp_path) as it, trio.open_nursery() as nursery:
        await it.line()
        await trio.sleep(0.9)
        for _ in range(72):
            nursery.start_soon(it.line)
        await trio.sleep(0.6)
        assert [len(batch) for batch in it.batches] == [1, *[8] * 9]


@pytest.mark.parametrize(("is_beside", "capacity"), [(True, 16), (False, 8)])
async def test_the_runner_gives_as_many_as_wait_for_room(
    tmp_path: Path, autojump_clock: MockClock, is_beside: bool, capacity: int
) -> None:
    async with served(tmp_path, is_beside=is_beside) as it:
        assert it.lines.load_of("m").capacity == capacity
        await it.line()
        assert it.answers[0]["body"]["data"][0]["embedding"] == [1.0, 0.0]
