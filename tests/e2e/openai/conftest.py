"""One server with text models, for all tests of the OpenAI interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.openai.repository import build_text_repository
from tests.e2e.server_process import ServerProcess


@pytest.fixture(scope="session")
def text_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text_models")
    build_text_repository(folder)
    return folder


@pytest.fixture(scope="session")
def text_server(text_repository: Path) -> Iterator[ServerProcess]:
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(*flags, repository=text_repository) as server:
        assert len(server.addresses) == 3
        yield server


@pytest.fixture(scope="session")
def base_url(text_server: ServerProcess) -> str:
    return f"http://{text_server.addresses['http']}"
