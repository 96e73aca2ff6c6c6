"""Which configuration a server takes, and what it tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.client import Client, add_sub_inputs
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model that has a configuration for a kind of machine, one that has none, one without any."""
    for name in ("tuned", "plain", "bare"):
        add_add_sub(tmp_path / name, versions=(1,))
        (tmp_path / name / "config.pbtxt").write_text("max_batch_size: 2\n")
    (tmp_path / "bare" / "config.pbtxt").unlink()
    (tmp_path / "tuned" / "configs").mkdir()
    (tmp_path / "tuned" / "configs" / "h100.pbtxt").write_text("max_batch_size: 64\n")
    return tmp_path


def test_a_configuration_by_name(repository: Path) -> None:
    """Over both protocols; models without one of this name have their ordinary one."""
    with ServerProcess("--model-config-name=h100", repository=repository) as server:
        for protocol in ("http", "grpc"):
            with Client(protocol, server.addresses[protocol]) as client:
                sizes = {name: _config(client, name)["max_batch_size"] for name in ("tuned", "plain", "bare")}
                assert sizes == {"tuned": 64, "plain": 2, "bare": 4}
                assert client.infer("tuned", add_sub_inputs(64))["OUTPUT0"].shape == (64, 16)


def test_without_completion_a_configuration_must_be_whole(repository: Path) -> None:
    """By Triton's old flag, too; what is missing is said."""
    with ServerProcess("--strict-model-config=true", repository=repository) as server:
        assert server.wait() == 1
    assert "model configuration is not provided for model 'bare'" in server.log


def _config(client: Client, name: str) -> dict[str, object]:
    told = client.json("get_model_config", name)
    config: dict[str, object] = told.get("config", told)
    return config
