"""The console's interface of a real server process, where a process has to die."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.console.repository import build
from tests.e2e.server_process import ServerProcess, eventually

pytestmark = pytest.mark.slow


def test_a_restart_is_counted_and_its_reason_is_shown(tmp_path: Path) -> None:
    build(tmp_path / "models")
    flags = ("--model-control-mode=explicit", "--load-model=texts", "--console")
    with ServerProcess(*flags, repository=tmp_path / "models") as server:
        address = f"http://{server.addresses['http']}/v2/console/models/texts"

        def instance() -> dict[str, Any]:
            (found,) = httpx.get(address).json()["versions"][0]["instances"]
            return dict(found)

        assert (instance()["state"], instance()["restarts"], instance()["last_error"]) == ("ready", 0, "")
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        assert eventually(lambda: (instance()["restarts"], instance()["state"]) == (1, "ready"))
        assert "SIGKILL" in instance()["last_error"]
