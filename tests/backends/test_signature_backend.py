"""Completion of a configuration by what the model's file declares."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backends.interface import BatchResult, ModelSource
from backends.signature_backend import Signature, SignatureBackend
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Unavailable
from protocol.messages import InferenceRequest
from repository.completion import TensorSignature
from repository.model_config import ModelDynamicBatching
from tests.backends.helpers import source_of

CONFIG = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


class Echo(SignatureBackend):
    async def load(self) -> None:
        pass

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        raise NotImplementedError


def signed(shape: tuple[int, ...] = (-1, 3)) -> type[Echo]:
    """A backend whose model file declares X and Y of this shape."""

    class Signed(Echo):
        @classmethod
        def signature(cls, source: ModelSource) -> Signature:
            return [TensorSignature("X", DataType.FP32, shape)], [TensorSignature("Y", DataType.INT64, shape)]

    return Signed


async def test_a_signature_completes_the_configuration() -> None:
    config = await signed().complete_config(source_of(""))
    assert config.max_batch_size == 4
    assert [(entry.name, entry.data_type, entry.dims) for entry in config.input] == [("X", DataType.FP32, (3,))]
    assert [(entry.name, entry.data_type, entry.dims) for entry in config.output] == [("Y", DataType.INT64, (3,))]
    assert config.dynamic_batching == ModelDynamicBatching()


@pytest.mark.parametrize(("setting", "expected"), [("0", 0), ("1", 1), ("16", 16)])
async def test_the_default_max_batch_size_is_a_backend_setting(setting: str, expected: int) -> None:
    source = source_of("", settings={"default-max-batch-size": setting})
    assert (await signed().complete_config(source)).max_batch_size == expected


async def test_a_default_max_batch_size_that_is_no_number_is_refused() -> None:
    source = source_of("", settings={"default-max-batch-size": "many"})
    with pytest.raises(InvalidArgument, match="'default-max-batch-size': failed to convert 'many' to integral number"):
        await signed().complete_config(source)


def refuse(source: ModelSource) -> Signature:
    raise AssertionError("the model must not be read")


async def test_a_configuration_with_inputs_and_outputs_is_complete_without_reading_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Echo, "signature", staticmethod(refuse))
    source = source_of(CONFIG)
    assert await Echo.complete_config(source) == source.config


async def test_a_framework_without_signatures_leaves_the_configuration_alone() -> None:
    source = source_of('max_batch_size: 2 output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]')
    assert await Echo.complete_config(source) == source.config


async def test_a_framework_missing_at_completion_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_framework(source: ModelSource) -> Signature:
        __import__("a_framework_that_is_not_there")
        return [], []

    monkeypatch.setattr(Echo, "signature", staticmethod(needs_framework))
    with pytest.raises(Unavailable, match="needs the Python package 'a_framework_that_is_not_there'"):
        await Echo.complete_config(source_of('backend: "strange"'))
