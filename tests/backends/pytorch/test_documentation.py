"""The model of the documentation's page runs as it stands there, and its table of options is the code's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import trio

import backends.pytorch.options as options
from tests.backends.conformance.serving import model_of, serving

PAGE = (Path(__file__).parents[3] / "docs" / "backends" / "pytorch.md").read_text()


def blocks(heading: str) -> list[tuple[str, str]]:
    """Language and text of each piece of code of one section."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


async def test_the_model_of_the_page(tmp_path: Path) -> None:
    (_, program), (_, config) = blocks("A model that works as it stands")
    (tmp_path / "make.py").write_text(program)
    await trio.run_process([sys.executable, "make.py"], cwd=tmp_path, capture_stderr=True)
    (tmp_path / "models" / "add_sub" / "config.pbtxt").write_text(config)
    x, y = np.arange(16, dtype=np.float32)[None], np.ones((1, 16), np.float32)
    async with serving(tmp_path / "models", load=("add_sub",)) as core:
        found = await model_of(core, "add_sub").infer({"INPUT0": x, "INPUT1": y})
    assert found["SUM"].tolist() == (x + y).tolist()
    assert found["DIFFERENCE"].tolist() == (x - y).tolist()


def test_every_parameter_is_on_the_page_and_none_else() -> None:
    source = Path(options.__file__).read_text()
    read = set(re.findall(r'(?:boolean|count)\("([A-Z_]+)"\)', source)) | {options.AUTOCAST, options.COMPILE}
    (table,) = re.findall(r"^## Options\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([A-Z]{2,}_[A-Z_]+)`", table)) == read
