"""Files of an analysis, from a simulated search."""

from __future__ import annotations

import csv
import io
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from repository.layout import ModelDirectory
from repository.model_config import InstanceKind, ModelConfig, ModelInstanceGroup
from repository.pbtxt import parse_pbtxt
from tests.trioton.analyze.search.simulation import random_surface, run, space_of
from tests.trioton.report.test_page import structure
from trioton.analyze.results.configs import config_texts, difference, write_config, write_configs
from trioton.analyze.results.findings import (
    Findings,
    candidate_findings,
    comparisons,
    name_of,
    read_json,
    write_json,
)
from trioton.analyze.results.page import as_page
from trioton.analyze.results.texts import as_csv, as_text
from trioton.analyze.search.aim import Aim, Objective
from trioton.analyze.search.plan import Plan
from trioton.analyze.search.verdict import judge
from trioton.flags.fields import UsageError

BEFORE = 'backend: "onnxruntime"\nmax_batch_size: 8\n'


def findings(seconds: float = 200.0, objective: Objective = Objective.THROUGHPUT) -> Findings:
    surface = random_surface(1)
    space = space_of(surface)
    plan = Plan(space, Aim(objective, surface.bound), seconds)
    run(surface, space, plan)
    verdict = judge(plan)
    return Findings(
        model="<b>m</b>",
        repository="/models",
        objective=objective.value,
        bound="p99:20ms",
        fixed_rate=plan.rate,
        proposed=name_of(verdict.proposed),
        is_proven=verdict.is_proven,
        why=verdict.why,
        equals=tuple(map(name_of, verdict.equals)),
        comparisons=comparisons(verdict),
        contest_rate=plan.contest_rate,
        candidates=candidate_findings(plan, space.settings),
        sorted_out=len(space.settings) - len(plan.records),
        left_out={"cache": "there is none"},
        notes=("the data is made up",),
        config_before=BEFORE,
        config_after=BEFORE + "instance_group { count: 2 }\n",
        command="trioton analyze models --model m",
        seed=0,
        budget_seconds=seconds,
        spent_seconds=plan.spent,
        environment={"cores": "2"},
        service_times_ms={"": {1: 2.5, 8: 4.0}},
    )


@pytest.fixture(scope="module")
def found() -> Findings:
    return findings()


def test_json_reads_back(found: Findings, tmp_path: Path) -> None:
    write_json(found, tmp_path / "result.json")
    assert read_json(tmp_path / "result.json") == found


def test_csv_has_every_measurement(found: Findings) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert len(rows) == sum(len(each.measured) for each in found.candidates)
    assert {row["candidate"] for row in rows} == {each.name for each in found.candidates}
    assert all(float(row["offered_rate"]) > 0 for row in rows)


def test_text_ends_with_the_proposal(found: Findings) -> None:
    text = as_text(found)
    assert f"proposed: {found.proposed}" in text
    assert "not tried: cache: there is none" in text


@pytest.mark.parametrize("objective", Objective)
def test_the_page_is_well_formed(objective: Objective) -> None:
    html = as_page(findings(60.0, objective), 20.0).html()
    structure(html)
    assert "<b>m</b>" not in html
    assert html.count('role="img"') == 3
    for text in ("Rate and memory", "trioton analyze models", "instance_group", "the data is made up", "seed"):
        assert text in html


def test_a_search_without_time_has_a_page() -> None:
    structure(as_page(findings(0.5), None).html())


# Configurations


def directory(tmp_path: Path, text: str | None = BEFORE) -> ModelDirectory:
    path = tmp_path / "m"
    (path / "1").mkdir(parents=True)
    (path / "1" / "model.onnx").touch()
    if text is not None:
        (path / "config.pbtxt").write_text(text)
    return ModelDirectory("m", path, tmp_path)


def changed(config: ModelConfig) -> ModelConfig:
    return msgspec.structs.replace(config, instance_group=(ModelInstanceGroup(kind=InstanceKind.CPU, count=3),))


def test_a_change_of_a_file(tmp_path: Path) -> None:
    before, after = config_texts(directory(tmp_path), ModelConfig(), changed)
    assert before == BEFORE
    config = parse_pbtxt(after, source="test")
    assert config.instance_group[0].count == 3
    assert config.max_batch_size == 8


def test_what_changes_nothing_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    text = f"# a comment\n{BEFORE}"
    assert config_texts(directory(tmp_path, text), ModelConfig(), lambda config: config) == (text, text)


def test_a_model_without_a_file_gets_one(tmp_path: Path) -> None:
    completed = ModelConfig(name="m", backend="onnxruntime", platform="onnxruntime_onnx", max_batch_size=4)
    before, after = config_texts(directory(tmp_path, None), completed, changed)
    assert before == ""
    assert parse_pbtxt(after, source="test").instance_group[0].count == 3


def test_the_difference_is_a_patch(found: Findings, tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(found.config_before)
    lines = difference(found, path)
    subprocess.run(["patch", "-p0", str(path)], input="\n".join([*lines, ""]), text=True, check=True, cwd=tmp_path)
    assert path.read_text() == found.config_after
    assert difference(found, path) == []


def test_a_file_that_has_changed_meanwhile_is_left_alone(found: Findings, tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text("something else\n")
    with pytest.raises(UsageError, match="no longer what was analyzed"):
        difference(found, path)


def test_a_file_is_written_as_a_whole_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text("old")
    path.chmod(0o640)
    write_config("new", path)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["config.pbtxt"]


def test_configurations_of_candidates(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs", {"default": "a", "batch=8,../x": "b"})
    write_configs(tmp_path / "configs", {"default": "a", "batch=8,../x": "b"})
    assert sorted(each.name for each in (tmp_path / "configs").iterdir()) == [
        "00-default.pbtxt",
        "01-batch=8,.._x.pbtxt",
    ]
