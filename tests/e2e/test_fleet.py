"""A fleet of real servers behind the real HAProxy: balancing, drains, deaths, loads, updates."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.fleet_process import FleetProcess, needs_haproxy
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import eventually

pytestmark = needs_haproxy

ONES = np.ones((1, 16), np.float32)
INPUTS = {"INPUT0": ONES, "INPUT1": ONES}
EXPLICIT = ("--model-control-mode=explicit", "--load-model=add_sub")
QUICK = ("--slow-start-secs=0", "--update-watch-secs=1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("fleet")
    for name in ("add_sub", "loadable"):
        add_add_sub(repository / name, versions=(1,))
    return repository


@pytest.fixture(scope="module")
def fleet(models: Path) -> Iterator[FleetProcess]:
    with FleetProcess(models, *EXPLICIT, *QUICK, "--replicas=2") as process:
        yield process


@contextmanager
def client_of(fleet: FleetProcess, protocol: str) -> Iterator[Client]:
    with Client(protocol, fleet.addresses[protocol]) as client:
        yield client


@pytest.fixture(params=["http", "grpc"])
def client(fleet: FleetProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with client_of(fleet, request.param) as made:
        yield made


def inferences(fleet: FleetProcess) -> list[int]:
    """Of each replica."""
    found = []
    for replica in fleet.replicas():
        with Client("http", replica["http"]) as client:
            stats = client.raw.get_inference_statistics("add_sub")["model_stats"][0]
            found.append(stats["inference_stats"]["success"]["count"])
    return found


class Load(threading.Thread):
    """Sends unary requests one after the other, until it is stopped, on one connection."""

    def __init__(self, fleet: FleetProcess, protocol: str) -> None:
        super().__init__()
        self.fleet, self.protocol = fleet, protocol
        self.count = 0
        self.failures: list[str] = []
        self._stop_asked = threading.Event()

    def run(self) -> None:
        with client_of(self.fleet, self.protocol) as client:
            while not self._stop_asked.is_set():
                try:
                    outputs = client.infer("add_sub", INPUTS)
                    assert (outputs["OUTPUT0"] == 2).all()
                    self.count += 1
                except Exception as error:
                    self.failures.append(f"{self.protocol}: {error!r}")

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join()


@contextmanager
def under_load(fleet: FleetProcess) -> Iterator[Callable[[], int]]:
    """Unary requests over both protocols meanwhile, none of which may fail; yields how many there were."""
    with Load(fleet, "http") as http, Load(fleet, "grpc") as grpc:
        yield lambda: http.count + grpc.count
    assert http.failures + grpc.failures == []
    assert min(http.count, grpc.count) > 0


def test_requests_of_one_connection_are_spread(fleet: FleetProcess, client: Client) -> None:
    before = inferences(fleet)
    for _ in range(40):
        client.infer("add_sub", INPUTS)
    assert [after - before for after, before in zip(inferences(fleet), before, strict=True)] == [20, 20]


def test_a_load_reaches_all_and_so_does_an_unload(fleet: FleetProcess, client: Client) -> None:
    client.raw.load_model("loadable")
    for replica in fleet.replicas():
        with Client("http", replica["http"]) as one:
            assert one.is_ready("loadable")
    client.raw.unload_model("loadable")
    for replica in fleet.replicas():
        with Client("http", replica["http"]) as one:
            assert eventually(partial(lacks, one))


def lacks(client: Client) -> bool:
    return not client.is_ready("loadable")


def test_a_load_that_fails_is_told_with_where(fleet: FleetProcess, client: Client) -> None:
    with pytest.raises(InferenceServerException, match="failed to load 'loadable' on 2 of 2 replicas"):
        client.raw.load_model("loadable", config='{"backend": "onnxruntime", "max_batch_size": 4, "input": 5}')
    assert [each["status"] for each in [fleet.status()["last_change_of_models"]]] == [400]
    assert not client.is_ready("loadable")


def test_a_load_reaches_all_however_its_path_is_encoded(fleet: FleetProcess) -> None:
    status, answer = fleet.call("POST", "/v2/%72epository/models/%6Coadable/%6Coad", service="http")
    assert (status, len(answer["replicas"])) == (200, 2)
    assert fleet.status()["last_change_of_models"]["status"] == 200
    fleet.call("POST", "/v2/repository/models/loadable/unload", service="http")


def test_the_index_and_statistics_are_of_all(fleet: FleetProcess, client: Client) -> None:
    index = client.json("get_model_repository_index")
    entries = index["models"] if isinstance(index, dict) else index
    assert {(each["name"], each.get("state", "")) for each in entries} >= {("add_sub", "READY")}
    client.infer("add_sub", INPUTS)  # the client's JSON of gRPC leaves out what is zero
    stats = client.json("get_inference_statistics", "add_sub")["model_stats"][0]
    assert int(stats["inference_stats"]["success"]["count"]) == sum(inferences(fleet))


def test_shared_memory_is_refused(fleet: FleetProcess, client: Client) -> None:
    with pytest.raises(InferenceServerException, match="a fleet takes no shared memory"):
        client.raw.register_system_shared_memory("region", "/region", 64)


def test_the_fleet_is_controlled_on_its_own_port_only(fleet: FleetProcess) -> None:
    assert fleet.call("GET", "/v2/fleet", service="http")[0] == 404
    assert fleet.call("GET", "/v2/fleet", service="metrics")[0] == 404
    assert fleet.call("POST", "/v2/fleet/scale", {"replicas": 99}) == (
        400,
        {"error": "'replicas' must lie within --min-replicas and --max-replicas, expected 1 to 8, got 99"},
    )
    assert fleet.call("POST", "/v2/fleet/scale", {"replica": 1})[0] == 400
    assert fleet.call("GET", "/v2/fleet/other")[0] == 404


def test_metrics_say_how_many_there_are(fleet: FleetProcess) -> None:
    _, text = fleet.call("GET", "/metrics", service="metrics")
    assert 'trioton_fleet_replicas{phase="serving"} 2' in text
    _, targets = fleet.call("GET", "/v2/fleet/targets")
    assert {each["labels"]["replica"] for each in targets} == {each["name"] for each in fleet.replicas()}


def test_later_replicas_have_the_models_of_the_others(fleet: FleetProcess, client: Client) -> None:
    client.raw.load_model("loadable")
    fleet.call("POST", "/v2/fleet/scale", {"replicas": 3})
    for replica in fleet.wait_for_replicas(3):
        with Client("http", replica["http"]) as one:
            assert one.is_ready("loadable")
    client.raw.unload_model("loadable")
    fleet.call("POST", "/v2/fleet/scale", {"replicas": 2})
    fleet.wait_for_replicas(2)


@pytest.mark.slow
def test_no_request_fails_when_the_fleet_is_scaled_or_a_replica_is_told_to_end(fleet: FleetProcess) -> None:
    with under_load(fleet) as count:
        fleet.call("POST", "/v2/fleet/scale", {"replicas": 3})
        fleet.wait_for_replicas(3)
        fleet.call("POST", "/v2/fleet/scale", {"replicas": 2})
        fleet.wait_for_replicas(2)
        name, pid = next(iter(fleet.pids().items()))
        os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: name not in fleet.pids())
        fleet.wait_for_replicas(2)
        assert count() > 0


def test_a_replica_that_is_killed_is_replaced(fleet: FleetProcess, client: Client) -> None:
    name, pid = next(iter(fleet.pids().items()))
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: name not in fleet.pids())
    for _ in range(10):
        client.infer("add_sub", INPUTS)
    fleet.wait_for_replicas(2)


@pytest.mark.slow
def test_an_update_changes_flags_without_a_failed_request(fleet: FleetProcess) -> None:
    before = fleet.status()["generation"]
    with under_load(fleet):
        status, _ = fleet.call("POST", "/v2/fleet/update", {"flags": ["--id=updated"]})
        assert status == 202
        assert fleet.call("POST", "/v2/fleet/scale", {"replicas": 1})[0] == 409
        assert eventually(lambda: fleet.status()["update"]["state"] == "done"), fleet.status()
    assert fleet.status()["generation"] == before + 1
    for replica in fleet.wait_for_replicas(2):
        with Client("http", replica["http"]) as one:
            assert one.raw.get_server_metadata()["name"] == "updated"


@pytest.mark.slow
def test_an_update_that_cannot_serve_is_undone(fleet: FleetProcess, tmp_path: Path) -> None:
    pids = set(fleet.pids().values())
    with under_load(fleet):
        status, _ = fleet.call("POST", "/v2/fleet/update", {"repositories": [str(tmp_path / "nothing")]})
        assert status == 400  # a server would not even read its flags
        status, answer = fleet.call("POST", "/v2/fleet/update", {"flags": ["--http-port=9", "--drain-secs=9"]})
        assert (status, answer["error"].partition(" are ")[0]) == (400, "--drain-secs, --http-port")
        fleet.call("POST", "/v2/fleet/update", {"flags": ["--load-model=nothing"]})
        assert eventually(lambda: fleet.status()["update"]["state"] == "returned"), fleet.status()
    assert set(fleet.pids().values()) == pids
    assert "has ended by itself: exit code 1" in fleet.status()["update"]["reason"]


@pytest.mark.slow
def test_a_canary_gets_its_share(fleet: FleetProcess) -> None:
    fleet.call("POST", "/v2/fleet/canary", {"share": 0.25, "flags": ["--id=canary"]})
    fleet.wait_for_replicas(3)
    with client_of(fleet, "http") as http, client_of(fleet, "grpc") as grpc:
        for client in (http, grpc):
            names = [metadata_name(client) for _ in range(400)]
            assert 50 <= names.count("canary") <= 160
        fleet.call("POST", "/v2/fleet/canary/share", {"share": 0.0})
        assert "canary" not in [metadata_name(http) for _ in range(50)]
        fleet.call("DELETE", "/v2/fleet/canary")
        fleet.wait_for_replicas(2)
        assert "canary" not in [metadata_name(grpc) for _ in range(20)]


def metadata_name(client: Client) -> str:
    found: Any = client.json("get_server_metadata")
    return str(found["name"])


def test_sigterm_ends_all_in_order(models: Path) -> None:
    with FleetProcess(models, *EXPLICIT, "--replicas=2") as fleet:
        fleet.wait_for_replicas(2)
        everything = fleet.descendants()
        fleet.signal(signal.SIGTERM)
        assert fleet.wait() == 0
        assert fleet.all_gone(everything)


def test_nothing_is_left_when_the_supervisor_is_killed(models: Path) -> None:
    with FleetProcess(models, *EXPLICIT, "--replicas=2") as fleet:
        fleet.wait_for_replicas(2)
        everything = fleet.descendants()
        assert len(everything) >= 3
        fleet.signal(signal.SIGKILL)
        assert fleet.all_gone(everything)


def test_haproxy_is_started_again(models: Path) -> None:
    with FleetProcess(models, *EXPLICIT, "--replicas=1") as fleet, client_of(fleet, "http") as client:
        client.infer("add_sub", INPUTS)
        haproxy = next(pid for pid in fleet.descendants() if Path(f"/proc/{pid}/comm").read_text().strip() == "haproxy")
        os.kill(haproxy, signal.SIGKILL)
        fleet.wait_for_line("HAProxy has ended: killed by SIGKILL; it is started again")
        with client_of(fleet, "grpc") as grpc:
            assert eventually(lambda: answers(client) and answers(grpc))


def answers(client: Client) -> bool:
    try:
        client.infer("add_sub", INPUTS)
    except Exception:
        return False
    return True


def test_a_fleet_that_cannot_begin_says_why(models: Path) -> None:
    with FleetProcess(models, "--model-control-mode=explicit", "--load-model=nothing") as fleet:
        assert fleet.wait() == 1
        fleet.wait_for_line("replica-.: it has ended by itself: exit code 1")


def test_without_haproxy_it_says_what_to_install(models: Path) -> None:
    with FleetProcess(models, "--haproxy=/nowhere/haproxy") as fleet:
        assert fleet.wait() == 1
        fleet.wait_for_line("there is no '/nowhere/haproxy': install HAProxy")
