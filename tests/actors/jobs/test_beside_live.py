"""What live requests pay for a job beside them, and how far it gets: simulated on the ordinary core."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.actors.jobs.simulation import Seconds, Simulation


def linear(rows: int) -> float:
    return 0.01 * rows


def constant(rows: int) -> float:
    return 0.01


def mixed(rows: int) -> float:
    return 0.01 + 0.001 * rows


def padded(rows: int) -> float:
    return 0.01 if rows <= 4 else 0.02


CLOSED = [Simulation(constant, clients=clients, duration=12.0) for clients in (1, 4, 16)]
OPEN = [Simulation(constant, rate=rate, duration=duration) for rate, duration in ((3, 150.0), (20, 60.0), (50, 40.0))]


async def measured(simulation: Simulation, folder: Path) -> tuple[float, float]:
    """The p99 with a job over that without, and the job's rows per second."""
    alone = await replace(simulation, has_job=False).run(folder / "alone")
    beside = await replace(simulation).run(folder / "beside")
    assert not beside.failed
    return beside.p99 / alone.p99, beside.rows / (simulation.duration - simulation.count_from)


@pytest.mark.parametrize("load", [*CLOSED, *OPEN], ids=lambda load: f"{load.clients or load.rate}")
@pytest.mark.parametrize("model", [linear, constant, mixed, padded])
async def test_their_p99_is_hardly_longer_and_the_job_goes_on(
    model: Seconds, load: Simulation, tmp_path: Path, autojump_clock: MockClock
) -> None:
    # A linear model that is always busy has only some ten requests of jobs in a minute.
    duration = 40.0 if model is linear and load.clients > 1 else load.duration
    ratio, rows = await measured(replace(load, seconds_of=model, duration=duration), tmp_path)
    assert ratio < 1.25
    assert rows > 0


@pytest.mark.parametrize(("load", "rows"), [(CLOSED[0], 150), (CLOSED[1], 150), (OPEN[1], 150), (OPEN[2], 150)])
async def test_what_costs_live_requests_nothing_goes_along(
    load: Simulation, rows: float, tmp_path: Path, autojump_clock: MockClock
) -> None:
    assert (await measured(load, tmp_path))[1] > rows


async def test_idle_time_between_rare_requests_is_used(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Of a model that takes as long for each row: one at a time."""
    _, rows = await measured(Simulation(linear, rate=20, duration=60.0), tmp_path)
    assert rows > 3


async def test_without_live_requests_a_job_has_the_whole_model_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    result = await Simulation(linear, duration=5.0, count_from=1.0).run(tmp_path / "models")
    assert result.rows > 0.95 * 4 / 0.01


async def test_it_has_it_again_when_they_have_ended(tmp_path: Path, autojump_clock: MockClock) -> None:
    simulation = Simulation(linear, clients=4, duration=20.0, count_from=11.0, asks_until=10.0)
    result = await simulation.run(tmp_path / "models")
    assert result.rows > 0.9 * 9 / 0.01


@pytest.mark.parametrize(("first", "then"), [(constant, linear), (linear, constant)])
async def test_it_is_seen_when_the_model_takes_another_time(
    first: Seconds, then: Seconds, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Without being loaded again, as one whose inputs have become longer."""

    def changing(is_second: list[bool]) -> Seconds:
        return lambda rows: then(rows) if is_second else first(rows)

    later: list[bool] = []
    simulation = Simulation(changing(later), clients=1, duration=65.0, count_from=25.0)
    simulation.at(12.0, lambda: later.append(True))
    result = await simulation.run(tmp_path / "models")
    assert result.p99 <= 1.25 * then(1)
    assert result.rows > (1500 if then is constant else 0)


async def test_rows_that_wait_and_run_can_be_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What is known of the model stays right, and others go on."""
    simulation = Simulation(mixed, clients=1, duration=8.0, gives_up_after=0.3)
    result = await simulation.run(tmp_path / "models")
    assert result.given_up > 10
    assert result.rows > 10
    assert result.p99 < 1.25 * mixed(1)
