"""The model of the documentation's page runs as it stands there, and its tables are the code's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.backends.conformance.serving import model_of, serving

pytest.importorskip("treelite")
xgboost = pytest.importorskip("xgboost")

import backends.fil.options as options  # noqa: E402
from backends.fil.model_file import KINDS  # noqa: E402

PAGE = (Path(__file__).parents[3] / "docs" / "backends" / "fil.md").read_text()


def section(heading: str) -> str:
    (found,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("is_alone", [False, True])
async def test_the_model_of_the_page(is_alone: bool, tmp_path: Path) -> None:
    """With its configuration, and with no more than the backend's name."""
    text = section("A model that works as it stands")
    program, config = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "make.py").write_text(program)
    await trio.run_process([sys.executable, "make.py"], cwd=tmp_path, capture_stderr=True)
    folder = tmp_path / "models" / "large"
    (folder / "config.pbtxt").write_text('backend: "fil"' if is_alone else config)
    rows = np.array([[0.1, 0.1, 0.2, 0.1], [0.9, 0.8, 0.9, 0.7]], np.float32)
    positive = xgboost.Booster(model_file=folder / "1" / "xgboost.json").predict(xgboost.DMatrix(rows))
    async with serving(tmp_path / "models", load=("large",)) as core:
        found = (await model_of(core, "large").infer({"input__0": rows}))["output__0"]
    if is_alone:
        assert found.tolist() == [0.0, 1.0]
    else:
        np.testing.assert_allclose(found, np.stack([1 - positive, positive], axis=1), rtol=1e-5, atol=1e-6)


def test_every_parameter_is_on_the_page_and_none_else() -> None:
    source = Path(options.__file__).read_text()
    read = set(re.findall(r'(?:boolean|parameter)\("(\w+)"\)', source)) | set(options.HINTS)
    named = re.findall(r"^\| (`.*?`) \|", section("Options"), re.MULTILINE)
    on_page = {name for cell in named for name in re.findall(r"`(\w+)`", cell)} - {"parameters"}
    assert on_page | {"output_class"} == read
    assert "`output_class`" in section("Options")


def test_every_kind_of_file_is_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|", section("The model's files"), re.MULTILINE)
    assert rows == [(kind.model_type, kind.filename) for kind in KINDS]
