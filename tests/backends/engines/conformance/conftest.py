"""A server for each engine that is installed, with its tiny model and a scripted one beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.backends.engines.conformance.engines import ENGINES, EngineCase
from tests.backends.engines.models import write_model
from tests.e2e.engine_calls import events, generate, url
from tests.e2e.server_process import ServerProcess

MODEL, BESIDE = "tiny", "beside"


@dataclass(frozen=True)
class Served:
    """One engine behind a server."""

    engine: EngineCase
    server: ServerProcess

    def ask(self, prompt: str, **fields: Any) -> dict[str, Any]:
        """A whole answer: text, finish reason, counts and details."""
        answer = generate(self.server, body(prompt, **fields), MODEL)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def stream(self, prompt: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of a stream."""
        asked = {**body(prompt, **fields), "stream": True}
        with httpx.stream("POST", url(self.server, MODEL, "generate_stream"), json=asked, timeout=60) as response:
            assert response.status_code == 200
            return list(events(response))


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    """Of `generate`; greedy, unless the sampling fields say otherwise."""
    return {
        "text_input": prompt,
        "exclude_input_in_output": True,
        "parameters": {"temperature": 0, "max_tokens": 32, "return_details": True, **fields},
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: engine.name)
def served(
    request: pytest.FixtureRequest, run_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    engine: EngineCase = request.param
    if not engine.is_installed:
        pytest.skip(f"{engine.package} is not installed")
    repository = tmp_path_factory.mktemp(engine.name)
    engine.write(repository / MODEL, run_folder)
    write_model(repository / BESIDE, "scripted")
    with ServerProcess("--restart-wait-secs=240", repository=repository, start_seconds=240) as server:
        server.addresses  # noqa: B018 (waits until it serves)
        yield Served(engine, server)
