"""A server with the console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.console.repository import build
from tests.e2e.server_process import ServerProcess

FLAGS = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--console")


@pytest.fixture(scope="session")
def console_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("console") / "models"
    build(folder)
    return folder


@pytest.fixture(scope="session")
def console(console_models: Path) -> Iterator[ServerProcess]:
    with ServerProcess(*FLAGS, repository=console_models) as server:
        yield server


def opened(page: Any, server: ServerProcess, view: str = "") -> Any:
    """The page at a view, loaded anew."""
    page.goto("about:blank")
    page.goto(f"http://{server.addresses['http']}/v2/console#/{view}")
    page.locator("h1").wait_for()
    return page
