"""Models under the interpreter of another environment (EXECUTION_ENV_PATH)."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path

import msgspec
import numpy as np
import pytest

from backends.interface import ModelSource
from backends.python.environment import find_environment
from protocol.errors import Internal, InvalidArgument, Unsupported
from tests.backends.python.models import CONFIG, backend, executing, infer, output, parameters, request, running

ABOUT = executing("""
    import json
    about = [sys.prefix, os.environ["VIRTUAL_ENV"], os.environ["PATH"].split(":")[0]]
    return [answer(np.array([json.dumps(about)], dtype=object)) for _ in requests]
""")


def source_with(directory: Path, path: str) -> ModelSource:
    config = msgspec.structs.replace(CONFIG, parameters=parameters(EXECUTION_ENV_PATH=path))
    return ModelSource("m", 1, directory, config)


async def test_a_model_runs_in_the_environment_it_brings(tmp_path: Path) -> None:
    environment = tmp_path / "env"
    venv.create(environment, symlinks=True)
    [site_packages] = environment.glob("lib/python*/site-packages")
    config = source_with(tmp_path, "$$TRITON_MODEL_DIRECTORY/env").config
    instance = backend(tmp_path, ABOUT, config=config)
    with pytest.raises(Internal) as failure:
        await instance.load()
    assert "needs numpy in the model's environment" in failure.value.message
    assert str(environment) in failure.value.message
    # As if it were installed there.
    (site_packages / "numpy.pth").write_text(str(Path(np.__file__).parents[1]))
    async with running(instance):
        [found] = output((await infer(instance, request()))[0]).tolist()
    assert found.decode() == f'["{environment}", "{environment}", "{environment}/bin"]'


def test_the_servers_own_interpreter_gets_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    found = find_environment(ModelSource("m", 1, tmp_path, CONFIG))
    assert found.interpreter == sys.executable
    assert found.variables == dict(os.environ)


def test_what_is_no_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "env.tar.gz").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument, match=r"Failed to get the canonical path for .*/none\."):
        find_environment(source_with(tmp_path, f"{tmp_path}/none"))
    with pytest.raises(Unsupported, match=r"packed environments are not supported yet"):
        find_environment(source_with(tmp_path, "$$TRITON_MODEL_DIRECTORY/env.tar.gz"))
    with pytest.raises(InvalidArgument, match=r"/empty/bin/python' is no program that can be run"):
        find_environment(source_with(tmp_path, "$$TRITON_MODEL_DIRECTORY/empty"))
