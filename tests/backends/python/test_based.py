"""Python-based backends: one `model.py` for many models."""

from __future__ import annotations

import json
import tarfile
import venv
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio

from actors.core.server_core import CoreSettings, ServerCore
from backends.interface import InstanceSpec, ModelSource
from backends.python import PythonBackend
from backends.registry import BackendRegistry
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import ModelConfig, ModelOutput
from tests.backends.python.models import CONFIG, infer, output, parameters, request, running

# Replies with what its model's folder says; completes its outputs.
SERVES_ALL = """
import json, os, sys
import numpy as np
import sibling
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        with open(os.path.join(pb_utils.get_model_dir(), "data.json")) as file:
            config.add_output({"name": json.load(file)["output"], "data_type": "TYPE_STRING", "dims": [-1]})
        return config

    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "data.json")) as file:
            self.data = json.load(file)
        self.args = args

    def execute(self, requests):
        about = [__name__, sibling.VALUE, self.args["model_name"], self.args["model_repository"], sys.prefix]
        found = np.array([json.dumps(about)], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor(self.data["output"], found)]) for _ in requests]
"""


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    folder = tmp_path / "backends" / "shared"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(SERVES_ALL)
    (folder / "sibling.py").write_text("VALUE = 'beside'\n")
    return tmp_path / "backends"


def source_of(tmp_path: Path, name: str) -> ModelSource:
    folder = tmp_path / "models" / name / "1"
    folder.mkdir(parents=True)
    (folder / "data.json").write_text(json.dumps({"output": f"OUT_{name}"}))
    config = ModelConfig(name=name, backend="shared", max_batch_size=0, input=CONFIG.input)
    settings = {"env-cache-directory": str(tmp_path / "cache")}
    return ModelSource(name, 1, folder.parent, config, settings)


async def served(backend: type[PythonBackend], source: ModelSource) -> list[str]:
    """What the model answers, when its configuration is completed."""
    config = await backend.complete_config(source)
    assert config.output == (ModelOutput(name=f"OUT_{source.name}", data_type=DataType.BYTES, dims=(-1,)),)
    completed = ModelSource(source.name, 1, source.model_directory, config, source.settings)
    async with running(backend(InstanceSpec(completed, "i"))) as instance:
        [response] = await infer(instance, request(np.zeros(1, np.float32)))
        [found] = output(response).tolist()
    answer: list[str] = json.loads(found)
    return answer


async def test_one_program_serves_many_models(tmp_path: Path, backends: Path) -> None:
    registry = BackendRegistry(directories=[tmp_path / "none", backends])
    assert "shared" in registry.names
    for name in ("a", "b"):
        source = source_of(tmp_path, name)
        found = registry.find("shared", model=name, directory=source.model_directory)
        assert issubclass(found, PythonBackend)
        answer = await served(found, source)
        assert answer[:4] == ["model", "beside", name, str(source.model_directory)]


async def test_it_may_lie_in_the_models_own_folder(tmp_path: Path, backends: Path) -> None:
    source = source_of(tmp_path, "a")
    for file in ("model.py", "sibling.py"):
        (source.model_directory / file).write_text((backends / "shared" / file).read_text())
    registry = BackendRegistry()
    found = registry.find("shared", model="a", directory=source.model_directory)
    assert issubclass(found, PythonBackend)
    assert (await served(found, source))[:2] == ["model", "beside"]
    with pytest.raises(InvalidArgument, match="unable to find backend library for backend 'shared'"):
        registry.find("shared", model="b", directory=tmp_path)


async def test_it_may_bring_an_environment_for_all_of_its_models(tmp_path: Path, backends: Path) -> None:
    """The model's own EXECUTION_ENV_PATH comes first."""
    venv.create(tmp_path / "env", symlinks=True)
    [site_packages] = (tmp_path / "env").glob("lib/python*/site-packages")
    (site_packages / "numpy.pth").write_text(str(Path(np.__file__).parents[1]))
    with tarfile.open(backends / "shared" / "pb_exec_env_model.py.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "env", ".")
    found = BackendRegistry(directories=[backends]).find("shared", model="a")
    assert issubclass(found, PythonBackend)
    source = source_of(tmp_path, "a")
    assert (await served(found, source))[4].startswith(str(tmp_path / "cache"))
    own = source_of(tmp_path, "b")
    config = msgspec.structs.replace(own.config, parameters=parameters(EXECUTION_ENV_PATH=str(tmp_path / "env")))
    own = ModelSource(own.name, 1, own.model_directory, config, own.settings)
    assert (await served(found, own))[4] == str(tmp_path / "env")


def test_a_configuration_does_not_lead_out_of_the_backend_directories(tmp_path: Path, backends: Path) -> None:
    registry = BackendRegistry(directories=[tmp_path / "backends" / "shared"])
    for name in ("../shared", str(backends / "shared"), ".."):
        with pytest.raises(InvalidArgument, match="unable to find backend library"):
            registry.find(name, model="m")


def test_runtime_says_whether_an_installed_backend_of_that_name_is_meant(backends: Path) -> None:
    (backends / "shared").rename(backends / "onnxruntime")
    registry = BackendRegistry(directories=[backends])
    assert not issubclass(registry.find("onnxruntime", model="m"), PythonBackend)
    assert issubclass(registry.find("onnxruntime", model="m", is_python_based=True), PythonBackend)
    with pytest.raises(InvalidArgument, match="unable to find backend library"):
        BackendRegistry().find("onnxruntime", model="m", is_python_based=True)


async def test_a_server_serves_by_one(tmp_path: Path, backends: Path) -> None:
    """From a configuration that says no more than Triton needs."""
    folder = source_of(tmp_path, "a").model_directory
    (folder / "config.pbtxt").write_text(
        'backend: "shared" runtime: "model.py" max_batch_size: 0 input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }'
    )
    core = ServerCore(CoreSettings((tmp_path / "models",)), BackendRegistry(directories=[backends]))
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        asked = InferenceRequest("a", [Tensor.from_numpy("IN", np.zeros(1, np.float32))])
        [found] = output(await core.infer(asked)).tolist()
        assert json.loads(found)[:3] == ["model", "beside", "a"]
        core.stop()
