"""The same models in every format: built, served, and asked by the example's own client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.server_process import ServerProcess
from tests.examples.loading import EXAMPLES, import_path, load_example

FOLDER = EXAMPLES / "formats"
build = load_example("formats/build")
three_models = load_example("formats/three_models")


@pytest.mark.e2e
@pytest.mark.timeout(600)  # a compiler, on a busy machine
@pytest.mark.parametrize("package", sorted(set(build.FORMATS.values())))
def test_formats_answer_as_numpy_does(package: str, tmp_path: Path) -> None:
    """Those of one package share a server. Built by the command: a compiler sets up a great deal."""
    names = [name for name, needed in build.FORMATS.items() if needed == package]
    wanted = [word for name in names for word in ("--format", name)]
    made = subprocess.run(
        [sys.executable, str(FOLDER / "build.py"), str(tmp_path), *wanted], capture_output=True, text=True
    )
    if "left out" in made.stderr:
        pytest.skip(made.stderr.splitlines()[-1])
    assert made.returncode == 0, made.stderr
    models = dict(line.split(": ") for line in made.stdout.splitlines())
    assert set(models) >= set(names)
    with ServerProcess(repository=tmp_path) as server:
        done = subprocess.run(
            [sys.executable, str(FOLDER / "ask.py"), "-u", server.addresses["http"]],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    for name in names:
        answered = ", ".join(model.removeprefix(f"{name}_") for model in models[name].split(", "))
        assert f"{name}: {answered} as expected" in done.stdout


def test_a_format_whose_package_is_missing_is_left_out_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "onnx_format", raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with import_path(FOLDER):
        assert build.main([str(tmp_path), "--format", "onnx", "--format", "python"]) == 1
    found = capsys.readouterr()
    assert "python: python_add_sub, python_text, python_image" in found.out
    assert "onnx: left out, because it needs: pip install onnx" in found.err


@pytest.mark.parametrize("model", ["add_sub", "text", "image", "forest"])
def test_samples_and_answers_have_a_row_for_each(model: str) -> None:
    inputs = three_models.sample(model, 4)
    for array in (*inputs.values(), *three_models.ANSWERS[model](inputs).values()):
        assert array.shape[0] == 4


def test_the_scores_of_an_image_are_probabilities() -> None:
    scores = three_models.image(three_models.sample("image", 3))["SCORES"]
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
    assert not np.allclose(scores[0], scores[1])
