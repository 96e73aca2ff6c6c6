"""Lines that an engine writes in its worker: their levels, and the requests that they belong to."""

from __future__ import annotations

import logging
import shutil
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.backends.engines.serving import serve

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_engine"
LOUD = """
import logging, os, sys
from next_token_engine import NextTokenEngine

log = logging.getLogger("loud")
log.addHandler(logging.StreamHandler(sys.stdout))
log.setLevel(logging.INFO)

class Loud(NextTokenEngine):
    def load(self, model):
        log.info("loading")
        return super().load(model)

    def submit(self, generation):
        log.error("submitted")
        print("printed")
        super().submit(generation)

    def step(self, wake):
        logging.getLogger("stepping").warning("step of %d", self.stats().running)
        return super().step(wake)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    info = site / "loud-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[trioton.engines]\nnext_token = loud_engine:Loud\n")
    shutil.copy(EXAMPLE / "next_token_engine.py", site)
    (site / "loud_engine.py").write_text(LOUD)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    shutil.copytree(EXAMPLE / "models" / "next", tmp_path / "m")
    return tmp_path / "m"


async def test_lines_of_one_request_have_its_id(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve(model) as served:
        assert await served.text("one two", request_id="first") == "three four five"
    found = {record.body: record for record in caplog.records if record.name == "trioton.model.m"}  # type: ignore[attr-defined]
    tags = {"model": "m", "version": "1", "instance": "m_0"}
    for text, level in (("submitted", logging.ERROR), ("printed", logging.INFO), ("step of 1", logging.WARNING)):
        assert found[text].levelno == level
        assert vars(found[text])["tags"] == {**tags, "request_id": "first"}
    assert vars(found["loading"])["tags"] == tags
    assert vars(found["submitted"])["logger_name"] == "loud"


async def test_a_step_of_several_has_none(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve(model) as served, trio.open_nursery() as nursery:
        for each in ("first", "second"):
            nursery.start_soon(partial(served.text, "one two", request_id=each))
    for record in caplog.records:
        if vars(record).get("body") == "step of 2":
            assert "request_id" not in vars(record)["tags"]
    submitted = [vars(record)["tags"] for record in caplog.records if vars(record).get("body") == "submitted"]
    assert sorted(tags["request_id"] for tags in submitted) == ["first", "second"]
