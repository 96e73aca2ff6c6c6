"""What many models cost: the repositories, a small run on a real server, and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.memory import Memory
from tests.bench.peers import our_server
from tests.bench.repository_scale import PAGES, Scale, measure, report
from tests.bench.scaled_models import add_models


def scale(models: int, kib: int) -> Scale:
    memory = Memory(models, kib * 1024, kib * 1024)
    pages = {"index": models / 1000}
    return Scale(models, 1.0, 1.0, memory, memory, threads=models, descriptors=5, poll=0.001 * models**2, pages=pages)


def test_the_report_tells_what_grows_and_by_how_much_for_each_model() -> None:
    text = report("ours", [scale(10, 1000), scale(20, 1200)])
    rows = {cells[0]: cells[1:] for cells in ([c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines())}
    assert rows["threads of the server"] == ["10", "20", "1.00"]
    assert rows["poll, ms of the processor"][2] == "2.00"
    assert rows["index, ms of the processor"] == ["10.00", "20.00", "1.00"]
    assert rows["OpenAPI, ms of the processor"] == ["-", "-", "-"]
    assert rows["RSS of the server, KiB a model"] == ["-", "20", ""]


@pytest.mark.slow
def test_a_server_with_some_models_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.repository_scale.POLL_SECONDS", 1)
    found = measure(our_server(), 4, ["onnx", "python"], 1, tmp_path)
    assert found.models == 4
    assert {*found.pages} == {*PAGES}
    assert found.all.processes >= 3  # two workers
    assert found.server.resident < found.all.resident


def test_kinds_take_turns(tmp_path: Path) -> None:
    assert add_models(tmp_path, 3, ["onnx", "python"]) == ["onnx_00000", "python_00001", "onnx_00002"]
    assert (tmp_path / "python_00001" / "1" / "model.py").is_file()
    assert (tmp_path / "onnx_00002" / "1" / "model.onnx").stat().st_size < 3000
