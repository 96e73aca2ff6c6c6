"""A fleet whose replicas are actors of a Ray cluster, behind the real HAProxy."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'trioton[ray]'")

from tests.e2e.fleet_process import FleetProcess, needs_haproxy
from tests.e2e.ray.clients import BODY, MODEL
from tests.e2e.ray.nodes import HEAD, OTHER
from tests.e2e.server_process import eventually

pytestmark = [needs_haproxy, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def fleet(cluster: Any, models: Path) -> Iterator[FleetProcess]:
    options = '--ray-options={"num_cpus": 2, "scheduling_strategy": "SPREAD"}'
    flags = ("--driver=ray", f"--ray-address={cluster.address}", options)
    with FleetProcess(models, *flags, "--replicas=2", "--slow-start-secs=0") as process:
        yield process


def infer(fleet: FleetProcess) -> int:
    status, _ = fleet.call("POST", f"/v2/models/{MODEL}/infer", json.loads(BODY), service="http")
    return status


def test_servers_run_on_the_nodes(fleet: FleetProcess) -> None:
    hosts = {each["http"].partition(":")[0] for each in fleet.wait_for_replicas(2)}
    assert hosts == {HEAD, OTHER}
    assert all("on node" in each["process"] for each in fleet.replicas())
    assert [infer(fleet) for _ in range(4)] == [200] * 4


def test_one_that_is_killed_is_replaced(fleet: FleetProcess) -> None:
    before = {each["name"] for each in fleet.wait_for_replicas(2)}
    pid = int(fleet.replicas()[0]["process"].split()[1])
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: len({each["name"] for each in fleet.replicas()} - before) == 1), fleet.status()
    fleet.wait_for_replicas(2)
    assert [infer(fleet) for _ in range(4)] == [200] * 4


def test_scaling_ends_one_in_order(fleet: FleetProcess) -> None:
    status, _ = fleet.call("POST", "/v2/fleet/scale", {"replicas": 1})
    assert status == 202
    fleet.wait_for_replicas(1)
    assert infer(fleet) == 200
