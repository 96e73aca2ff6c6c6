"""Who is asked whether a model can serve, and what the answers come to."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from actors.instance.readiness import all_ready
from tests.actors.core.test_server_core import add_model, running
from tests.actors.fakes import FakeBackend, fake_backend
from tests.actors.model.test_traffic_split import add_split


@pytest.mark.parametrize(
    ("answers", "expected"),
    [([], True), ([True], True), ([False], False), ([True, True], True), ([True, False], False)],
)
async def test_all_must_agree(answers: list[bool], expected: bool) -> None:
    async def say(answer: bool) -> bool:
        await trio.lowlevel.checkpoint()
        return answer

    assert await all_ready([lambda answer=answer: say(answer) for answer in answers]) is expected  # type: ignore[misc]


async def test_all_are_asked_at_once_and_the_first_no_is_enough(autojump_clock: MockClock) -> None:
    async def say(seconds: float, answer: bool) -> bool:
        await trio.sleep(seconds)
        return answer

    assert await all_ready([lambda: say(3, True), lambda: say(4, True)])
    assert trio.current_time() == 4
    assert not await all_ready([lambda: say(100, True), lambda: say(1, False)])
    assert trio.current_time() == 5


def opinionated(*unready: str) -> type[FakeBackend]:
    """A backend whose instances of these names say that they cannot serve."""

    class Opinionated(fake_backend()):  # type: ignore[misc]  # mypy knows no bases that are computed
        async def is_ready(self) -> bool:
            await trio.lowlevel.checkpoint()
            return self.spec.name not in unready

    return Opinionated


@pytest.mark.parametrize("unready", [(), ("m_0_1",)])
async def test_a_model_is_asked_and_with_it_whoever_needs_it(tmp_path: Path, unready: tuple[str, ...]) -> None:
    """Without asking, all of them are ready; the server is only where readiness is strict."""
    config = (tmp_path / "m" / "config.pbtxt",)
    add_model(tmp_path, "m")
    config[0].write_text(config[0].read_text() + "instance_group [ { count: 2 } ]\n")
    add_model(tmp_path, "other")
    add_split(tmp_path, {"targets": [{"model": "m"}]})
    for is_strict in (True, False):
        async with running(tmp_path, backend=opinionated(*unready), strict_readiness=is_strict) as core:
            assert core.is_ready()
            assert core.is_model_ready("m")
            assert core.is_model_ready("s")
            assert await core.check_model_ready("other")
            assert await core.check_model_ready("m") is not bool(unready)
            assert await core.check_model_ready("s") is not bool(unready)
            assert await core.check_ready() is (not unready or not is_strict)


class Spawned(trio.abc.Instrument):
    def __init__(self) -> None:
        self.tasks = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks += 1


async def test_models_that_have_nothing_to_say_take_no_task_of_a_probe(tmp_path: Path) -> None:
    for index in range(20):
        add_model(tmp_path, f"m{index}")
    for backend, tasks in ((fake_backend(), 0), (opinionated(), 20)):
        async with running(tmp_path, backend=backend) as core:
            spawned = Spawned()
            trio.lowlevel.add_instrument(spawned)
            assert await core.check_ready()
            trio.lowlevel.remove_instrument(spawned)
            assert spawned.tasks == tasks
