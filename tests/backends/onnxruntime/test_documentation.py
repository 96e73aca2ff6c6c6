"""The model of the documentation's page runs as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import trio

from tests.backends.conformance.serving import model_of, serving

PAGE = (Path(__file__).parents[3] / "docs" / "backends" / "onnxruntime.md").read_text()


def section(heading: str) -> str:
    (found,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


async def test_the_model_of_the_page(tmp_path: Path) -> None:
    program, config = re.findall(r"^```\w*\n(.*?)^```$", section("A model that works as it stands"), re.M | re.S)
    (tmp_path / "make.py").write_text(program)
    await trio.run_process([sys.executable, "make.py"], cwd=tmp_path, capture_stderr=True)
    (tmp_path / "models" / "add_sub" / "config.pbtxt").write_text(config)
    x, y = np.arange(16, dtype=np.float32)[None], np.ones((1, 16), np.float32)
    async with serving(tmp_path / "models", load=("add_sub",)) as core:
        found = await model_of(core, "add_sub").infer({"INPUT0": x, "INPUT1": y})
    assert found["SUM"].tolist() == (x + y).tolist()
    assert found["DIFFERENCE"].tolist() == (x - y).tolist()
