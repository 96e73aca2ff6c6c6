from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # ships no types
import pytest
import yaml

from tests.deploy.manifests import DEPLOY, NPM, ROOT, Manifest, problems
from trioton.cli import settings_from

CHART = DEPLOY / "chart"
Values = dict[str, Any]

# Values by what they show.
EACH: Mapping[str, Values] = {
    "defaults": {},
    "a stateful set with a bucket, caches and GPUs": {
        "kind": "StatefulSet",
        "replicaCount": 3,
        "gpus": 1,
        "cache": {"persistent": True, "storageClass": "fast"},
        "modelRepository": {"path": "s3://bucket/models", "controlMode": "poll"},
        "existingSecret": "bucket",
    },
    "everything around it": {
        "replicaCount": 2,
        "commonLabels": {"team": "vision"},
        "commonAnnotations": {"owner": "me"},
        "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}], "metricsFrom": [{"namespaceSelector": {}}]},
        "ingress": {"enabled": True, "className": "nginx", "hosts": ["models.example.com"]},
        "dashboards": {"enabled": True},
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}, "data": {}}
        ],
        "podDisruptionBudget": {"maxUnavailable": "50%"},
        "service": {"type": "NodePort", "httpNodePort": 30080},
        "modelRepository": {"pvc": "models", "controlMode": "explicit", "loadModels": ["a", "b"]},
        "extraEnv": [{"name": "A", "value": "b"}],
    },
    "an HPA by pending requests": {"autoscaling": {"enabled": True, "maxReplicas": 5}},
    "an HPA by the CPU": {"autoscaling": {"enabled": True, "targetCPUUtilizationPercentage": 80}},
    "values of Triton's charts": {
        "image": {
            "imageName": "registry.example.com/trioton:0.1.0",
            "numGpus": 2,
            "modelRepositoryPath": "s3://bucket/models",
        },
        "replicaCount": 2,
        "serverArgs": ["--log-verbose=1"],
        "secret": {"region": "eu-west-1", "id": "id", "key": "key"},
        "tags": {"autoscaling": True, "loadBalancing": True},
        "autoscaling": {"minReplicas": 2, "maxReplicas": 4, "metrics": []},
    },
    "an NFS server as in Triton's chart": {
        "image": {"modelRepositoryServer": "nfs.example.com", "modelRepositoryPath": "/srv/models"}
    },
    "flags as in Triton's chart": {
        "image": {"serverCommand": "tritonserver", "serverArgs": ["--model-store=/models", "--strict-readiness=true"]}
    },
}
# The same, of kinds that do not come with Kubernetes.
OTHER_KINDS: Mapping[str, Values] = {
    "KEDA": {"keda": {"enabled": True, "fallback": {"failureThreshold": 3, "replicas": 2}}},
    "the Prometheus operator": {
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "authorization": {"credentials": {"name": "keys", "key": "metrics"}},
        },
        "prometheusRule": {"enabled": True},
    },
    "the Gateway API": {
        "gateway": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["models.example.com"]}
    },
}


@pytest.fixture(scope="module")
def helm() -> Any:
    return pytest.importorskip("helm_python")


@pytest.fixture(scope="module")
def chart(helm: Any) -> Iterator[Any]:
    with helm.Chart.load(CHART) as chart:
        yield chart


