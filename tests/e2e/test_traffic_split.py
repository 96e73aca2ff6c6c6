"""A traffic split of a running server: shares, stickiness, a change through the control API, metrics."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_metrics import scrape
from tests.e2e.test_sequence import ZEROS, add_summing

TARGETS = [{"model": "add_sub", "version": 1, "weight": 2}, {"model": "add_sub", "version": 2, "weight": 1}]


def config(split: dict[str, Any]) -> str:
    return f"""backend: "traffic_split" parameters {{ key: "split" value {{ string_value: '{json.dumps(split)}' }} }}"""


def override(split: dict[str, Any]) -> str:
    return json.dumps({"backend": "traffic_split", "parameters": {"split": {"string_value": json.dumps(split)}}})


@pytest.fixture(scope="module")
def split_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("split")
    add_add_sub(repository / "add_sub", versions=(1, 2))
    for name in ("by_http", "by_grpc"):
        (repository / name).mkdir()
        (repository / name / "config.pbtxt").write_text(config({"targets": TARGETS, "sticky": "user"}))
    with ServerProcess(
        "--model-control-mode=explicit",
        "--load-model=*",
        "--http-header-forward-pattern=x-user",
        "--grpc-header-forward-pattern=x-user",
        repository=repository,
    ) as process:
        yield process


@pytest.fixture(scope="module")
def shadow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A shadow of all requests for a model, and for one with sequences."""
    repository = tmp_path_factory.mktemp("shadow")
    add_add_sub(repository / "add_sub", versions=(1, 2))
    add_summing(repository / "sum", id_type="UINT64", batching=f"max_sequence_idle_microseconds: 120000000 {ZEROS}")
    shutil.copytree(repository / "sum" / "1", repository / "sum" / "2")
    with (repository / "sum" / "config.pbtxt").open("a") as file:
        file.write("version_policy { all {} }\n")
    for name, model in (("mirrored", "add_sub"), ("tally", "sum")):
        split = {
            "targets": [{"model": model, "version": 1}, {"model": model, "version": 2}],
            "shadows": [{"model": model, "version": 2}],
            "max_shadow_requests": 100,
        }
        (repository / name).mkdir()
        (repository / name / "config.pbtxt").write_text(config(split))
    with ServerProcess(repository=repository) as process:
        yield process


@pytest.fixture(params=["http", "grpc"])
def split_client(split_server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, split_server.addresses[request.param]) as client:
        client.raw.load_model(f"by_{client.protocol}", config=override({"targets": TARGETS, "sticky": "x-user"}))
        yield client


def version_of(client: Client, **more: Any) -> int:
    """Which version has answered: the second subtracts the other way round."""
    inputs = add_sub_inputs()
    answer = client.infer(f"by_{client.protocol}", inputs, **more)
    np.testing.assert_allclose(answer["OUTPUT0"], inputs["INPUT0"] + inputs["INPUT1"])
    is_first = np.allclose(answer["OUTPUT1"], inputs["INPUT0"] - inputs["INPUT1"])
    return 1 if is_first else 2


def test_shares_and_stickiness(split_client: Client) -> None:
    """By weight without a header; with one, and for a sequence, always the same."""
    assert sorted(version_of(split_client) for _ in range(6)) == [1, 1, 1, 1, 2, 2]
    users = [{version_of(split_client, headers={"x-user": user}) for _ in range(3)} for user in "abcdefgh"]
    assert all(len(versions) == 1 for versions in users)
    assert {1} in users
    assert {2} in users
    assert len({version_of(split_client, sequence_id=77) for _ in range(3)}) == 1


def test_a_change_while_it_serves(split_client: Client) -> None:
    """A wrong one is refused, with its place, and changes nothing."""
    name = f"by_{split_client.protocol}"
    split_client.raw.load_model(name, config=override({"targets": [{"model": "add_sub", "version": 2}]}))
    assert {version_of(split_client) for _ in range(3)} == {2}
    for wrong, text in (
        ({"targets": [{"model": "add_sub", "version": 3}]}, "version 3"),
        ({"targets": [{"model": "add_sub", "weight": -1}]}, r"targets\[0\].weight is -1"),
    ):
        with pytest.raises(InferenceServerException, match=text):
            split_client.raw.load_model(name, config=override(wrong))
    assert version_of(split_client) == 2


def test_each_version_is_counted(split_server: ServerProcess, split_client: Client) -> None:
    def counts() -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        for family in text_string_to_metric_families(scrape(split_server)):
            for sample in family.samples:
                labels = sample.labels
                if sample.name == "trioton_split_requests_total" and labels["model"] == f"by_{split_client.protocol}":
                    found[labels["target"], labels["target_version"], labels["role"]] += int(sample.value)
        return found

    before = counts()
    for _ in range(3):
        version_of(split_client)
    assert counts() - before == {("add_sub", "1", "primary"): 2, ("add_sub", "2", "primary"): 1}


def routed(server: ServerProcess, split: str) -> Counter[str]:
    """How many requests a split has sent in each role."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(scrape(server)):
        for sample in family.samples:
            if sample.name == "trioton_split_requests_total" and sample.labels["model"] == split:
                found[sample.labels["role"]] += int(sample.value)
    return found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_shadow_sees_what_belongs_to_no_sequence(shadow_server: ServerProcess, protocol: str) -> None:
    before = routed(shadow_server, "mirrored")
    with Client(protocol, shadow_server.addresses[protocol]) as client:
        for number in range(6):
            client.infer("mirrored", add_sub_inputs(), sequence_id=9 if number % 2 else 0)
    after = routed(shadow_server, "mirrored")
    assert after - before == {"primary": 6, "shadow": 3}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_sequences_keep_to_their_target_and_are_not_copied(shadow_server: ServerProcess, protocol: str) -> None:
    """Each has its own sum, though the split has two targets and a shadow; a copy would be a step of a sequence too."""
    before = routed(shadow_server, "tally")
    ids = range(1, 9)
    with Client(protocol, shadow_server.addresses[protocol]) as client:
        sums = [
            [
                int(
                    client.infer(
                        "tally",
                        {"INPUT": np.array([[id, 0]], np.int32)},
                        sequence_id=id,
                        sequence_start=step == 0,
                        sequence_end=step == 2,
                    )["OUTPUT"][0, 0]
                )
                for id in ids
            ]
            for step in range(3)
        ]
    assert sums == [[id * step for id in ids] for step in (1, 2, 3)]
    assert routed(shadow_server, "tally") - before == {"primary": 24}


def test_it_looks_like_its_targets(split_client: Client) -> None:
    name = f"by_{split_client.protocol}"
    metadata = split_client.json("get_model_metadata", name)
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    response = split_client.raw.infer(name, split_client.tensors(add_sub_inputs())).get_response()
    told = response if isinstance(response, dict) else {"model_name": response.model_name}
    assert told["model_name"] == name
