"""An application of Ray Serve whose replicas are servers: start, scaling under load, deaths, a rolling update."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install 'trioton[ray]'")

from ray import serve
from ray.cluster_utils import Cluster

import trioton.ray
from tests.e2e.ray.clients import infer, load, wait_for
from tests.e2e.ray.nodes import HEAD, NODE, OTHER
from trioton.ray import directory
from trioton.ray.entries import Entry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("default")]


def run(models: Path, *, options: Mapping[str, Any] | None = None, **deployment: Any) -> None:
    """Returns when it serves; as `serve deploy` does with the same in YAML."""
    args = {"flags": {"model-repository": str(models)}, "drain_secs": 2, "exit_timeout_secs": 10, **(options or {})}
    bound = trioton.ray.app(args)
    if deployment:
        server = bound._bound_deployment
        bound = server.options(**deployment).bind(*server.init_args)
    serve.run(bound, name="trioton", route_prefix=None)


def process_of(entry: Entry) -> int:
    """The process that has the server's port."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"--http-port={entry.http_port}".encode() in words and f"--http-address={entry.host}".encode() in words:
            return int(folder.name)
    raise AssertionError(f"no process for {entry}")


@pytest.fixture(scope="module", autouse=True)
def serving(cluster: Cluster) -> Iterator[None]:
    serve.start(proxy_location="Disabled")
    yield
    serve.shutdown()


def test_it_scales_by_its_queue_and_no_request_fails(cluster: Cluster, models: Path) -> None:
    policy = {"policy_function": "trioton.ray:Scaling", "policy_kwargs": {"signal": "in_flight", "target": 4.0}}
    scaling = {
        "min_replicas": 1,
        "max_replicas": 3,
        "upscale_delay_s": 1,
        "downscale_delay_s": 3,
        "look_back_period_s": 11,  # of which Serve takes no less than an interval of its own
        "policy": policy,
    }
    run(models, autoscaling_config=scaling)
    assert [each.application for each in directory.serving()] == ["trioton"]
    with load(12) as many:
        wait_for("three servers", lambda: len(directory.serving()) == 3, 90)
        before = many.served
        wait_for("more requests", lambda: many.served > before + 60, 60)
    assert many.failures == []
    with load(1) as few:
        wait_for("one server", lambda: len(directory.serving()) == 1, 90)
        before = few.served
        wait_for("more requests", lambda: few.served > before + 30, 60)
    assert few.failures == []


def test_a_server_that_is_killed_is_replaced(cluster: Cluster, models: Path) -> None:
    run(models, num_replicas=2)
    before = {each.replica for each in directory.serving()}
    victim = directory.serving()[0]
    os.kill(process_of(victim), signal.SIGKILL)

    def is_replaced() -> bool:
        now = {each.replica for each in directory.serving()}
        return victim.replica not in now and len(now) == 2 and len(now - before) == 1

    took = wait_for("another server", is_replaced, 60)
    print(f"replaced after {took:.1f} s")
    assert [infer(each) for each in directory.serving()] == [4.0, 4.0]


def test_the_servers_of_a_node_that_dies_are_replaced(cluster: Cluster, models: Path) -> None:
    run(models, num_replicas=2, max_replicas_per_node=1)
    wait_for("a server on each node", lambda: {each.host for each in directory.serving()} == {HEAD, OTHER}, 60)
    lost = next(each for each in directory.serving() if each.host == OTHER)
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(node_ip_address=OTHER, **NODE)

    def is_replaced() -> bool:
        now = directory.serving()
        return lost.replica not in {each.replica for each in now} and len(now) == 2

    took = wait_for("another server", is_replaced, 90)
    print(f"replaced after {took:.1f} s")
    assert [infer(each) for each in directory.serving()] == [4.0, 4.0]
    with pytest.raises(AssertionError):
        process_of(lost)  # it has died with its node


def test_a_rolling_update_fails_no_request(cluster: Cluster, models: Path) -> None:
    run(models, num_replicas=2)
    before = {each.replica for each in directory.serving()}
    with load(4) as clients:
        run(models, options={"flags": {"model-repository": str(models), "id": "newer"}}, num_replicas=2)
        wait_for("new servers", lambda: not before & {each.replica for each in directory.serving()}, 60)
        reached = clients.served
        wait_for("more requests", lambda: clients.served > reached + 30, 60)
    assert clients.failures == []
    for each in directory.serving():
        with urllib.request.urlopen(f"http://{each.host}:{each.http_port}/v2", timeout=10) as response:
            assert b'"name":"newer"' in response.read()


def test_what_cannot_serve_is_told(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="failed"):
        run(tmp_path / "absent", num_replicas=1)
    failure = serve.status().applications["trioton"]
    assert "absent" in failure.message + str(failure.deployments["Server"].message)
