"""Servers with text models, for all tests of the OpenAI interface: one in one process, and one with an edge process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.openai.repository import build_text_repository
from tests.e2e.server_process import ServerProcess

FLAGS = {"one": (), "edges": ("--edge-processes=1",)}
# Their tests run with both.
BOTH = (
    "test_client",
    "test_messages",
    "test_other_clients",
    "test_responses",
    "test_scores",
    "test_sentences",
    "test_wire",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__.rpartition(".")[2]
    if module in BOTH and "text_server" in metafunc.fixturenames:
        metafunc.parametrize("text_server", tuple(FLAGS), indirect=True, scope="session")


@pytest.fixture(scope="session")
def text_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text_models")
    build_text_repository(folder)
    return folder


@pytest.fixture(scope="session")
def text_servers(text_repository: Path) -> Iterator[Callable[[str], ServerProcess]]:
    """One for each of `FLAGS`, started when it is first asked for."""
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with ExitStack() as stack:

        @cache
        def running(kind: str) -> ServerProcess:
            server = stack.enter_context(ServerProcess(*flags, *FLAGS[kind], repository=text_repository))
            assert len(server.addresses) == 3
            return server

        yield running


@pytest.fixture(scope="session")
def text_server(text_servers: Callable[[str], ServerProcess], request: pytest.FixtureRequest) -> ServerProcess:
    return text_servers(getattr(request, "param", "one"))


@pytest.fixture(scope="session")
def base_url(text_server: ServerProcess) -> str:
    return f"http://{text_server.addresses['http']}"
