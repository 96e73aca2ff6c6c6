"""The example of a stranger's backend: found as an installed package is, completed, loaded and run."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from backends.interface import Backend, ModelSource
from backends.registry import GROUP, BackendRegistry
from protocol.errors import InvalidArgument
from repository.layout import ModelDirectory
from repository.loader import read_config
from tests.backends.helpers import answer, infer, loaded, request_of, spec_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_backend"
MODEL = ModelDirectory("linear", EXAMPLE / "models" / "linear", EXAMPLE / "models")


@pytest.fixture
def backend_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Backend]]:
    """The example's class, found through the metadata that installing its `pyproject.toml` writes."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "trioton_linear_backend-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"][GROUP].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)
    yield BackendRegistry().find("linear", model="linear")
    sys.modules.pop("linear_backend", None)


async def test_the_examples_model_is_completed_and_runs(backend_class: type[Backend]) -> None:
    source = ModelSource(MODEL.name, 1, MODEL.path, read_config(MODEL))
    completed = await backend_class.complete_config(source)
    assert [(entry.name, entry.dims) for entry in completed.input] == [("X", (3,))]
    assert [(entry.name, entry.dims) for entry in completed.output] == [("Y", (2,))]
    x = np.array([[1, 2, 3]], np.float32)
    async with loaded(backend_class, spec_of(ModelSource(MODEL.name, 1, MODEL.path, completed))) as backend:
        first, second = await infer(backend, request_of(("X", x)), request_of(("X", 0 * x)))
    assert answer(first)["Y"].tolist() == [[31.5, 301.5]]  # as the example's README says
    assert answer(second)["Y"].tolist() == [[0.5, -0.5]]


async def test_the_examples_errors_name_model_and_file(backend_class: type[Backend], tmp_path: Path) -> None:
    source = ModelSource("linear", 1, tmp_path, read_config(MODEL))
    with pytest.raises(InvalidArgument, match=r"model 'linear': cannot read '.*weights\.json'"):
        await backend_class.complete_config(source)


def test_the_example_stays_short_enough_to_copy() -> None:
    assert len((EXAMPLE / "linear_backend.py").read_text().splitlines()) <= 40
