"""The in-process server: two in one program, failed starts that leave nothing, an orderly end."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import trio
import tritonclient.grpc

import trioton.job_service
from actors.core.server_core import ServerCore
from protocol.errors import Unavailable
from protocol.messages import InferenceRequest, Tensor
from protocol.reactor.drivers import InlineDriver, PollerKind, TaskDriver, the_poller
from tests.e2e.repository import add_add_sub, copy_python_model
from trioton.job_service import StartedJobs, start_jobs
from trioton.server import Server, StartError, open_server
from trioton.service_names import address_text
from trioton.settings import Settings

pytestmark = pytest.mark.slow

LOCAL = "127.0.0.1"


def settings(repository: Path, **values: Any) -> Settings:
    anywhere = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    addresses = {"http_address": LOCAL, "grpc_address": LOCAL}
    return Settings(model_repository=(repository,), **{**anywhere, **addresses, **values})


@pytest.fixture
def one(tmp_path: Path) -> Path:
    add_add_sub(tmp_path / "one" / "first", versions=(1,))
    return tmp_path / "one"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    add_add_sub(tmp_path / "other" / "second", versions=(1,))
    return tmp_path / "other"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / "broken" / "bad" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "bad" / "config.pbtxt").write_text("nonsense: 1\n")
    return tmp_path / "broken"


async def get(server: Server, path: str, *, service: str = "http") -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{address_text(server.addresses[service])}") as client:
        return await client.get(path)


def add_sub_request(model: str) -> InferenceRequest:
    row = np.ones((1, 16), np.float32)
    return InferenceRequest(model, [Tensor.from_numpy(name, row) for name in ("INPUT0", "INPUT1")])


def assert_free(server: Server) -> None:
    """What it has listened on can be had again."""
    for address in server.addresses.values():
        socket.create_server(address).close()


def is_ready_over_grpc(address: str, model: str) -> bool:
    with tritonclient.grpc.InferenceServerClient(address) as client:
        return bool(client.is_model_ready(model))


async def test_two_servers_in_one_process(one: Path, other: Path) -> None:
    """Each has its own models, addresses, name and metrics; the end of one is nothing to the other."""
    async with open_server(settings(one, id="one")) as first:
        async with open_server(settings(other, id="other")) as second:
            assert not set(first.addresses.values()) & set(second.addresses.values())
            await first.core.infer(add_sub_request("first"))
            for server, name, mine, not_mine in (
                (first, "one", "first", "second"),
                (second, "other", "second", "first"),
            ):
                assert (await get(server, "/v2")).json()["name"] == name
                assert (await get(server, f"/v2/models/{mine}/ready")).status_code == 200
                assert (await get(server, f"/v2/models/{not_mine}/ready")).status_code == 404
                address = address_text(server.addresses["grpc"])
                assert await trio.to_thread.run_sync(is_ready_over_grpc, address, mine)
            assert (
                'nv_inference_count{_team="e2e",model="first",version="1"} 1\n'
                in (await get(first, "/metrics", service="metrics")).text
            )
            assert 'model="first"' not in (await get(second, "/metrics", service="metrics")).text
            assert 'nv_inference_count{_team="e2e",model="first",version="1"} 1' in (await get(first, "/metrics")).text
        assert (await get(first, "/v2/health/ready")).status_code == 200
        with pytest.raises(httpx.ConnectError):
            await get(second, "/v2")


async def test_an_embedded_server_leaves_logging_alone(one: Path) -> None:
    """That is the program's own affair."""
    root, ours = logging.getLogger(), logging.getLogger("trioton")
    before = list(root.handlers), root.level, list(ours.handlers), ours.level
    async with open_server(settings(one)):
        assert (list(root.handlers), root.level, list(ours.handlers), ours.level) == before


@pytest.mark.parametrize("off", [{"metrics_on_http_port": False}, {"allow_metrics": False}])
async def test_metrics_on_the_port_of_http_can_be_switched_off(one: Path, off: dict[str, Any]) -> None:
    async with open_server(settings(one, **off)) as server:
        assert (await get(server, "/metrics")).status_code == 404


async def test_services_can_be_switched_off(one: Path) -> None:
    async with open_server(settings(one, allow_grpc=False, allow_metrics=False)) as server:
        assert list(server.addresses) == ["http"]
    async with open_server(settings(one, allow_grpc=False, allow_metrics=False, allow_http=False)) as server:
        assert server.addresses == {}
        response = await server.core.infer(add_sub_request("first"))
        assert response.outputs[0].as_numpy().tolist() == [[2.0] * 16]


async def test_how_long_to_look_before_sleeping_can_be_set(one: Path) -> None:
    for microseconds in (300, 0):
        async with open_server(settings(one, busy_poll_microseconds=microseconds)):
            assert the_poller().busy.limit == microseconds / 1e6
    assert the_poller().busy.limit == 0


