"""Signed links to results of jobs, on a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.e2e.job_client import JobClient, slow_request
from tests.e2e.repository import copy_python_model
from tests.e2e.server_process import ServerProcess, eventually

KEYS = """
[keys.ann]
key = "ann-0123456789abcdef"
allow = ["all"]
[keys.bob]
key = "bob-0123456789abcdef"
allow = ["all"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links")
    copy_python_model("slow", folder / "models")
    (folder / "keys.toml").write_text(KEYS)
    return folder


def serve(folder: Path) -> ServerProcess:
    flags = (f"--jobs-store={folder / 'jobs'}", f"--auth-keys-file={folder / 'keys.toml'}")
    return ServerProcess(*flags, repository=folder / "models")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serve(folder) as server:
        yield server.addresses["http"]


@pytest.fixture
def ann(address: str) -> JobClient:
    return JobClient(address, "ann-0123456789abcdef")


@pytest.fixture
def anybody(address: str) -> JobClient:
    return JobClient(address)


def ended(ann: JobClient, values: int = 2) -> str:
    job_id = ann.submit([slow_request(value, 0.0) for value in range(values)])
    ann.ended(job_id)
    return job_id


def link(ann: JobClient, job_id: str, **wanted: Any) -> str:
    answer = ann.call("POST", f"/v2/jobs/{job_id}/result/link", wanted or None)
    assert answer.status == 200, answer.body
    return str(answer.json["url"])


def test_a_link_is_read_without_a_key(ann: JobClient, anybody: JobClient) -> None:
    job_id = ended(ann)
    whole, one = anybody.call("GET", link(ann, job_id)), anybody.call("GET", link(ann, job_id, item=1))
    assert whole.body == ann.call("GET", f"/v2/jobs/{job_id}/result").body
    assert one.body == ann.call("GET", f"/v2/jobs/{job_id}/result?item=1").body
    assert one.json["outputs"][0]["data"] == [1]


def test_it_leads_to_that_result_and_nothing_else(ann: JobClient, anybody: JobClient) -> None:
    job_id, other = ended(ann), ended(ann)
    url = link(ann, job_id, item=0)
    changed = [
        url.replace(job_id, other),
        url.replace("item=0", "item=1"),
        url.replace("item=0&", ""),
        re.sub(r"expires=\d", "expires=9", url),
        re.sub("signature=.*", "signature=", url),
        re.sub("signature=.*", "signature=%ff", url),
        re.sub("&?signature=.*", "", url),
        re.sub("expires=[0-9]*&", "", url),
        f"/v2/jobs/{job_id}/result/linked",
        f"/v2/jobs/job_none/result/linked?{urlsplit(url).query}",
    ]
    assert {each: anybody.call("GET", each).status for each in changed} == dict.fromkeys(changed, 403)
    for path in ("", "/result", "/result?item=0", "/events"):
        assert anybody.call("GET", f"/v2/jobs/{job_id}{path}").status == 401
    assert anybody.call("POST", f"/v2/jobs/{job_id}/result/link").status == 401


def test_who_may_not_read_a_result_makes_no_link(address: str, ann: JobClient) -> None:
    bob = JobClient(address, "bob-0123456789abcdef")
    assert bob.call("POST", f"/v2/jobs/{ended(ann)}/result/link").status == 404


@pytest.mark.parametrize(
    "wanted", [{"expires_in": 0}, {"expires_in": 604_801}, {"item": 2}, {"item": -1}, {"item": "a"}]
)
def test_links_that_are_refused(ann: JobClient, wanted: dict[str, Any]) -> None:
    assert ann.call("POST", f"/v2/jobs/{ended(ann)}/result/link", wanted).status == 400


def test_a_link_expires(ann: JobClient, anybody: JobClient) -> None:
    url = link(ann, ended(ann), expires_in=1)
    assert eventually(lambda: anybody.call("GET", url).status == 410)
    assert "has expired" in anybody.call("GET", url).json["error"]


def test_a_job_that_has_not_ended_and_one_that_is_removed(ann: JobClient, anybody: JobClient) -> None:
    job_id = ann.submit([slow_request(1, 600.0)])
    url = link(ann, job_id)
    assert anybody.call("GET", url).status == 409
    assert ann.call("DELETE", f"/v2/jobs/{job_id}").status == 200
    assert anybody.call("GET", url).status == 404


def test_links_outlive_the_server(tmp_path: Path) -> None:
    copy_python_model("slow", tmp_path / "models")
    (tmp_path / "keys.toml").write_text(KEYS)
    with serve(tmp_path) as server:
        ann = JobClient(server.addresses["http"], "ann-0123456789abcdef")
        url = link(ann, ended(ann, 1))
        expires = int(parse_qs(urlsplit(url).query)["expires"][0])
        assert expires > 0
    with serve(tmp_path) as server:
        assert JobClient(server.addresses["http"]).call("GET", url).lines[0]["state"] == "succeeded"
