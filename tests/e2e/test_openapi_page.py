"""The page at `/v2/docs` in a real browser: what it shows, that operations can be sent, and that it is accessible."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.pages import expect, violations
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

KEYS = """
[keys.reader]
key = "reader-0123456789"
allow = ["all"]
"""


def opened(page: Any, server: ServerProcess, part: str = "") -> Any:
    page.goto("about:blank")
    page.goto(f"http://{server.addresses['http']}/v2/docs{part}")
    page.locator("h1").wait_for()
    return page


def test_the_page_shows_operations_and_models(page: Any, server: ServerProcess) -> None:
    opened(page, server)
    for path in ("/v2/models/add_sub/infer", "/v2/models/{model_name}/infer", "/v2/health/ready", "/v2/logging"):
        expect(page.locator(f'[data-path="{path}"]').first).to_be_visible()
    for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"):
        expect(page.locator("code", has_text=name).first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(page: Any, server: ServerProcess, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    opened(page, server)
    assert violations(page) == []
    for path in ("/v2/models/add_sub/infer", "/v2/models/{model_name}/generate_stream", "/v2/repository/index"):
        operation = page.locator(f'[data-path="{path}"]').first
        operation.locator("summary").first.click()
        for more in operation.locator("dd summary").all():
            more.click()
    assert violations(page) == []


def test_an_operation_can_be_opened_by_its_address_and_sent(page: Any, server: ServerProcess) -> None:
    """Its example is in the field, and the model takes it."""
    opened(page, server, "#/Model%3A%20add_sub/infer.add_sub")
    operation = page.locator("[data-path='/v2/models/add_sub/infer']")
    expect(operation.get_by_label("Body as JSON")).to_have_value(re.compile("INPUT0"))
    operation.get_by_role("button", name="Send").click()
    expect(operation.get_by_role("status")).to_contain_text("Status 200")
    expect(operation.get_by_label("Answer")).to_contain_text("OUTPUT0")
    operation.get_by_label("Body as JSON").fill("{}")
    operation.get_by_role("button", name="Send").click()
    expect(operation.get_by_role("alert")).to_be_visible()


def test_parameters_are_asked_for(page: Any, server: ServerProcess) -> None:
    opened(page, server)
    operation = page.locator('[data-path="/v2/models/{model_name}/config"]')
    operation.locator("summary").first.click()
    operation.get_by_label("model_name").fill("add_sub")
    operation.get_by_role("button", name="Send").click()
    expect(operation.get_by_label("Answer")).to_contain_text("onnxruntime")
    expect(operation.locator("pre").last).to_contain_text("/v2/models/add_sub/config")


def test_what_is_looked_for_is_found(page: Any, server: ServerProcess) -> None:
    opened(page, server)
    page.get_by_label("contains").fill("shared memory")
    expect(page.locator('[data-path="/v2/systemsharedmemory/status"]')).to_be_visible()
    expect(page.locator('[data-path="/v2/health/ready"]')).to_have_count(0)


def test_a_key_is_asked_for(page: Any, tmp_path: Path) -> None:
    add_add_sub(tmp_path / "models" / "add_sub", versions=(1,))
    (tmp_path / "keys.toml").write_text(KEYS)
    with ServerProcess(f"--auth-keys-file={tmp_path / 'keys.toml'}", repository=tmp_path / "models") as server:
        opened(page, server)
        expect(page.locator("h1")).to_have_text("A key is needed")
        page.get_by_label("Key", exact=True).fill("reader-0123456789")
        page.get_by_role("button", name="Open").click()
        expect(page.locator('[data-path="/v2/models/add_sub/infer"]')).to_be_visible()
