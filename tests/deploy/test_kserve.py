from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import DEPLOY, problems, read
from trioton.cli import settings_from

KSERVE = DEPLOY / "kserve"
RUNTIMES = sorted(KSERVE.glob("*.yaml"))
OURS = [each for each in RUNTIMES if each.name.endswith("serving-runtime.yaml")]
EXAMPLES = sorted((KSERVE / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", [*RUNTIMES, *EXAMPLES], ids=lambda path: path.name)
def test_kserve_knows_every_field(path: Path) -> None:
    manifests = read(path)
    assert manifests
    for manifest in manifests:
        assert not problems(manifest)


def test_a_misspelt_field_is_a_problem() -> None:
    (manifest,) = read(OURS[0])
    broken: Any = copy.deepcopy(manifest)
    broken["spec"]["containers"][0]["argz"] = []
    broken["spec"]["supportedModelFormats"][0]["priority"] = "1"
    assert len(problems(broken)) == 2


@pytest.mark.parametrize("path", RUNTIMES, ids=lambda path: path.name)
def test_the_server_knows_the_flags_of_the_container(path: Path) -> None:
    (manifest,) = read(path)
    (container,) = manifest["spec"]["containers"]
    assert container["name"] == "kserve-container"
    program, *flags = container["args"]
    assert program == "tritonserver"
    assert settings_from(flags, {})


def test_the_two_runtimes_are_the_same() -> None:
    one, other = (read(path)[0] for path in OURS)
    assert one["spec"] == other["spec"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_kubelet_waits_longer_than_the_server(path: Path) -> None:
    """Of the flags of the runtime and of the example the later ones count."""
    (runtime,) = read(OURS[0])
    (example,) = read(path)
    predictor = example["spec"]["predictor"]
    flags = [*runtime["spec"]["containers"][0]["args"], *predictor["model"].get("args", [])]
    seconds = {
        name: float(value) for name, _, value in (each.partition("=") for each in flags) if name.endswith("-secs")
    }
    assert predictor["terminationGracePeriodSeconds"] > seconds["--drain-secs"] + seconds["--exit-timeout-secs"]