def rendered(chart: Any, values: Values) -> dict[tuple[str, str], Manifest]:
    """By kind and name."""
    documents = chart.render(values, name="release", namespace="models")
    found = [
        manifest
        for path, text in documents.items()
        if not path.endswith("NOTES.txt")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(by_name) == len(found)
    return by_name


def container(manifests: Mapping[tuple[str, str], Manifest], kind: str = "Deployment") -> Any:
    return manifests[kind, "release-trioton"]["spec"]["template"]["spec"]["containers"][0]


def test_it_passes_helms_lint(helm: Any) -> None:
    report = helm.lint(CHART, strict=True)
    assert not report["errors"]
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("values", EACH.values(), ids=EACH)
def test_each_manifest_is_what_kubernetes_knows(chart: Any, values: Values) -> None:
    for manifest in rendered(chart, values).values():
        assert not problems(manifest), manifest["kind"]


@pytest.mark.parametrize("values", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_each_manifest_is_what_its_operator_knows(chart: Any, values: Values) -> None:
    for manifest in rendered(chart, values).values():
        assert not problems(manifest), manifest["kind"]


@pytest.mark.parametrize("values", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_a_field_that_an_operator_lacks_is_a_problem(chart: Any, values: Values) -> None:
    own = [each for each in rendered(chart, values).values() if each["apiVersion"] in NPM]
    assert own
    for manifest in own:
        assert problems({**manifest, "spec": {**manifest["spec"], "specs": 1}}), manifest["kind"]


def test_a_misspelt_field_is_a_problem(chart: Any) -> None:
    deployment = json.loads(json.dumps(rendered(chart, {})["Deployment", "release-trioton"]))
    deployment["spec"]["template"]["spec"]["containers"][0]["argz"] = []
    assert problems(deployment)


@pytest.mark.parametrize(
    "values", [each for name, each in EACH.items() if name != "flags as in Triton's chart"], ids=str
)
def test_the_server_knows_its_flags(chart: Any, values: Values) -> None:
    args = container(rendered(chart, values), values.get("kind", "Deployment"))["args"]
    assert settings_from(args, {})


def test_flags_and_command_of_tritons_chart_stand_for_ours(chart: Any) -> None:
    found = container(rendered(chart, EACH["flags as in Triton's chart"]))
    assert found["command"] == ["tritonserver"]
    assert [each for each in found["args"] if "model-" in each] == [
        "--model-control-mode=none",
        "--model-store=/models",
    ]


def test_values_of_tritons_charts_are_taken(chart: Any) -> None:
    manifests = rendered(chart, EACH["values of Triton's charts"])
    found = container(manifests)
    assert found["image"] == "registry.example.com/trioton:0.1.0"
    assert found["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert "--model-repository=s3://bucket/models" in found["args"]
    assert found["args"][-1] == "--log-verbose=1"
    assert found["envFrom"] == [{"secretRef": {"name": "release-trioton"}}]
    assert manifests["Secret", "release-trioton"]["stringData"]["AWS_DEFAULT_REGION"] == "eu-west-1"
    assert manifests["HorizontalPodAutoscaler", "release-trioton"]["spec"]["minReplicas"] == 2
    assert manifests["Service", "release-trioton"]["spec"]["type"] == "LoadBalancer"


def test_an_autoscaler_rules_over_replicas(chart: Any) -> None:
    for values in (EACH["an HPA by pending requests"], {"keda": {"enabled": True}}):
        assert "replicas" not in rendered(chart, values)["Deployment", "release-trioton"]["spec"]


def test_a_disruption_budget_is_made_where_there_are_several(chart: Any) -> None:
    assert ("PodDisruptionBudget", "release-trioton") not in rendered(chart, {})
    assert ("PodDisruptionBudget", "release-trioton") in rendered(chart, {"replicaCount": 2})


def test_the_grace_period_is_computed(chart: Any) -> None:
    def grace(**values: Any) -> int:
        spec = rendered(chart, values)["Deployment", "release-trioton"]["spec"]["template"]["spec"]
        return int(spec["terminationGracePeriodSeconds"])

    assert grace() == 10 + 30 + 10
    assert grace(drainSeconds=60, exitTimeoutSeconds=300) == 370
    assert grace(terminationGracePeriodSeconds=120) == 120


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"terminationGracePeriodSeconds": 40}, r"terminationGracePeriodSeconds is 40.* = 40 seconds"),
        ({"autoscaling": {"enabled": True}, "keda": {"enabled": True}}, "two autoscalers"),
        ({"replicaCuont": 2}, "replicaCuont"),
        ({"image": {"pullPolicy": "always"}}, "pullPolicy"),
        ({"service": {"httpNodePort": 30080}}, "service.httpNodePort is given, but service.type is ClusterIP"),
        ({"modelRepository": {"loadModels": ["a"]}}, "controlMode is none: it has to be explicit"),
        ({"gateway": {"enabled": True}}, r"gateway\.parentRefs"),
        (
            {"replicaCount": 2, "cache": {"persistent": True}, "modelRepository": {"path": "s3://b/m"}},
            "one claim cannot be mounted by all of them",
        ),
        ({"kind": "StatefulSet", "service": {"headless": False}}, "it needs service.headless"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(chart: Any, values: Values, text: str) -> None:
    with pytest.raises(Exception, match=text):
        chart.render(values, name="release", namespace="models")


def test_rules_and_boards_are_those_of_the_examples(chart: Any) -> None:
    values = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
    manifests = rendered(chart, values)
    examples = ROOT / "examples" / "observability"
    rules = manifests["PrometheusRule", "release-trioton"]["spec"]
    assert rules == yaml.safe_load((examples / "rules.yml").read_text())
    for name in ("board-server", "board-model"):
        (text,) = manifests["ConfigMap", f"release-trioton-{name}"]["data"].values()
        assert json.loads(text) == json.loads((examples / f"{name}.json").read_text())


def test_it_is_whole_as_a_package(helm: Any, tmp_path: Path) -> None:
    packaged = Path(helm.package(CHART, destination=tmp_path))
    with helm.Chart.load(packaged) as packed:
        assert rendered(packed, {"prometheusRule": {"enabled": True}})["PrometheusRule", "release-trioton"]["spec"]


def test_checkov_finds_nothing(chart: Any, tmp_path: Path) -> None:
    program = shutil.which("checkov")
    if program is None:
        pytest.skip("needs checkov on the path")
    values = {"replicaCount": 2, "networkPolicy": {"enabled": True}, "image": {"digest": f"sha256:{'0' * 64}"}}
    for path, text in chart.render(values, name="release", namespace="models").items():
        if path.endswith(".yaml"):
            (tmp_path / path.replace("/", "-")).write_text(text)
    command = [program, "-d", str(tmp_path), "--config-file", str(DEPLOY / ".checkov.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Failed checks: 0" in done.stdout


def test_defaults_fit_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_the_schema_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) == {*values, "global"}


def test_the_version_is_the_packages() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version[1]