async def test_of_two_servers_the_one_that_ends_leaves_the_other_its_way_of_waiting(one: Path) -> None:
    async with open_server(settings(one, busy_poll_microseconds=300)):
        async with open_server(settings(one, busy_poll_microseconds=0)):
            assert the_poller().busy.limit == 300e-6
        assert the_poller().busy.limit == 300e-6


@pytest.mark.parametrize("kind", ["inline", "task"])
def test_how_sockets_are_waited_for_can_be_set(one: Path, kind: PollerKind) -> None:
    """In a run of its own: the first server of a run decides."""
    drivers: list[trio.abc.Instrument] = []

    async def main() -> None:
        async with open_server(settings(one, poller=kind)) as server:
            drivers.extend(trio._core._run.GLOBAL_RUN_CONTEXT.runner.instruments["_all"])
            assert (await get(server, "/v2/health/ready")).status_code == 200
            assert (await server.core.infer(add_sub_request("first"))).outputs

    trio.run(main)
    assert [type(each) for each in drivers] == [InlineDriver if kind == "inline" else TaskDriver]


@pytest.mark.parametrize(("cores", "seconds"), [(0.5, 0.0), (1.0, 0.0), (2.0, 200e-6), (64.0, 200e-6)])
def test_a_server_with_one_core_leaves_it_to_its_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: float, seconds: float
) -> None:
    monkeypatch.setattr("trioton.flags.server.core_count", lambda: cores)
    assert settings(tmp_path).busy_poll_seconds() == seconds
    assert settings(tmp_path, busy_poll_microseconds=50).busy_poll_seconds() == 50e-6


async def test_a_stopping_server_is_not_ready_and_ends(one: Path) -> None:
    """From the moment of `stop` it says so, and refuses work."""
    server = Server(settings(one))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        assert server.core.is_ready()
        server.stop()
        with pytest.raises(Unavailable):
            server.core.is_live()
        with pytest.raises(Unavailable):
            server.core.is_ready()
        with pytest.raises(Unavailable):
            await server.core.infer(add_sub_request("first"))
        server.stop()  # once more changes nothing


async def test_what_was_accepted_is_answered_after_stop(tmp_path: Path) -> None:
    """Requests that wait when the server is stopped are run before the models are unloaded."""
    copy_python_model("slow", tmp_path)
    server = Server(settings(tmp_path))
    answers: list[int] = []

    async def ask(value: int) -> None:
        inputs = [
            Tensor.from_numpy("SECONDS", np.array([0.1], np.float32)),
            Tensor.from_numpy("VALUE", np.array([value], np.int64)),
        ]
        response = await server.core.infer(InferenceRequest("slow", inputs))
        answers.append(int(response.outputs[0].as_numpy()[0]))

    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        for value in range(6):
            nursery.start_soon(ask, value)
        await trio.testing.wait_all_tasks_blocked()
        server.stop()
    assert sorted(answers) == list(range(6))


async def test_a_failed_model_fails_the_start(broken: Path) -> None:
    """With the reason, and its services are closed again."""
    server = Server(settings(broken))
    with pytest.raises(StartError, match=r"failed to load all models \(bad: .*nonsense") as raised:
        await server.run()
    assert "--exit-on-error=false" in str(raised.value)
    assert not server.started.is_set()
    assert_free(server)


async def test_a_failed_model_can_be_tolerated(broken: Path) -> None:
    """The server lives, is not ready, and shows the reason."""
    async with open_server(settings(broken, exit_on_error=False)) as server:
        assert server.core.is_live()
        assert not server.core.is_ready()
        assert "nonsense" in await server.model_table()
    async with open_server(settings(broken, exit_on_error=False, strict_readiness=False)) as server:
        assert server.core.is_ready()


async def test_in_explicit_mode_only_what_was_asked_for_can_fail(broken: Path) -> None:
    """A bad model that nobody asked for is no reason not to start; one that was asked for is."""
    async with open_server(settings(broken, model_control_mode="explicit")) as server:
        assert server.core.is_ready()
        assert "not loaded" in await server.model_table()
    for wanted in ("bad", "*", "absent"):
        with pytest.raises(StartError):
            await Server(settings(broken, model_control_mode="explicit", load_model=(wanted,))).run()


@pytest.mark.parametrize("word", ["grpc", "http", "metrics"])
async def test_a_port_that_is_taken(one: Path, word: str) -> None:
    """The services that were open are closed again, the models unloaded."""
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(settings(one, **{f"{word}_port": port}))
        with pytest.raises(StartError, match=rf"{LOCAL}:{port} for .*: Address already in use; .*--{word}-port"):
            await server.run()
    assert_free(server)


