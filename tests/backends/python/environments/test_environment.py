"""Models under the interpreter of another environment (EXECUTION_ENV_PATH), with variables and a directory of their
own."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import pytest

from backends.interface import ModelSource
from backends.python.environments.environment import environment_cache, find_environment
from protocol.errors import Internal, InvalidArgument
from tests.backends.python.models import CONFIG, backend, executing, infer, output, parameters, request, running
from tests.backends.python.pythons import VERSIONS, environment_of, python_with_numpy

ABOUT = executing("""
    import json
    about = [sys.prefix, os.environ["VIRTUAL_ENV"], os.environ["PATH"].split(":")[0]]
    return [answer(np.array([json.dumps(about)], dtype=object)) for _ in requests]
""")
WHERE = """
import json, os, sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        assert os.getcwd().endswith("data") and os.environ["WHO"] == "a model"
        return config

    def execute(self, requests):
        about = [os.getcwd(), os.environ["WHO"], os.environ["HERE"], pb_utils.get_model_dir(), sys.version_info[:2]]
        texts = [[json.dumps(about), str(r.inputs()[0].as_numpy().sum())] for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(each, object))]) for each in texts]

    async def is_ready(self):
        return True
"""


def source_with(
    directory: Path,
    path: str,
    others: Mapping[str, str] = MappingProxyType({}),
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> ModelSource:
    config = msgspec.structs.replace(CONFIG, parameters=parameters(EXECUTION_ENV_PATH=path, **others))
    return ModelSource("m", 1, directory, config, settings)


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


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_model_runs_under_another_python(tmp_path: Path, version: str) -> None:
    """Also where the environment is packed, and moved by that; and in each isolation that has processes."""
    environment = environment_of(python_with_numpy(version), tmp_path / "env")
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(environment, ".")
    (tmp_path / "data").mkdir()
    settings = {"env-cache-directory": str(tmp_path / "cache")}
    for path, mode in (("env", "process"), ("env", "fork"), ("env.tar.gz", "threads")):
        others = {
            "ISOLATION": mode,
            "ENV:WHO": "a model",
            "ENV:HERE": "$$TRITON_MODEL_DIRECTORY/data",
            "WORKING_DIRECTORY": "data",
        }
        config = source_with(tmp_path, f"$$TRITON_MODEL_DIRECTORY/{path}", others).config
        instance = backend(tmp_path, WHERE, config=config, settings=settings)
        assert await type(instance).complete_config(instance.spec.source) == config
        async with running(instance):
            assert await instance.is_ready()
            about, total = output((await infer(instance, request()))[0]).tolist()
        data = str(tmp_path / "data")
        assert json.loads(about) == [data, "a model", data, str(tmp_path / "1"), [int(v) for v in version.split(".")]]
        assert total == b"3.0"


async def test_a_packed_environment_is_named_where_it_lacks_something(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    with tarfile.open(tmp_path / "env.tar", "w") as archive:
        archive.add(tmp_path / "env", ".")
    config = source_with(tmp_path, f"{tmp_path}/env.tar").config
    instance = backend(tmp_path, ABOUT, config=config, settings={"env-cache-directory": str(tmp_path / "cache")})
    with pytest.raises(Internal, match=rf"needs numpy in the model's environment; {tmp_path}/cache/\w+/bin/python"):
        await instance.load()


def test_the_servers_own_interpreter_gets_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    found = find_environment(ModelSource("m", 1, tmp_path, CONFIG))
    assert found.interpreter == sys.executable
    assert found.variables == dict(os.environ)
    assert found.working_directory is None


def test_what_is_no_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "env.tar.gz").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    settings = {"env-cache-directory": str(tmp_path / "cache")}
    with pytest.raises(InvalidArgument, match=r"Failed to get the canonical path for .*/none\."):
        find_environment(source_with(tmp_path, f"{tmp_path}/none"))
    with pytest.raises(InvalidArgument, match=r"model 'm': EXECUTION_ENV_PATH: .*/env.tar.gz' cannot be unpacked"):
        find_environment(source_with(tmp_path, "$$TRITON_MODEL_DIRECTORY/env.tar.gz", settings=settings))
    with pytest.raises(InvalidArgument, match=r"/empty/bin/python' is no program that can be run"):
        find_environment(source_with(tmp_path, "$$TRITON_MODEL_DIRECTORY/empty"))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"ENV:": "1"}, "parameter 'ENV:' names no environment variable"),
        ({"ENV:1A": "1"}, "parameter 'ENV:1A' names no environment variable"),
        ({"ENV:A=B": "1"}, "parameter 'ENV:A=B' names no environment variable"),
        ({"WORKING_DIRECTORY": "none"}, "/none', which is no directory"),
    ],
)
def test_variables_and_directories_that_cannot_be(tmp_path: Path, others: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        find_environment(source_with(tmp_path, "", others))
    assert failure.value.message.startswith("model 'm': ")
    assert message in failure.value.message


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environment_cache(source_with(tmp_path, "")).directory == tmp_path / "trioton" / "environments"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert environment_cache(source_with(tmp_path, "")).directory == Path.home() / ".cache/trioton/environments"
    settings = {"env-cache-directory": "/elsewhere", "env-cache-byte-size": "17"}
    found = environment_cache(source_with(tmp_path, "", settings=settings))
    assert (found.directory, found.limit) == (Path("/elsewhere"), 17)
    with pytest.raises(InvalidArgument, match="'env-cache-byte-size' must be at least 1, got 0"):
        environment_cache(source_with(tmp_path, "", settings={"env-cache-byte-size": "0"}))
