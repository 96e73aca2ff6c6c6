"""Loading and unloading by the clients, in explicit mode."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs, status_of
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess, eventually


@pytest.fixture
def model(client: Client) -> Iterator[str]:
    """A model that this test may load and unload; loaded before and after."""
    client.raw.load_model("loadable")
    yield "loadable"
    client.raw.load_model("loadable")


def state(client: Client, model: str) -> tuple[str, str]:
    told = client.json("get_model_repository_index")
    entries = told if isinstance(told, list) else told["models"]
    (entry,) = [entry for entry in entries if entry["name"] == model]
    return entry.get("state", ""), entry.get("reason", "")


def test_unload_and_load_again(client: Client, model: str) -> None:
    """Unloaded on purpose it is gone, with the reason in the index, and the server stays ready; then it is back."""
    client.raw.unload_model(model)
    assert eventually(lambda: state(client, model) == ("UNAVAILABLE", "unloaded"))
    assert client.is_ready(model) is False
    assert client.raw.is_server_ready() is True
    with pytest.raises(InferenceServerException, match=model) as raised:
        client.infer(model, add_sub_inputs())
    assert status_of(raised.value) in ("NOT_FOUND", "UNAVAILABLE")
    client.raw.load_model(model)
    assert state(client, model) == ("READY", "")
    assert client.infer(model, add_sub_inputs())["OUTPUT0"].shape == (1, 16)


def test_a_configuration_can_be_given_with_the_load(client: Client, model: str) -> None:
    """As JSON; it replaces the one on disk."""
    config = {"name": model, "backend": "onnxruntime", "max_batch_size": 2}
    client.raw.load_model(model, config=json.dumps(config))
    assert client.infer(model, add_sub_inputs(2))["OUTPUT0"].shape == (2, 16)
    with pytest.raises(InferenceServerException, match="batch-size must be <= 2"):
        client.infer(model, add_sub_inputs(3))


def test_a_failed_load_leaves_the_old_one_serving(client: Client, model: str) -> None:
    """The client is told why, and nothing has changed."""
    with pytest.raises(InferenceServerException, match="no_such_backend") as raised:
        client.raw.load_model(model, config=json.dumps({"name": model, "backend": "no_such_backend"}))
    assert status_of(raised.value) == "INVALID_ARGUMENT"
    assert client.infer(model, add_sub_inputs())["OUTPUT0"].shape == (1, 16)


@pytest.mark.parametrize("name", ["absent", "..", "a/b"])
def test_loading_what_is_not_there(client: Client, name: str) -> None:
    """Nor may a name lead out of the repository."""
    with pytest.raises(InferenceServerException) as raised:
        client.raw.load_model(name)
    assert status_of(raised.value) in ("INVALID_ARGUMENT", "NOT_FOUND")
    assert client.raw.is_server_live() is True


def test_a_model_that_appears_later(client: Client, repository: Path) -> None:
    """It is in the index as soon as it is in the repository, and serves when it is loaded."""
    name = f"later_{client.protocol}"
    add_add_sub(repository / name, versions=(1,))
    try:
        assert state(client, name) == ("", "")
        client.raw.load_model(name)
        assert client.infer(name, add_sub_inputs())["OUTPUT0"].shape == (1, 16)
        add_add_sub(repository / name, versions=(1, 2))
        client.raw.load_model(name)
        assert client.is_ready(name, "2") is True
    finally:
        client.raw.unload_model(name)
        shutil.rmtree(repository / name)


def test_outside_explicit_mode_there_is_no_loading(tmp_path: Path) -> None:
    """The call is refused as unavailable, in both protocols, and the model goes on serving."""
    add_add_sub(tmp_path / "only", versions=(1,))
    with ServerProcess(repository=tmp_path) as server:
        for protocol in ("http", "grpc"):
            with Client(protocol, server.addresses[protocol]) as client:
                for method in ("load_model", "unload_model"):
                    with pytest.raises(InferenceServerException, match="not allowed") as raised:
                        getattr(client.raw, method)("only")
                    assert status_of(raised.value) == "UNAVAILABLE"
                assert client.infer("only", add_sub_inputs())["OUTPUT0"].shape == (1, 16)
