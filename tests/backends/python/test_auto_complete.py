"""`auto_complete_config` in its own short-lived worker."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backends.python import PythonBackend
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument
from repository.model_config import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
)
from tests.backends.python.models import IDENTITY, executing, model_source
from tests.backends.python.processes import children, open_descriptors

BARE = ModelConfig(name="m", backend="python", default_model_filename="model.py")


def completing(body: str) -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"""
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
{lines}

    def __init__(self):
        raise AssertionError("no instance is made")
"""


async def complete(directory: Path, text: str, config: ModelConfig = BARE) -> ModelConfig:
    before = open_descriptors()
    try:
        return await PythonBackend.complete_config(model_source(directory, text, config=config))
    finally:
        assert not children()
        assert not open_descriptors() - before


async def test_a_bare_configuration_is_filled(tmp_path: Path) -> None:
    model = completing("""\
assert pb_utils.get_model_dir().endswith("/1")
config.set_max_batch_size(4)
config.set_dynamic_batching()
config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [-1, 3]})
config.add_input({"name": "B", "data_type": "TYPE_STRING", "dims": [1], "optional": True})
config.add_output({"name": "C", "data_type": "TYPE_BF16", "dims": [2]})
config.set_model_transaction_policy({"decoupled": False})
config.as_dict()["parameters"] = {"k": {"string_value": "v"}}
return config""")
    found = await complete(tmp_path, model)
    assert found.max_batch_size == 4
    assert found.dynamic_batching == ModelDynamicBatching()
    assert found.input == (
        ModelInput(name="A", data_type=DataType.FP32, dims=(-1, 3)),
        ModelInput(name="B", data_type=DataType.BYTES, dims=(1,), optional=True),
    )
    assert found.output == (ModelOutput(name="C", data_type=DataType.BF16, dims=(2,)),)
    assert not found.is_decoupled
    assert found.parameter("k") == "v"


async def test_a_given_configuration_is_kept(tmp_path: Path) -> None:
    """Where the model agrees with it, where it says nothing, and where it has no such method."""
    config = msgspec.structs.replace(
        BARE,
        max_batch_size=2,
        input=(ModelInput(name="A", data_type=DataType.INT8, dims=(1,)),),
        output=(ModelOutput(name="B"),),
    )
    agreeing = completing("""\
config.set_max_batch_size(2)
config.add_input({"name": "A", "data_type": "TYPE_INT8", "dims": [1]})
config.add_output({"name": "B", "data_type": "TYPE_INT8", "dims": [5]})
return config""")
    completed = msgspec.structs.replace(config, output=(ModelOutput(name="B", data_type=DataType.INT8, dims=(5,)),))
    assert await complete(tmp_path, agreeing, config) == completed
    assert await complete(tmp_path, completing("return config"), config) == config
    assert await complete(tmp_path, executing(IDENTITY), config) == config


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."),
        ("return config.as_dict()", "must return a valid pb.ModelConfig object."),
        ("raise ValueError('why not')", "ValueError: why not\n\nAt:\n  {}/1/model.py(8): auto_complete_config"),
        ("config.set_dynamic_batching(); return config", "Configuration specified scheduling_choice as 'seq"),
        ("config.as_dict()['x'] = {1, 2}; return config", "TypeError: Object of type set is not JSON serializable"),
        ("os._exit(3)", "worker process of 'm (auto_complete_config)' exited with code 3 during auto_complete_config"),
        ("pb_utils.load_model('x')", "TritonModelException: Failed to load model: the server has no other models"),
    ],
)
async def test_a_completion_that_fails_says_why(tmp_path: Path, body: str, message: str) -> None:
    config = msgspec.structs.replace(BARE, sequence_batching=ModelSequenceBatching())
    with pytest.raises(Internal) as failure:
        await complete(tmp_path, completing(body), config)
    assert message.format(tmp_path) in failure.value.message


async def test_a_completion_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    body = "config.as_dict()['no_such_field'] = 1; return config"
    with pytest.raises(InvalidArgument, match=r"auto_complete_config of model 'm' .*no_such_field"):
        await complete(tmp_path, completing(body))
