"""`trioton convert`, by its command, on ONNX models: honest candidates pass, mutants do not."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from repository.pbtxt import parse_pbtxt
from tests.trioton.convert import onnx_models
from trioton.cli import main
from trioton.convert.command import CANNOT_RUN, NONE_KEEPS_THE_BOUND, NONE_PASSED, NOT_ALL_PASSED
from trioton.convert.conversion import Conversion, Wanted
from trioton.convert.plan import plan_of
from trioton.convert.processes import Limits, Processes, StepFailed
from trioton.convert.report import as_text
from trioton.convert.sources import find_source

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a model and real data."""
    monkeypatch.chdir(tmp_path)
    onnx_models.save(onnx_models.classifier(), tmp_path / "classifier.onnx")
    np.savez(tmp_path / "rows.npz", x=onnx_models.samples())
    return tmp_path


def convert(*words: str | Path, source: str = "classifier.onnx", load_secs: float = 0) -> int:
    return main(["convert", source, "models", "--samples", "rows.npz", f"--load-secs={load_secs}", *map(str, words)])


def report(name: str = "classifier") -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(Path(f"{name}.convert", "report.json").read_text())
    return {**whole, "outcomes": {outcome["name"]: outcome for outcome in whole["outcomes"]}}


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_model_is_written_with_all_that_belongs_to_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("--to=as-is") == 0
    assert files(place / "models") == [
        "classifier/1/model.onnx",
        "classifier/1/provenance.json",
        "classifier/config.pbtxt",
        "classifier/warmup/input_0",
    ]
    config = parse_pbtxt(Path("models/classifier/config.pbtxt").read_text(), source="config.pbtxt")
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 8)
    assert [(each.name, each.dims) for each in config.input] == [("x", (16,))]
    assert [(each.name, each.dims) for each in config.output] == [("scores", (6,)), ("features", (6,))]
    assert [each.batch_size for each in config.model_warmup] == [1, 8]
    provenance = json.loads(Path("models/classifier/1/provenance.json").read_text())
    assert provenance["reference"] == "float64"
    assert provenance["is_proven"] is True
    assert 0 < provenance["measured"]["error"] < 1e-6
    assert provenance["versions"].keys() >= {"onnxruntime", "numpy", "python"}
    assert len(provenance["source"]["sha256"]) == 64
    assert "passed" in capsys.readouterr().out
    assert "Conversion of classifier" in Path("classifier.convert/report.html").read_text()
    assert main(["doctor", "models"]) == 0


def test_each_step_leaves_its_log_and_a_script(place: Path) -> None:
    assert convert("--to=as-is") == 0
    steps = sorted(path.name for path in Path("classifier.convert/steps").iterdir())
    assert steps == ["01-describe", "02-reference", "03-ask-as-is"]
    for step in steps:
        assert {"arguments.json", "log.txt", "result.json", "run.sh"} == {
            path.name for path in Path("classifier.convert/steps", step).iterdir()
        }


MUTANTS: dict[str, Callable[[], onnx.ModelProto]] = {
    "a layer times 1.01": lambda: onnx_models.classifier(scale=1.01),
    "outputs swapped": onnx_models.outputs_swapped,
    "batch axis frozen to 1": lambda: onnx_models.classifier(batch=1),
    "batch axis frozen to 8": lambda: onnx_models.classifier(batch=8),
    "batch axis frozen within": lambda: onnx_models.classifier(shape=(1, 8)),
    "batch normalisation in training mode": onnx_models.in_training_mode,
    "noise of training left on": onnx_models.with_noise,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_not_written(place: Path, mutant: str, capsys: pytest.CaptureFixture[str]) -> None:
    onnx_models.save(MUTANTS[mutant](), place / "mutant.onnx")
    honest = onnx_models.save(onnx_models.classifier(), place / "honest.onnx")
    assert convert("--to=as-is", "--candidate=mutant=mutant.onnx", f"--candidate=honest={honest}") == 0
    outcomes = report()["outcomes"]
    assert outcomes["honest"]["is_passed"]
    assert not outcomes["mutant"]["is_passed"]
    assert outcomes["mutant"]["failures"]
    text = capsys.readouterr().out
    assert "FAILED" in text
    assert "NOT PASSED, for the reasons above: mutant\n" in text


def test_where_none_passes_nothing_is_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "check.py").write_text(
        "def check(inputs, outputs, reference):\n    assert outputs['scores'].max() > 1e9\n"
    )
    assert convert("--to=as-is", "--check=check.py") == NONE_PASSED
    assert not Path("models").exists()
    assert "your check: AssertionError" in capsys.readouterr().out


