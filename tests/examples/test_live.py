"""The examples as a person runs them: scripts of their own, against a server with all their models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.examples.loading import EXAMPLES, load_example
from trioton.server import Server, open_server
from trioton.settings import Settings

pytestmark = pytest.mark.e2e

STOPS = load_example("tour").STOPS


def settings(repository: Path) -> Settings:
    return Settings(
        model_repository=(repository,),
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        http_port=0,
        grpc_port=0,
        allow_metrics=False,
    )


def url(server: Server, protocol: str) -> str:
    host, port = server.addresses[protocol]
    return f"{host}:{port}"


async def run_script(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    with trio.fail_after(90):  # before the test's own limit, which would leave the script behind
        return await trio.run_process(
            command, check=False, capture_stdout=True, capture_stderr=True, cwd=EXAMPLES.parent, env=environment
        )


async def test_the_tour_is_right_from_end_to_end_and_the_clients_run_alone(repository: Path) -> None:
    """All answers right over both protocols; then each client by itself, over each protocol."""
    async with open_server(settings(repository)) as server:
        http, grpc = url(server, "http"), url(server, "grpc")
        tour = await run_script("examples/tour.py", "--http", http, "--grpc", grpc)
        assert (tour.returncode, tour.stderr.decode()) == (0, "")
        out = tour.stdout.decode()
        assert out.count("✓ right") == 2 * len(STOPS)
        assert out.count("the same answer") == len(STOPS)
        assert "Trioton reads this page" in out

        for client, words in {
            "ocr": "upside down",
            "ocr_page": "upside down",
            "voice_activity": "speech in 7",
            "file_type": "Python source",
            "add_sub": "15 + 10 = 25",
        }.items():
            for protocol, address in {"http": http, "grpc": grpc}.items():
                script = await run_script(f"examples/clients/{client}.py", "-i", protocol, "-u", address)
                assert (script.returncode, script.stderr.decode()) == (0, "")
                assert words in script.stdout.decode()


async def test_clients_say_what_failed(repository: Path, tmp_path: Path) -> None:
    """A server without the model: exit code 1 and the server's own sentence, with no traceback."""
    async with open_server(settings(tmp_path)) as server:
        for protocol in ("http", "grpc"):
            script = await run_script("examples/clients/add_sub.py", "-i", protocol, "-u", url(server, protocol))
            assert script.returncode == 1
            error = script.stderr.decode()
            assert "unknown model" in error
            assert "Traceback" not in error
