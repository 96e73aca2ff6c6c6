"""The model repository that `examples/build_repository.py` builds, and a stand-in for a server of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.loading import load_example
from tests.examples.local_server import LocalServer


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("repository")
    load_example("build_repository").build_repository(directory)
    return directory


@pytest.fixture(scope="session")
def loaded_models(repository: Path) -> LocalServer:
    return LocalServer(repository)


@pytest.fixture
def server(loaded_models: LocalServer) -> LocalServer:
    loaded_models.batch_sizes.clear()
    return loaded_models
