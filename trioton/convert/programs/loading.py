"""Sources in memory: each answers inputs as it does itself, and in float64 where its framework can."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from trioton.convert.sources import Source, SourceKind
from trioton.convert.tensors import Arrays, Description, TensorSpec


class LoadedSource(Protocol):
    parameters: Mapping[str, str]
    """Of a configuration that serves the source as it is."""

    def inputs(self) -> Sequence[TensorSpec]:
        """The inputs as the file tells them, with the batch dimension; without datatypes where it tells names only."""

    def answer(self, inputs: Arrays, *, is_wide: bool) -> Arrays:
        """`is_wide`: computed in float64. Raises whatever the framework does, and NotImplementedError where it has no
        such thing."""
        ...


_MODULES = {
    SourceKind.MODULE: "torch_source",
    SourceKind.TORCH_SCRIPT: "torch_source",
    SourceKind.EXPORTED: "torch_source",
    SourceKind.HUGGING_FACE: "torch_source",
    SourceKind.ONNX: "onnx_source",
    SourceKind.SAVED_MODEL: "tensorflow_source",
    SourceKind.SKLEARN: "sklearn_source",
    SourceKind.XGBOOST: "forest_source",
    SourceKind.LIGHTGBM: "forest_source",
    SourceKind.TREELITE: "forest_source",
}


def load_source(source: Source) -> LoadedSource:
    module = importlib.import_module(f"trioton.convert.programs.{_MODULES[source.kind]}")
    loaded: LoadedSource = module.load(source)
    return loaded


def source_of(arguments: dict[str, Any]) -> Source:
    return msgspec.convert(arguments["source"], Source)


def description_of(arguments: dict[str, Any]) -> Description:
    return msgspec.convert(arguments["description"], Description)