def test_all_must_pass_where_that_is_asked_for(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx_models.save(onnx_models.outputs_swapped(), place / "mutant.onnx")
    assert convert("--to=as-is", "--candidate=mutant=mutant.onnx", "--all-must-pass") == NOT_ALL_PASSED
    assert not Path("models").exists()
    assert report()["not_passed"] == ["mutant"]
    assert "nothing is written, for not all candidates have passed" in capsys.readouterr().err
    assert convert("--to=as-is", "--all-must-pass") == 0


def test_a_source_that_changes_meanwhile_is_not_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "check.py").write_text(
        f"def check(inputs, outputs, reference):\n    open({str(place / 'classifier.onnx')!r}, 'ab').write(b' ')\n"
    )
    assert convert("--to=as-is", "--check=check.py") == CANNOT_RUN
    assert not Path("models").exists()
    error = capsys.readouterr().err
    assert "changed during the conversion" in error
    assert str(place / "classifier.onnx") in error


class FailingUnderLoad(Processes):
    def run(self, program: str, arguments: Mapping[str, Any], name: str = "") -> dict[str, Any]:
        if name == "load-fragile":
            raise StepFailed("load-fragile: ended by SIGSEGV")
        return super().run(program, arguments, name)


def test_a_candidate_that_fails_under_load_leaves_the_others_in_the_choice(place: Path) -> None:
    source = find_source("classifier.onnx")
    plan = plan_of(source, ["as-is"], [("fragile", str(place / "classifier.onnx"))])
    wanted = Wanted("classifier", source, plan, (), [place / "rows.npz"], None, None, {}, None, (1,), 0.1, "")
    work = place / "work"
    work.mkdir()
    found = Conversion(wanted, work, FailingUnderLoad(work, Limits(60, 1 << 32)), lambda text: None).run()
    assert (found.chosen, found.not_passed) == ("as-is", ("fragile",))
    assert "ended by SIGSEGV" in as_text(found)


def test_a_check_of_the_users_own_that_passes(place: Path) -> None:
    (place / "check.py").write_text(
        "def check(inputs, outputs, reference):\n    return len(inputs['x']) == len(outputs['scores'])\n"
    )
    assert convert("--to=as-is", "--check=check.py") == 0


def test_int8_with_calibration_passes_and_without_does_not(place: Path) -> None:
    source = place / "classifier.onnx"
    onnx_models.quantised(source, place / "honest.onnx", onnx_models.samples())
    onnx_models.quantised(source, place / "blind.onnx", 1e-3 * onnx_models.samples(20))
    words = ("--candidate=honest:int8=honest.onnx", "--candidate=blind:int8=blind.onnx", "--top1=0.9")
    assert convert("--to=as-is", *words) == 0
    found = report()
    assert found["outcomes"]["honest"]["is_passed"], found["outcomes"]["honest"]["failures"]
    assert not found["outcomes"]["blind"]["is_passed"]
    assert found["chosen"] == "as-is"  # nothing was measured, so precision decides


def test_int8_made_here(place: Path) -> None:
    assert convert("--to=onnx-int8", "--to=onnx-int8-weights", "--top1=0.9") == 0
    outcomes = report()["outcomes"]
    assert outcomes["onnx-int8"]["is_passed"], outcomes["onnx-int8"]["failures"]
    assert outcomes["onnx-int8"]["measured"]["cosine"] > 0.99
    assert outcomes["onnx-int8-weights"]["is_passed"], outcomes["onnx-int8-weights"]["failures"]


