"""Kubernetes manifests, held strictly to the schemas of the kinds that they are.

Kubernetes' own kinds by kubernetes-validate, KServe's by the models of its Python client, those of KEDA, of the
Prometheus operator and of the Gateway API by classes that were made of their CRDs (npm, `make schemas`), and KubeRay's
by a schema that is kept here.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # ships no types
import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.37"
# The packages that have the kinds of each group as classes, made of their CRDs.
NPM = {
    "keda.sh/v1alpha1": "keda",
    "monitoring.coreos.com/v1": "prometheus-operator",
    "gateway.networking.k8s.io/v1": "gateway-api",
}
SCHEMAS = ROOT / ".schemas"
# Types refuse fields that a class has not, and its own validation what a type cannot say.
TYPED = """
import {{ I{kind} }} from "@kubernetes-models/{package}/{group}/{kind}";
const manifest: I{kind} = {manifest};
"""
VALIDATED = """
import {{ {kind} }} from "@kubernetes-models/{package}/{group}/{kind}";
try {{ new {kind}({manifest}).validate(); }} catch (error) {{ console.log(error.message); }}
"""
COMPILER = ("--noEmit", "--strict", "--skipLibCheck", "--module", "node16", "--moduleResolution", "node16")

# The types of generated classes that are no classes, by their names.
PLAIN: Mapping[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float)}

Manifest = Mapping[str, Any]


def read(path: Path) -> Sequence[Manifest]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def problems(manifest: Manifest) -> list[str]:
    """What is wrong with a manifest; skips the test where its kind's schema is not here."""
    group = manifest["apiVersion"]
    if group.startswith("serving.kserve.io/"):
        return list(_of_kserve(manifest))
    if group in NPM:
        return _of_npm(manifest)
    if group == "ray.io/v1" and manifest["kind"] == "RayService":
        return list(_of_ray_service(manifest))
    return _of_kubernetes(manifest)


def _of_kubernetes(manifest: Manifest) -> list[str]:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    try:
        kubernetes_validate.validate(dict(manifest), KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error)]
    return []


def _of_ray_service(manifest: Manifest) -> Iterator[str]:
    schema = json.loads((Path(__file__).parent / "schemas" / "rayservice.json").read_text())
    found = [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(manifest["spec"])]
    yield from found
    if not found:
        cluster = manifest["spec"]["rayClusterConfig"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            named = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}}
            yield from _of_kubernetes({**named, "template": group["template"]})


def _of_npm(manifest: Manifest) -> list[str]:
    node, compiler = shutil.which("node"), SCHEMAS / "node_modules" / ".bin" / "tsc"
    if node is None or not compiler.exists():
        pytest.skip("needs node, and the kinds of CRDs as classes: make schemas")
    group, kind = manifest["apiVersion"], manifest["kind"]
    parts = {"kind": kind, "package": NPM[group], "group": group, "manifest": json.dumps(manifest)}
    with tempfile.NamedTemporaryFile("w", dir=SCHEMAS, suffix=".mts") as source:
        source.write(TYPED.format(**parts))
        source.flush()
        compiled = subprocess.run([node, compiler, *COMPILER, source.name], capture_output=True, text=True, check=False)
    checked = [node, "--input-type=module", "-e", VALIDATED.format(**parts)]
    validated = subprocess.run(checked, cwd=SCHEMAS, capture_output=True, text=True, check=True)
    return [*compiled.stdout.splitlines(), *validated.stdout.splitlines()]


@functools.cache
def _kserve() -> Any:
    """The models of KServe's client, without what the rest of it imports."""
    spec = find_spec("kserve")
    if spec is None or find_spec("kubernetes") is None:
        pytest.skip("needs the models of KServe's client: make schemas")
    package = ModuleType("kserve")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["kserve"] = package
    import kserve.models

    return kserve.models


def _of_kserve(manifest: Manifest) -> Iterator[str]:
    models = _kserve()
    version = manifest["apiVersion"].partition("/")[2]
    yield from _of_model(models, version.capitalize() + manifest["kind"], manifest, manifest["kind"])


def _of_model(models: Any, name: str, value: Any, place: str) -> Iterator[str]:
    """Differences from a generated class, which names the type of each of its fields."""
    from kubernetes import client

    listed = re.fullmatch(r"list\[(.+)\]", name)
    if listed:
        if not isinstance(value, list):
            yield f"{place}: expected a list, got {value!r}"
            return
        for index, each in enumerate(value):
            yield from _of_model(models, listed[1], each, f"{place}[{index}]")
        return
    model = getattr(models, name, None) or getattr(client, name, None)
    if model is None:
        yield from _of_plain(name, value, place)
        return
    if not isinstance(value, dict):
        if not model.openapi_types:
            return  # a quantity, which is a number or a text
        yield f"{place}: expected a mapping, got {value!r}"
        return
    types = {model.attribute_map[each]: kind for each, kind in model.openapi_types.items()}
    for key, each in value.items():
        if key not in types:
            yield f"{place}: there is no field '{key}'"
        else:
            yield from _of_model(models, types[key], each, f"{place}.{key}")


def _of_plain(name: str, value: Any, place: str) -> Iterator[str]:
    expected = dict if name.startswith("dict(") else PLAIN.get(name)
    if expected is not None and (not isinstance(value, expected) or (name == "int" and isinstance(value, bool))):
        yield f"{place}: expected {name}, got {value!r}"
