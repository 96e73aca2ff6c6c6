"""What is measured of jobs: on a real server, a little of each, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from tests.bench import jobs
from tests.bench.jobs import JOB_MODELS, Found, batch_rate, job_rates, measure_live, report, row_rate
from tests.bench.load import LoadGenerator
from tests.bench.measurement import LoadFailed, Measurement
from tests.bench.peers import Server, our_server
from tests.bench.rows import Row


class FakeLoad:
    """Takes no time, and tells of a higher p99 each time."""

    def __init__(self) -> None:
        self.p99 = 0.0

    def run(self, row: Row, address: str) -> Measurement:
        self.p99 += 100.0
        return Measurement(1.0, 1.0, self.p99)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("bench")
    peer = our_server()
    server = Server(
        replace(peer, command=(*peer.command, f"--jobs-store={folder / 'store'}", f"--model-repository={JOB_MODELS}")),
        folder / "log",
    )
    server.start()
    yield server.address("http")
    server.stop()


@pytest.mark.slow
def test_rates_are_those_of_jobs_that_have_succeeded(address: str) -> None:
    taken, ended = job_rates(address, jobs=20, clients=3)
    assert taken >= ended > 0
    assert row_rate(address, lists=2, rows=50) > 0


@pytest.mark.slow
def test_the_rate_of_a_batch_is_that_of_its_state() -> None:
    assert batch_rate(rows=200) > 0


@pytest.mark.slow
def test_live_requests_alone_and_beside_a_job(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found()
    place = "constant", 4
    measure_live(cast(LoadGenerator, FakeLoad()), address, found, *place)
    assert (found.alone, found.beside, found.ratio(place)) == ({place: [100.0]}, {place: [200.0]}, 2.0)
    assert len(found.rows_beside[place]) == 1
    monkeypatch.setattr(jobs, "ROWS_OF_A_LIST", 1)
    monkeypatch.setattr(jobs, "LISTS", 1)
    with pytest.raises(LoadFailed, match="had ended before"):
        measure_live(cast(LoadGenerator, FakeLoad()), address, found, "add_sub", 4)


def test_the_tables_have_medians_and_verdicts() -> None:
    found = Found([300.0, 500.0], [200.0], [4000.0], [9000.0], {}, {}, {})
    load = "linear", 1
    found.alone[load], found.beside[load], found.rows_beside[load] = [1000.0, 1000.0], [1100.0, 1500.0], [0.5]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in report(found).splitlines() if line]
    assert lines[2][1:] == ["400", "300 to 500"]
    assert lines[-1] == ["linear", "1", "1.00", "1.30", "1.30", "≤ 1.25 not met", "0.5"]
