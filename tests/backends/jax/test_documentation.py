"""The model of the documentation's page runs as it stands there, and its tables of options are the code's."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import trio

pytest.importorskip("jax")
pytest.importorskip("flatbuffers")

import jax
from jax import export

from backends.jax import options, process_settings
from tests.backends.conformance.serving import model_of, serving

PAGE = (Path(__file__).parents[3] / "docs" / "backends" / "jax.md").read_text()


def section(heading: str) -> str:
    (found,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def blocks(heading: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", section(heading), re.M | re.S)


@pytest.mark.parametrize("has_config", [True, False])
async def test_the_model_of_the_page(has_config: bool, tmp_path: Path) -> None:
    program, config = blocks("A model that works as it stands")
    (tmp_path / "make.py").write_text(program)
    await trio.run_process([sys.executable, "make.py"], cwd=tmp_path, capture_stderr=True)
    if has_config:
        (tmp_path / "models" / "add_sub" / "config.pbtxt").write_text(config)
    x, y = np.arange(16, dtype=np.float32)[None], np.ones((1, 16), np.float32)
    async with serving(tmp_path / "models", load=("add_sub",)) as core:
        found = await model_of(core, "add_sub").infer({"INPUT0": x, "INPUT1": y})
    assert found["SUM"].tolist() == (x + y).tolist()
    assert found["DIFFERENCE"].tolist() == (x - y).tolist()


async def test_the_weights_of_the_page(tmp_path: Path) -> None:
    class Model:
        def apply(self, weights: dict[str, jax.Array], image: jax.Array) -> jax.Array:
            return image @ weights["kernel"]

    (program,) = blocks("The model's files")
    kernel = np.arange(6, dtype=np.float32).reshape(3, 2)
    image = jax.ShapeDtypeStruct(export.symbolic_shape("rows, 3"), np.float32)
    names = {"jax": jax, "np": np, "export": export, "model": Model(), "weights": {"kernel": kernel}, "image": image}
    exec(program, names)
    path = tmp_path / "m" / "1" / "model.jax"
    path.parent.mkdir(parents=True)
    path.write_bytes(names["exported"].serialize())
    names["save_weights"](path.with_suffix(".npz"), names["weights"])
    rows = np.ones((2, 3), np.float32)
    async with serving(tmp_path) as core:
        found = await model_of(core).infer({"INPUT__0": rows})
    assert found["OUTPUT__0"].tolist() == (rows @ kernel).tolist()


def test_every_option_is_on_the_page_and_none_else() -> None:
    known = {value for name, value in vars(options).items() if name.isupper() and name == value}
    settings = set(re.findall(r'settings\.get\("([a-z-]+)"', inspect.getsource(process_settings)))
    assert len(known) == len(settings) == 4
    told = re.findall(r"^\| `([A-Za-z_-]+)` \|", section("Options"), re.MULTILINE)
    assert sorted(told) == sorted(known | settings | {"default-max-batch-size", "parameters"})
