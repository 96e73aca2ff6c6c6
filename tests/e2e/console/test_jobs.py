"""The console's page of jobs in a real browser: those of the caller alone, cancelled, deleted, their results saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.console.conftest import FLAGS, opened
from tests.e2e.console.repository import HOSTILE, build
from tests.e2e.console.test_page import shoot
from tests.e2e.job_client import JobClient
from tests.e2e.pages import expect, violations
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

KEYS = """
[keys.ann]
key = "ann-0123456789abcdef"
allow = ["inference", "metadata", "metrics"]
[keys.bob]
key = "bob-0123456789abcdef"
allow = ["inference"]
[keys.watcher]
key = "watcher-0123456789abcdef"
allow = ["metrics"]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    build(tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def server(models: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(*FLAGS, f"--jobs-store={tmp_path / 'jobs'}", repository=models) as server:
        yield server


def listed(count: int, model: str = "texts", **more: Any) -> list[dict[str, Any]]:
    kind = {"datatype": "BYTES", "data": ["a"]} if model == "texts" else {"datatype": "FP32", "data": [1.0]}
    inputs = [{"name": "IN", "shape": [1], **kind}]
    return [{"model_name": model, "inputs": inputs, **more} for _ in range(count)]


def row(page: Any, job: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=job))


def test_jobs_are_listed_cancelled_and_deleted(page: Any, server: ServerProcess, tmp_path: Path) -> None:
    client = JobClient(server.addresses["http"])
    done, failing = client.submit(listed(3)), client.submit([{**listed(1)[0], "inputs": []}])
    waiting = client.submit(listed(2, "waiting"))
    client.ended(done)
    client.ended(failing)
    opened(page, server, "jobs")
    expect(row(page, done)).to_contain_text("3 succeeded of 3")
    expect(row(page, failing)).to_contain_text("failed")
    expect(row(page, failing)).to_contain_text("expected 1 inputs but got 0")
    expect(row(page, waiting)).to_contain_text("running")
    shoot(page, "console-jobs")
    made = client.call("POST", "/v2/jobs", {"requests": listed(1), "metadata": {"note": HOSTILE}})
    expect(row(page, made.json["id"])).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []

    with page.expect_download() as saved:
        page.get_by_role("link", name=f"Result of {done}").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["succeeded"] * 3

    page.get_by_role("combobox", name="State").select_option("running")
    expect(row(page, done)).to_have_count(0)
    page.get_by_role("button", name=f"Cancel {waiting}").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text=f"Job {waiting} is cancelling.")).to_be_visible()
    (tmp_path / "go").touch()
    page.get_by_role("combobox", name="State").select_option("any")
    expect(row(page, waiting)).to_contain_text("cancelled")
    page.get_by_label("Model is").fill("waiting")
    with page.expect_response("**/v2/jobs?*"):
        pass  # with which the page is drawn anew, and what was typed stays
    expect(page.get_by_label("Model is")).to_have_value("waiting")
    page.get_by_label("Model is").press("Enter")
    expect(row(page, done)).to_have_count(0)
    page.get_by_role("button", name=f"Delete {waiting}", exact=True).click()
    page.get_by_role("button", name=f"Really delete {waiting}").click()
    expect(page.get_by_role("status").filter(has_text="is forgotten")).to_be_visible()
    expect(row(page, waiting)).to_have_count(0)
    assert client.call("GET", f"/v2/jobs/{waiting}").status == 404

    opened(page, server)
    heading = page.get_by_role("heading", name="Jobs by state")
    expect(heading).to_be_visible()
    expect(page.locator("h2:has-text('Jobs by state') + dl div").filter(has_text="succeeded")).to_contain_text("2")
    heading.get_by_role("link").press("Enter")
    expect(page.locator("h1:focus")).to_have_text("Jobs")


def test_rows_of_files_say_where_their_results_are(page: Any, models: Path, tmp_path: Path) -> None:
    """There is nothing to save: these are files."""
    (tmp_path / "rows.jsonl").write_text('{"IN": ["a"]}\n' * 3)
    flags = (*FLAGS, f"--jobs-store={tmp_path / 'jobs'}", f"--jobs-allow-url={tmp_path}")
    with ServerProcess(*flags, repository=models) as server:
        client = JobClient(server.addresses["http"])
        given, taken = f"{tmp_path}/rows.jsonl", f"{tmp_path}/out"
        made = client.call(
            "POST", "/v2/jobs", {"model_name": "texts", "input": {"url": given}, "output": {"url": taken}}
        )
        job = made.json["id"]
        client.ended(job)
        opened(page, server, "jobs")
        expect(row(page, job)).to_contain_text(f"rows of {given}, results in {taken}")
        expect(row(page, job)).to_contain_text("3 succeeded of 3, 3 written")
        assert page.get_by_label(f"Result of {job}").count() == 0
        assert violations(page) == []


def test_many_jobs_come_in_pages(page: Any, server: ServerProcess) -> None:
    client = JobClient(server.addresses["http"])
    made = [client.submit(listed(1)) for _ in range(60)]
    opened(page, server, "jobs")
    expect(page.locator("caption")).to_have_text("50 jobs of callers without a key, the newest first, page 1")
    page.get_by_role("button", name="Older").click()
    expect(page.locator("caption")).to_have_text("10 jobs of callers without a key, the newest first, page 2")
    expect(row(page, made[0])).to_be_visible()
    page.get_by_role("button", name="Newer").click()
    expect(row(page, made[-1])).to_be_visible()


def test_a_key_sees_its_own(page: Any, models: Path, tmp_path: Path) -> None:
    """And saves results though a link has no key; one that may not run models sees none."""
    (tmp_path / "keys.toml").write_text(KEYS)
    flags = (*FLAGS, f"--jobs-store={tmp_path / 'jobs'}", f"--auth-keys-file={tmp_path / 'keys.toml'}")
    with ServerProcess(*flags, repository=models) as server:
        ann, bob = (JobClient(server.addresses["http"], f"{name}-0123456789abcdef") for name in ("ann", "bob"))
        own, foreign = ann.submit(listed(2)), bob.submit(listed(1))
        ann.ended(own)
        opened(page, server, "jobs")
        page.get_by_label("Key", exact=True).fill("ann-0123456789abcdef")
        page.get_by_role("button", name="Open").click()
        expect(page.locator("caption")).to_have_text("1 job of key ann, the newest first, page 1")
        expect(row(page, own)).to_be_visible()
        assert foreign not in page.content()
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Result of {own}").click()
        assert saved.value.suggested_filename == f"{own}.result"
        assert len(Path(saved.value.path()).read_text().splitlines()) == 2
        assert violations(page) == []
        page.get_by_role("button", name="Change key").click()
        page.get_by_label("Key", exact=True).fill("watcher-0123456789abcdef")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_text("does not allow 'inference'")).to_be_visible()


def test_without_jobs_there_is_no_page_of_them(page: Any, console: ServerProcess) -> None:
    opened(page, console)
    expect(page.get_by_role("link", name="Requests")).to_be_visible()
    assert page.get_by_role("link", name="Jobs").count() == 0
    assert page.get_by_role("heading", name="Jobs by state").count() == 0
