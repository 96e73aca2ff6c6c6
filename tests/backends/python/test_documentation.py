"""The models of the documentation's page run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from actors.core.server_core import ControlMode, ServerCore
from tests.backends.python.pipelines import (
    CONFIG,
    COUNT_DOWN,
    DECOUPLED,
    add_model,
    ask,
    executing,
    serving,
)

PAGE = Path(__file__).parents[3] / "docs" / "backends" / "python.md"
DOUBLE = executing("return [answer(given(r) * 2) for r in requests]")


def models_of(heading: str) -> list[str]:
    """The Python blocks of one section."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def add(repository: Path, name: str, text: str) -> None:
    """As it stands, with nothing before it."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(text)
    (repository / name / "config.pbtxt").write_text(CONFIG)


async def test_the_three_ways_to_call_a_model(tmp_path: Path) -> None:
    for name, text in zip(("exec", "async_exec", "stream"), models_of("Calling other models (BLS)"), strict=True):
        add(tmp_path, name, text)
    async with serving(tmp_path, {"double": DOUBLE, "count": (executing(COUNT_DOWN), DECOUPLED)}) as core:
        assert (await ask(core, "exec", 1.0, 2.0)).tolist() == [2.0, 4.0]
        assert (await ask(core, "async_exec", 1.0, 2.0)).tolist() == [2.0, 4.0]
        assert (await ask(core, "stream", 3.0)).tolist() == [3.0, 2.0, 1.0]


async def test_the_model_that_loads_another(tmp_path: Path) -> None:
    add_model(tmp_path, "double", DOUBLE)
    (text,) = models_of("Loading other models")
    add(tmp_path, "loads", text)
    async with serving(tmp_path, {}, control_mode=ControlMode.EXPLICIT) as core:
        await core.load_model("loads")
        assert (await ask(core, "loads", 4.0)).tolist() == [8.0]


def shown(core: ServerCore) -> dict[str, float]:
    return {family.name: value.value for family in core.custom_metrics.values() for value in family.values}


async def test_the_model_with_metrics(tmp_path: Path) -> None:
    (text,) = models_of("Metrics of a model's own")
    add(tmp_path, "counting", text)
    async with serving(tmp_path, {}) as core:
        assert (await ask(core, "counting", 1.0, 2.0)).tolist() == [2.0, 4.0]
        await ask(core, "counting", *np.zeros(5))
        found = shown(core)
        assert found.pop("work_seconds") > 0
        assert found == {"elements_seen": 7, "last_batch_size": 1}
