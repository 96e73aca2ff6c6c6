"""Sessions over every wire, with a real server in the same Trio loop."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tests.trioton.perf.repository import flags, write_models
from trioton.perf.caller import Result, TargetError
from trioton.perf.load import Closed, Load, Open
from trioton.perf.measurement import Ends, Measurement
from trioton.perf.session import measure, open_session
from trioton.perf.target import Target, Wire
from trioton.server import Server, Settings, open_server

pytestmark = pytest.mark.slow

SHORT = Ends(warmup_seconds=0.2, least_seconds=0.3, most_seconds=0.5)
WIRES = [Wire.HTTP, Wire.GRPC, Wire.STREAM, Wire.IN_PROCESS]


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Server]:
    write_models(folder)
    with trio.fail_after(60):
        async with open_server(Settings.from_flags(flags(folder))) as server:
            yield server


def target_of(server: Server, wire: Wire, model: str = "add") -> Target:
    if wire is Wire.IN_PROCESS:
        return Target(wire=wire, model=model, models=server.models)
    host, port = server.addresses["grpc" if wire in (Wire.GRPC, Wire.STREAM) else "http"]
    metrics = "http://{}:{}/metrics".format(*server.addresses["metrics"])
    return Target(wire=wire, model=model, address=f"{host}:{port}", metrics_url=metrics)


def check_little(found: Measurement) -> None:
    assert found.figures.in_flight == pytest.approx(found.rate.value * found.mean.value, rel=0.03)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("load", [Closed(1), Closed(6), Open(200.0)], ids=str)
async def test_a_model_is_measured(tmp_path: Path, wire: Wire, load: Load) -> None:
    async with serving(tmp_path) as server:
        found = await measure(target_of(server, wire), load, ends=SHORT)
    assert found.figures.errors == {}
    assert found.figures.succeeded > 20
    assert found.figures.inferences == found.figures.succeeded
    assert found.latency.least > 0
    assert found.server is not None
    # The server is asked a little before and after: of half a second beside other tests, that may be a third.
    assert found.server.succeeded >= found.figures.succeeded * 0.5
    assert sum(size * count for size, count in found.server.batch_sizes.items()) == found.server.inferences
    assert found.server.request <= found.figures.service.mean / 1e9 * 1.1
    if wire is not Wire.IN_PROCESS:
        assert found.server.percentiles[99.0][1] >= found.server.request
    if isinstance(load, Open):
        assert found.rate.value == pytest.approx(200, rel=0.35)
    else:
        assert found.figures.in_flight == pytest.approx(load.concurrency, rel=0.001)


@pytest.mark.parametrize("wire", [Wire.GENERATE, Wire.STREAM, Wire.IN_PROCESS])
async def test_responses_of_a_decoupled_model_have_their_times(tmp_path: Path, wire: Wire) -> None:
    async with serving(tmp_path) as server:
        found = await measure(target_of(server, wire, "words"), Closed(1), ends=SHORT)
    figures = found.figures
    assert figures.errors == {}
    assert figures.responses == 3 * figures.succeeded > 0
    assert figures.gaps.count == 2 * figures.succeeded
    assert figures.latency.mean - figures.first.mean == pytest.approx(2 * figures.gaps.mean, rel=0.01)
    assert figures.gaps.greatest > 4e6


@pytest.mark.parametrize("wire", WIRES)
async def test_an_ensemble_shows_its_models(tmp_path: Path, wire: Wire) -> None:
    async with serving(tmp_path) as server:
        found = await measure(target_of(server, wire, "twice"), Closed(2), ends=SHORT)
    assert found.figures.errors == {}
    assert found.server is not None
    (part,) = found.server.composing
    assert part.model == "add"
    assert part.succeeded == pytest.approx(2 * found.server.succeeded, abs=10)


@pytest.mark.parametrize("wire", WIRES)
async def test_errors_are_counted_by_their_texts(tmp_path: Path, wire: Wire) -> None:
    """A model that is unloaded while it is measured."""
    async with serving(tmp_path) as server, open_session(target_of(server, wire)) as session:
        seen: list[Result] = []

        def observe(result: Result) -> None:
            seen.append(result)
            if len(seen) == 20:
                server.core.stop()

        found = await session.measure(Closed(2), replace(SHORT, most_seconds=1.0), observe=observe)
    assert found.figures.succeeded >= 18
    assert found.figures.failed > 0
    assert found.latency.count == found.figures.succeeded


@pytest.mark.parametrize("wire", WIRES)
async def test_there_is_no_such_model(tmp_path: Path, wire: Wire) -> None:
    async with serving(tmp_path) as server:
        with pytest.raises(TargetError, match="missing"):
            await measure(target_of(server, wire, "missing"), Closed(1), ends=SHORT)


@pytest.mark.parametrize("wire", [Wire.HTTP, Wire.GRPC])
async def test_there_is_no_server(wire: Wire) -> None:
    with pytest.raises(TargetError, match=r"127\.0\.0\.1:1 cannot be reached"):
        await measure(Target(wire=wire, model="add", address="127.0.0.1:1"), Closed(1), ends=SHORT)


@pytest.mark.parametrize("address", ["", "localhost", "localhost:x", ":8000", "localhost:0"])
async def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(TargetError, match="expected <host>:<port>"):
        await measure(Target(wire=Wire.HTTP, model="add", address=address), Closed(1))


async def test_several_loads_share_a_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, open_session(target_of(server, Wire.HTTP)) as session:
        found = [await session.measure(Closed(count), SHORT) for count in (1, 4)]
        assert session.description.max_batch_size == 8
    assert [round(each.figures.in_flight) for each in found] == [1, 4]


async def test_so_many_requests_are_measured(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        found = await measure(target_of(server, Wire.GRPC), Closed(3), ends=replace(SHORT, requests=77))
    assert found.figures.succeeded == found.latency.count == 77


async def test_results_are_observed(tmp_path: Path) -> None:
    seen: list[Result] = []
    async with serving(tmp_path) as server:
        found = await measure(target_of(server, Wire.HTTP), Closed(2), ends=SHORT, observe=seen.append)
    assert len(seen) >= found.figures.succeeded
    assert all(result.planned <= result.sent < result.first == result.last for result in seen)
    for earlier, later in itertools.pairwise(seen):
        assert earlier.last <= later.last


@pytest.mark.e2e
@pytest.mark.parametrize("load", [Closed(4), Open(300.0)], ids=str)
async def test_senders_of_their_own_share_a_load(tmp_path: Path, load: Load) -> None:
    async with serving(tmp_path) as server:
        found = await measure(target_of(server, Wire.HTTP), load, ends=replace(SHORT, most_seconds=1.0), senders=2)
    assert found.figures.errors == {}
    if isinstance(load, Closed):
        assert found.figures.in_flight == pytest.approx(4, rel=0.01)
    else:
        assert found.rate.value == pytest.approx(300, rel=0.25)


@pytest.mark.e2e
async def test_a_sender_says_why_it_cannot(tmp_path: Path) -> None:
    from trioton.perf.caller import DataError
    from trioton.perf.data.model_data import ModelData
    from trioton.perf.data.payloads import Form

    async with serving(tmp_path) as server:
        with pytest.raises((DataError, TargetError)):
            await measure(target_of(server, Wire.HTTP), Closed(2), ModelData(form=Form.OPENAI), ends=SHORT, senders=2)
