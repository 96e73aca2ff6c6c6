"""Health, metadata, configuration, statistics and index, as both protocols tell them."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs, status_of


def test_the_server_lives_and_is_ready(client: Client) -> None:
    assert client.raw.is_server_live() is True
    assert client.raw.is_server_ready() is True


def test_models_are_ready_by_version(client: Client) -> None:
    assert client.is_ready("add_sub") is True
    assert client.is_ready("add_sub", "2") is True
    assert client.is_ready("add_sub", "3") is False
    assert client.is_ready("absent") is False


def test_the_server_says_what_it_is(client: Client) -> None:
    told = client.json("get_server_metadata")
    assert told["name"] == "trioton"
    assert told["version"] == metadata.version("trioton")
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(told["extensions"])


def integers(value: Any) -> Any:
    """Shapes as numbers: protobuf's JSON form has 64-bit integers as strings."""
    return [{**tensor, "shape": [int(size) for size in tensor["shape"]]} for tensor in value]


def test_a_model_says_what_it_takes_and_gives(client: Client) -> None:
    """What the configuration left out has been read from the model; the batch dimension is shown."""
    told = client.json("get_model_metadata", "add_sub")
    assert (told["name"], sorted(told["versions"])) == ("add_sub", ["1", "2"])
    assert told["platform"] in ("onnxruntime_onnx", "onnxruntime")
    for word in ("INPUT", "OUTPUT"):
        assert integers(told[f"{word.lower()}s"]) == [
            {"name": f"{word}{i}", "datatype": "FP32", "shape": [-1, 16]} for i in (0, 1)
        ]
    assert client.json("get_model_metadata", "add_sub", "1")["versions"] == ["1"]


def test_a_python_model_can_complete_its_configuration(client: Client) -> None:
    """It has no configuration file at all."""
    told = client.json("get_model_metadata", "completed")
    assert integers(told["inputs"]) == [{"name": "X", "datatype": "INT32", "shape": [-1, -1]}]
    config = client.json("get_model_config", "completed")
    config = config.get("config", config)
    assert (config["backend"], config["max_batch_size"]) == ("python", 4)
    assert config["input"][0]["data_type"] == "TYPE_INT32"


def test_the_configuration_is_whole(client: Client) -> None:
    config = client.json("get_model_config", "add_sub")
    config = config.get("config", config)
    assert config["name"] == "add_sub"
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" in config
    assert [tensor["name"] for tensor in config["input"]] == ["INPUT0", "INPUT1"]
    assert [int(size) for size in config["input"][0]["dims"]] == [16]
    assert config["metric_tags"] == {"team": "e2e"}
    assert [int(group["count"]) for group in config["instance_group"]] == [1]


def test_the_index_lists_every_version(client: Client) -> None:
    told = client.json("get_model_repository_index")
    entries = told if isinstance(told, list) else told["models"]
    states = {(entry["name"], entry.get("version", "")): entry.get("state") for entry in entries}
    assert states["add_sub", "1"] == states["add_sub", "2"] == states["slow", "1"] == "READY"


def statistics(client: Client, *arguments: str) -> dict[str, Any]:
    (one,) = client.json("get_inference_statistics", *arguments)["model_stats"]
    assert isinstance(one, dict)
    return one


def test_statistics_count_what_was_done(client: Client) -> None:
    """Requests, inferences (a row each) and executions of the version that ran, and no other."""
    before, other_before = statistics(client, "add_sub", "1"), statistics(client, "add_sub", "2")
    for _ in range(3):
        client.infer("add_sub", add_sub_inputs(2), model_version="1")
    after, other_after = statistics(client, "add_sub", "1"), statistics(client, "add_sub", "2")

    def rise(*path: str) -> int:
        values = []
        for found in (before, after):
            value: Any = found
            for key in path:
                value = value.get(key, {} if key != path[-1] else 0)  # protobuf's JSON leaves zeros out
            values.append(int(value))
        return values[1] - values[0]

    assert rise("inference_count") == 6
    assert rise("execution_count") == 3
    assert rise("inference_stats", "success", "count") == 3
    for word in ("success", "queue", "compute_infer"):
        assert rise("inference_stats", word, "ns") > 0, word
    assert rise("inference_stats", "fail", "count") == 0
    assert int(after["last_inference"]) > 1_600_000_000_000
    assert other_after == other_before


def test_statistics_of_all_models(client: Client) -> None:
    names = {(one["name"], one["version"]) for one in client.json("get_inference_statistics")["model_stats"]}
    assert {("add_sub", "1"), ("add_sub", "2"), ("slow", "1")} <= names


@pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config", "get_inference_statistics"])
@pytest.mark.parametrize(("model", "version"), [("absent", ""), ("add_sub", "7")])
def test_unknown_models_are_named(client: Client, method: str, model: str, version: str) -> None:
    with pytest.raises(InferenceServerException) as raised:
        getattr(client.raw, method)(model, version)
    assert model in raised.value.message()
    assert status_of(raised.value) in ("NOT_FOUND", "INVALID_ARGUMENT")
