"""The YAML for Ray: what Serve, the replicas and KubeRay make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import trioton.ray
from tests.deploy.manifests import problems, read
from trioton.ray import Scaling, ServerOptions

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "ray"
SERVE, SERVICE = FOLDER / "serve.yaml", FOLDER / "rayservice.yaml"


def configurations() -> list[Any]:
    service = yaml.safe_load(SERVICE.read_text())
    return [yaml.safe_load(SERVE.read_text()), yaml.safe_load(service["spec"]["serveConfigV2"])]


@pytest.mark.parametrize("configuration", configurations())
def test_applications_are_what_the_package_takes(configuration: Any) -> None:
    (application,) = configuration["applications"]
    assert application["import_path"] == f"{trioton.ray.__name__}:{trioton.ray.app.__name__}"
    assert configuration["proxy_location"] == "Disabled"
    options = ServerOptions.parse(application["args"])
    (server,) = application["deployments"]
    assert server["name"] == "Server"
    if options.http_port:
        assert server["max_replicas_per_node"] == 1
    if scaling := server.get("autoscaling_config"):
        module, _, name = scaling["policy"]["policy_function"].partition(":")
        assert (module, name) == (trioton.ray.__name__, Scaling.__name__)
        Scaling(**scaling["policy"]["policy_kwargs"])


@pytest.mark.parametrize("configuration", configurations())
def test_serve_takes_them(configuration: Any) -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="needs Ray Serve: pip install 'trioton[ray]'")
    schema.ServeDeploySchema.model_validate(configuration)


def test_kuberay_knows_every_field() -> None:
    (manifest,) = read(SERVICE)
    assert not problems(manifest)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("upgradeStrategy.type", "Rolling"),
        ("rayClusterConfig.headGroupSpec.rayStartParams.num-cpus", 0),
        ("rayClusterConfig.headGroupSpec.replicas", 1),
        ("rayClusterConfig.workerGroupSpecs.0.minReplicas", "2"),
        ("rayClusterConfig.workerGroupSpecs.0.template.spec.containers.0.argz", []),
    ],
)
def test_what_kuberay_does_not_know_is_a_problem(path: str, value: object) -> None:
    (manifest,) = read(SERVICE)
    *parents, last = path.split(".")
    place: Any = manifest["spec"]
    for each in parents:
        place = place[int(each)] if isinstance(place, list) else place[each]
    place[last] = value
    assert problems(manifest)


def test_the_service_of_kuberay_finds_ready_servers() -> None:
    """It has the ports of the head that are named `serve…`, and selects workers by their readiness."""
    spec = yaml.safe_load(SERVICE.read_text())["spec"]
    options = ServerOptions.parse(configurations()[1]["applications"][0]["args"])
    ports = [options.http_port, options.grpc_port, options.metrics_port]
    cluster = spec["rayClusterConfig"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert [each["containerPort"] for each in head["ports"] if each["name"].startswith("serve")] == ports
    assert spec["excludeHeadPodFromServeSvc"] is True
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (group,) = cluster["workerGroupSpecs"]
    pod = group["template"]["spec"]
    (server,) = pod["containers"]
    assert [each["containerPort"] for each in server["ports"]] == ports
    assert server["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "http"}
    assert pod["terminationGracePeriodSeconds"] > options.end_secs
    assert head["image"] == server["image"]
