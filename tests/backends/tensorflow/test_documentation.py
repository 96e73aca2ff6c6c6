"""The model of the documentation's page runs as it stands there, and its tables of options are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import backends.tensorflow.options as options
from tests.backends.conformance.serving import model_of, serving

PAGE = (Path(__file__).parents[3] / "docs" / "backends" / "tensorflow.md").read_text()


def section(heading: str) -> str:
    (found,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


async def test_the_model_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without its configuration."""
    program, config = re.findall(r"^```\w*\n(.*?)^```$", section("A model that works as it stands"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "the page", "exec"), {})  # a process of its own would import the library once more
    models = tmp_path / "models"
    features = np.random.default_rng(0).random((3, 16), dtype=np.float32)
    answers = []
    for text in (config, ""):
        (models / "animals" / "config.pbtxt").write_text(text)
        async with serving(models, load=("animals",)) as core:
            answers.append(await model_of(core, "animals").infer({"FEATURES": features}))
    written, completed = answers
    np.testing.assert_allclose(written["SCORES"].sum(axis=1), 1, rtol=1e-5)
    labels = [[(b"cat", b"dog", b"bird")[best]] for best in written["SCORES"].argmax(axis=1)]
    assert written["LABEL"].tolist() == completed["LABEL"].tolist() == labels
    assert written["SCORES"].tolist() == completed["SCORES"].tolist()


def test_every_parameter_is_on_the_page_and_none_else() -> None:
    source = Path(options.__file__).read_text()
    known = set(re.findall(r'(?:integer|parameter)\("([A-Z_]+)"', source))
    assert set(re.findall(r"^\| `([A-Z_]+)`", section("Options"), re.MULTILINE)) == known
    assert len(known) == 7


def test_every_setting_is_on_the_page() -> None:
    source = Path(options.__file__).read_text()
    known = {*re.findall(r'settings\.get\("([a-z-]+)"', source), "default-max-batch-size"}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", section("Options"), re.MULTILINE)) - {"parameters"} == known
