"""One server for most tests, started once, and a client for each of the two protocols.

The tests are plain synchronous functions: they drive the server from outside, with clients that have loops of their
own.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Client
from tests.e2e.repository import build_repository
from tests.e2e.server_process import ServerProcess

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WINDOW = {"width": 1200, "height": 1400}
# Small, so that the tests need not send much to pass it.
MAX_INPUT_SIZE = 1_000_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    build_repository(directory)
    return directory


# Their tests run with edges that serve plain requests by callbacks, with edges that serve all by tasks, and with edges
# in processes of their own.
MODULES = {"fast": "trioton", "task": "tests.e2e.without_fast_path", "edges": "trioton"}
DRIVERS = {
    "test_bad_input": ("fast", "task", "edges"),
    "test_infer": ("fast", "task", "edges"),
    "test_http": ("fast", "edges"),
    "test_metadata": ("fast", "edges"),
    "test_request_ids": ("fast", "edges"),
}
FLAGS = {"edges": ("--edge-processes=2",)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    drivers = DRIVERS.get(metafunc.module.__name__.rpartition(".")[2])
    if drivers is not None and "server" in metafunc.fixturenames:
        metafunc.parametrize("server", drivers, indirect=True)


@pytest.fixture(scope="session")
def servers(repository: Path) -> Iterator[Callable[[str], ServerProcess]]:
    """One for each of `MODULES`, started when it is first asked for."""
    flags = (
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--http-max-input-size={MAX_INPUT_SIZE}",
        "--log-verbose=1",
    )
    with ExitStack() as stack:

        @cache
        def running(driver: str) -> ServerProcess:
            process = stack.enter_context(
                ServerProcess(*flags, *FLAGS.get(driver, ()), repository=repository, module=MODULES[driver])
            )
            assert len(process.addresses) == 3
            return process

        yield running


@pytest.fixture(scope="session")
def server(servers: Callable[[str], ServerProcess], request: pytest.FixtureRequest) -> ServerProcess:
    """In explicit mode with everything loaded; a test that changes a model's state has one of its own."""
    return servers(getattr(request, "param", "fast"))


@pytest.fixture(scope="session", params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, server.addresses[request.param]) as made:
        yield made


@pytest.fixture(scope="session")
def http(server: ServerProcess) -> Iterator[Client]:
    with Client("http", server.addresses["http"]) as made:
        yield made


@pytest.fixture(scope="session")
def grpc(server: ServerProcess) -> Iterator[Client]:
    with Client("grpc", server.addresses["grpc"]) as made:
        yield made


class Browser:
    """Chromium. Playwright runs an event loop of its own within the thread of the tests, in which asyncio would then
    let nobody else run one: it counts as running only while a test of a page does."""

    def __init__(self, chromium: Any) -> None:
        self.chromium = chromium
        self._loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)

    @contextmanager
    def in_use(self) -> Iterator[Any]:
        asyncio._set_running_loop(self._loop)
        try:
            yield self.chromium
        finally:
            asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    started = playwright.sync_playwright().start()
    browser = Browser(started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]))
    yield browser
    with browser.in_use() as chromium:
        chromium.close()
        started.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Any]:
    """A page of a context of its own. Errors of its scripts, breaches of its policy, and calls of other hosts fail the
    test; what the server refuses does not."""
    with browser.in_use() as chromium:
        yield from _page(chromium)


def _page(chromium: Any) -> Iterator[Any]:
    context = chromium.new_context(viewport=WINDOW, reduced_motion="reduce")
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.extend([line.text] if line.type in ("error", "warning") else []))
    page.on("request", lambda request: wrong.extend([] if "127.0.0.1" in request.url else [request.url]))
    page.set_default_timeout(60_000)
    yield page
    context.close()
    assert [line for line in wrong if "Failed to load resource" not in line and not line.startswith("data:")] == []
