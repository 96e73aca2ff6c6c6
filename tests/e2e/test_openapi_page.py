"""The page at `/v2/docs` in a real browser: headless Chromium, where the machine has it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The browser's own calls, which these flags do not all prevent, find no host to go to.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--enable-logging=stderr",
    "--window-size=1300,2000",
    "--virtual-time-budget=20000",  # milliseconds that pass as fast as the page allows
)


@dataclass(frozen=True)
class Visit:
    """What came of opening a page: its elements, what it wrote to the console, and what it asked for."""

    dom: str
    console: list[str]
    requests: list[str]
    screenshot: Path


def visit(url: str, folder: Path) -> Visit:
    assert CHROMIUM is not None
    log, screenshot = folder / "net.json", folder / "page.png"
    where = (f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}", f"--screenshot={screenshot}")
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *where, "--dump-dom", url], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    console = re.findall(r':CONSOLE:\d+\] "(.*)"', done.stderr)
    return Visit(done.stdout, console, requests_of_the_page(log, url), screenshot)


def requests_of_the_page(log: Path, url: str) -> list[str]:
    """The page's own address, and what its elements and scripts asked for; the browser's own calls have no origin."""
    content = json.loads(log.read_text())
    start = content["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    parameters = [event["params"] for event in content["events"] if event["type"] == start and "params" in event]
    return [
        entry["url"]
        for entry in parameters
        if "url" in entry and (entry.get("initiator") != "not an origin" or entry["url"] == url)
    ]


def test_the_page_shows_operations_and_models(server: ServerProcess, tmp_path: Path) -> None:
    """Without a word on the console, and from this server alone."""
    origin = f"http://{server.addresses['http']}"
    page = visit(f"{origin}/v2/docs", tmp_path)
    assert page.console == []
    assert {request.removeprefix(f"{origin}/v2/docs") for request in page.requests} == {
        "",
        "/page.css",
        "/page.js",
        "/swagger-ui.css",
        "/swagger-ui-bundle.js",
        "/openapi.json",
    }
    for path in ("/v2/models/add_sub/infer", "/v2/models/{model_name}/infer", "/v2/health/ready", "/v2/logging"):
        assert f'data-path="{path}"' in page.dom
    for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"):
        assert f"<code>{name}</code>" in page.dom
    with Image.open(page.screenshot) as image:
        assert image.size == (1300, 2000)
        assert len(image.convert("RGB").getcolors(maxcolors=2**24) or ()) > 50


def test_an_operation_can_be_opened_and_sent(server: ServerProcess, tmp_path: Path) -> None:
    """By its address in the page: its example is in the field, its button is there."""
    page = visit(f"http://{server.addresses['http']}/v2/docs#/Model%3A%20add_sub/infer.add_sub", tmp_path)
    # The viewer takes each underscore for an old way of writing a blank, and says so; it finds the operation anyway.
    assert all("deep link whitespace" in line for line in page.console)
    (example,) = re.findall(r"<textarea[^>]*>(.*?)</textarea>", page.dom, re.DOTALL)
    assert json.loads(example)["inputs"][0]["name"] == "INPUT0"
    assert ">Execute</button>" in page.dom