async def test_an_address_that_is_none(one: Path) -> None:
    with pytest.raises(StartError, match=r"cannot listen on no\.such\.host\.invalid:0 for HTTPService"):
        await Server(settings(one, http_address="no.such.host.invalid", metrics_address=LOCAL)).run()


async def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="is not a directory; see --model-repository"):
        await Server(settings(tmp_path / "absent")).run()


async def test_a_repository_that_is_not_there_among_others(one: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where errors do not end the server, the models of the others are served, and the log says what is missing."""
    absent = one.parent / "absent"
    both = replace(settings(one), model_repository=(absent, one))
    with pytest.raises(StartError, match="absent' is not a directory"):
        await Server(both).run()
    async with open_server(replace(both, exit_on_error=False)) as server:
        assert [(each.name, each.state) for each in await server.core.repository_index()] == [("first", "READY")]
    assert f"model repository '{absent}' is not a directory" in caplog.text


async def test_stop_while_loading_ends_the_server(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load is given up at once."""
    loading = trio.Event()

    async def load_for_ever(self: ServerCore, *, task_status: object) -> None:
        loading.set()
        await trio.sleep_forever()

    monkeypatch.setattr(ServerCore, "run", load_for_ever)
    server = Server(settings(one))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        await loading.wait()
        server.stop()
    assert_free(server)


def test_addresses_as_text() -> None:
    assert address_text((LOCAL, 80)) == "127.0.0.1:80"
    assert address_text(("::1", 80)) == "[::1]:80"


async def test_the_services_answer_while_models_load(one: Path, tmp_path: Path) -> None:
    """Whoever watches sees that the server lives and is not ready; requests are refused until all models are loaded."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    add_model(one, "slow", f"open({str(gate)!r}).close()")
    server = Server(settings(one, model_control_mode="explicit", load_model=("slow", "first")))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        await server.listening.wait()
        live, ready = [await get(server, f"/v2/health/{word}") for word in ("live", "ready")]
        assert (live.status_code, live.json()) == (200, {"live": True})
        assert (ready.status_code, ready.json()["ready"]) == (400, False)
        assert (await get(server, "/metrics", service="metrics")).status_code == 200
        with pytest.raises(Unavailable, match="Server not ready"):
            await server.core.infer(add_sub_request("first"))
        for model in ("slow", "absent"):
            answer = await get(server, f"/v2/models/{model}/ready")
            assert answer.status_code == 503, answer.text
        nursery.start_soon(
            partial(trio.to_thread.run_sync, partial(gate.write_text, ""))
        )  # waits until the model reads
        await server.started.wait()
        assert (await get(server, "/v2/health/ready")).json() == {"ready": True}
        assert (await get(server, "/v2/models/absent/ready")).status_code == 404
        await server.core.infer(add_sub_request("first"))
        server.stop()


async def test_it_is_ready_once_jobs_are_taken(one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for readiness may send a job at once; opening the store takes a while."""
    opening, open_now = trio.Event(), trio.Event()

    async def start_later(*args: Any) -> StartedJobs:
        opening.set()
        await open_now.wait()
        return await start_jobs(*args)

    monkeypatch.setattr(trioton.job_service, "start_jobs", start_later)
    server = Server(settings(one, jobs_store=str(tmp_path / "jobs")))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        await opening.wait()
        await server.core.infer(add_sub_request("first"))
        assert not server.core.is_ready()
        assert (await get(server, "/v2/health/ready")).status_code == 400
        open_now.set()
        await server.started.wait()
        assert server.core.is_ready()
        server.stop()


def add_model(repository: Path, name: str, initialize: str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(
        'backend: "python"\ninput [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    )
    (version / "model.py").write_text(
        "class TritonPythonModel:\n"
        f"    def initialize(self, args):\n        {initialize}\n"
        "    def execute(self, requests):\n        return []\n"
    )


async def test_models_for_gpus_can_run_on_the_cpu(one: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If that is asked for and there is no GPU; the log says so once for each model."""
    config = one / "first" / "config.pbtxt"
    config.write_text(config.read_text() + "\ninstance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] } ]\n")
    without_gpus = settings(one, min_supported_compute_capability=1e6)
    with pytest.raises(StartError, match="kind KIND_GPU but no GPUs are available"):
        await Server(without_gpus).run()
    async with open_server(replace(without_gpus, gpu_fallback=True)) as server:
        await server.core.infer(add_sub_request("first"))
        *_, group = server.core.model_config("first")["instance_group"]
        assert (group["kind"], group["count"], group["gpus"]) == ("KIND_CPU", 2, [])
    assert caplog.text.count("model 'first' runs on the CPU: no GPU is available for its instance group 1") == 1
