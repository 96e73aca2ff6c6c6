"""Sequences that are open when their model is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ControlMode
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, InferenceResponse
from tests.actors.core.test_server_core import PBTXT, add_model, running
from tests.actors.fakes import FakeBackend, fake_backend, tensor
from tests.actors.polling import threads_in_line

SEQUENCES = PBTXT.replace("dynamic_batching {\n}", "sequence_batching { max_sequence_idle_microseconds: 60000000 }")


def of(sequence: int, *, start: bool = False, end: bool = False) -> InferenceRequest:
    return InferenceRequest("m", [tensor()], sequence_id=sequence, sequence_start=start, sequence_end=end)


def config(generation: int) -> str:
    return SEQUENCES + f'metric_tags {{ key: "generation" value: "{generation}" }}'


def loaded(backend: type[FakeBackend]) -> list[str]:
    """The generations that are loaded."""
    return [made.spec.config.metric_tags["generation"] for made in backend.made if made.is_loaded]


@pytest.fixture(autouse=True)
def in_line() -> Iterator[None]:
    with threads_in_line():
        yield


async def test_they_go_on_where_they_began(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Over two replacements; a version is unloaded when the last sequence there has ended."""
    directory = add_model(tmp_path, "m", config=config(1))
    ran: list[str] = []

    def note(backend: FakeBackend, requests: object) -> None:
        ran.append(backend.spec.config.metric_tags["generation"])

    backend = fake_backend(on_execute=note)
    async with running(tmp_path, backend=backend, mode=ControlMode.EXPLICIT, load=["m"]) as core:
        for generation in (1, 2, 3):
            if generation > 1:
                (directory / "config.pbtxt").write_text(config(generation))
                await core.load_model("m")
            await core.infer(of(generation, start=True))
        assert loaded(backend) == ["1", "2", "3"]
        ran.clear()
        answered: list[InferenceResponse] = []

        async def respond(response: InferenceResponse) -> None:
            answered.append(response)

        for sequence in (1, 2, 3):
            await core.infer(of(sequence))
            await core.infer_stream(of(sequence), respond)
        assert ran == ["1", "1", "2", "2", "3", "3"]
        assert len(answered) == 3
        await core.infer(of(2, end=True))
        await wait_all_tasks_blocked()
        assert loaded(backend) == ["1", "3"]
        await core.infer(of(1))
        await core.infer(of(1, end=True))
        await wait_all_tasks_blocked()
        assert loaded(backend) == ["3"]
        with pytest.raises(InvalidArgument, match="must specify the START flag"):
            await core.infer(of(1))
        await core.infer(of(1, start=True, end=True))
        assert ran[-1] == "3"


async def test_one_that_is_idle_for_too_long_holds_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    directory = add_model(tmp_path, "m", config=config(1))
    backend = fake_backend()
    async with running(tmp_path, backend=backend, mode=ControlMode.EXPLICIT, load=["m"]) as core:
        await core.infer(of(1, start=True))
        (directory / "config.pbtxt").write_text(config(2))
        await core.load_model("m")
        await trio.sleep(59)
        assert loaded(backend) == ["1", "2"]
        await trio.sleep(2)
        assert loaded(backend) == ["2"]


async def test_a_server_that_ends_does_not_wait_for_replaced_versions(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    directory = add_model(tmp_path, "m", config=config(1))
    backend = fake_backend()
    async with running(tmp_path, backend=backend, mode=ControlMode.EXPLICIT, load=["m"]) as core:
        await core.infer(of(1, start=True))
        (directory / "config.pbtxt").write_text(config(2))
        await core.load_model("m")
        await core.infer(of(2, start=True, end=True))
        began = trio.current_time()
    assert trio.current_time() - began < 1
    assert loaded(backend) == []
