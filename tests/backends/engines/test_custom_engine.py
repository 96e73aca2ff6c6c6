"""The example of a stranger's engine: found as an installed package is, and imported in its worker only."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from backends.registry import ENGINES, BackendRegistry
from protocol.errors import InvalidArgument, ServerError
from tests.backends.engines.serving import serve

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_engine"
MODULE = "next_token_engine"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's model, its package installed as far as an entry point goes."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    site = tmp_path / "site"
    info = site / "trioton_next_token_engine-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"][ENGINES].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{ENGINES}]", *lines, ""]))
    shutil.copy(EXAMPLE / f"{MODULE}.py", site)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    shutil.copytree(EXAMPLE / "models" / "next", tmp_path / "m")
    return tmp_path / "m"


async def test_the_example_generates(model: Path) -> None:
    assert "next_token" in BackendRegistry().names
    async with serve(model) as served:
        assert await served.text("one two") == "three four five"
        assert await served.text("one", max_tokens=2, stream=True) == "two three"
        assert await served.text("one", stop_token_ids=[4]) == "two three"
        with pytest.raises(InvalidArgument, match="model 'm': nothing comes behind token 0"):
            await served.text("unknown")
        with pytest.raises(InvalidArgument, match="top_p is not supported by engine 'next_token'"):
            await served.text("one", top_p=0.5)
        await served.wait_free()
    assert MODULE not in sys.modules


async def test_an_engine_whose_module_is_missing_says_so(model: Path) -> None:
    (model.parent / "site" / f"{MODULE}.py").unlink()
    with pytest.raises(ServerError, match=f"No module named '{MODULE}'"):
        async with serve(model):
            pass


def test_the_example_fits_a_page() -> None:
    assert len((EXAMPLE / f"{MODULE}.py").read_text().splitlines()) <= 80