@pytest.mark.skipif(importlib.util.find_spec("nncf") is None, reason="needs nncf")
def test_int8_of_openvino(place: Path) -> None:
    assert convert("--to=openvino-int8", "--top1=0.9") == 0
    outcome = report()["outcomes"]["openvino-int8"]
    assert outcome["measured"]["cosine"] > 0.99
    assert outcome["versions"].keys() >= {"nncf", "openvino"}


def test_what_is_not_installed_is_told_with_the_extra_that_brings_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("tensorrt is installed")
    assert convert("--to=as-is", "--to=tensorrt") == 1
    assert "pip install 'trioton[tensorrt]'" in capsys.readouterr().err


def test_the_optimised_form(place: Path) -> None:
    assert convert("--to=onnx-optimised") == 0
    assert report()["outcomes"]["onnx-optimised"]["measured"]["error"] < 1e-6


def test_int8_needs_real_data(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "classifier.onnx", "models", "--to=onnx-int8"]) == 1
    assert "is calibrated with real data: give some with --samples" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["broken.npz", "broken.json"])
def test_samples_are_read_before_the_first_step(place: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (place / name).write_text("broken")
    assert convert("--to=as-is", f"--samples={name}") == 1
    assert f"--samples: '{place / name}'" in capsys.readouterr().err
    assert not (place / "classifier.convert" / "steps").exists()


def test_random_data_proves_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "classifier.onnx", "models", "--to=as-is", "--load-secs=0"]) == 0
    assert report()["is_proven"] is False
    assert "UNPROVEN" in capsys.readouterr().out


def test_candidates_are_measured_and_chosen_under_a_bound(place: Path) -> None:
    words = ("--to=as-is", "--concurrency=1,2", "--latency=p99:10s")
    assert convert(*words, load_secs=0.1) == 0
    speed = report()["outcomes"]["as-is"]["speed"]
    assert [[load["concurrency"] for load in loads] for loads in speed["rounds"]] == [[1, 2], [1, 2]]
    assert all(load["rate"] > 0 for loads in speed["rounds"] for load in loads)
    assert convert("--to=as-is", "--concurrency=1", "--latency=p99:0.01us", "--force", load_secs=0.1) == (
        NONE_KEEPS_THE_BOUND
    )


def test_a_model_that_is_there_stays_unless_it_is_to_be_replaced(place: Path) -> None:
    assert convert("--to=as-is") == 0
    before = Path("models/classifier/1/provenance.json").read_text()
    assert convert("--to=as-is") == 1
    assert Path("models/classifier/1/provenance.json").read_text() == before
    assert convert("--to=as-is", "--max-batch-size=4", "--force") == 0
    assert "max_batch_size: 4" in Path("models/classifier/config.pbtxt").read_text()


def test_a_folder_of_somebody_else_is_not_emptied(place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "thesis.txt").touch()
    assert convert("--to=as-is", "--work=mine") == 1
    assert (place / "mine" / "thesis.txt").exists()


def test_a_source_that_cannot_be_read(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "classifier.onnx").write_bytes(b"nothing of the kind")
    assert convert("--to=as-is") == CANNOT_RUN
    error = capsys.readouterr().err
    assert "describe: " in error
    assert "log.txt" in error


def test_a_batch_whose_rows_affect_each_other_is_none(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx_models.save(onnx_models.in_training_mode(), place / "classifier.onnx")
    assert convert("--to=as-is") == CANNOT_RUN
    assert "the rows of a batch affect each other" in capsys.readouterr().err


def test_a_random_source_cannot_be_proven(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx_models.save(onnx_models.with_noise(), place / "classifier.onnx")
    assert convert("--to=as-is") == CANNOT_RUN
    assert "answers the same input differently each time" in capsys.readouterr().err
