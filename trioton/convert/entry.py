"""Repository entries: a candidate with its configuration and warm-up data, as it would be served."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.messages import encode_bytes_elements
from repository.layout import CONFIG_FILE
from repository.model_config import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelParameter,
    ModelTensorReshape,
    ModelWarmup,
    WarmupInput,
)
from repository.readable_pbtxt import format_readable
from repository.warmup_data import WARMUP_DIRECTORY
from trioton.convert.plan import Candidate
from trioton.convert.tensors import Array, Arrays, Description, TensorSpec
from trioton.tools.file_kinds import FOREST_BACKEND
from trioton.tools.model_sources import belongs_to, renamed

VERSION = "1"
PROVENANCE = "provenance.json"


def model_config(
    candidate: Candidate,
    description: Description,
    outputs: Sequence[TensorSpec],
    largest: int,
    warmup: Arrays,
    parameters: Mapping[str, str],
) -> ModelConfig:
    """`warmup` is one row, which is in a file for each input."""
    return ModelConfig(
        backend=candidate.backend,
        max_batch_size=largest,
        input=tuple(
            ModelInput(each.name, BY_PROTOCOL_NAME[each.datatype], dims=each.shape or (1,), reshape=_of_scalars(each))
            for each in description.inputs
        ),
        output=tuple(_output(candidate, each) for each in outputs),
        dynamic_batching=ModelDynamicBatching() if largest else None,
        model_warmup=tuple(_warmups(description, largest, warmup)),
        parameters={name: ModelParameter(value) for name, value in parameters.items()},
    )


def _output(candidate: Candidate, spec: TensorSpec) -> ModelOutput:
    reshape = _of_scalars(spec)
    if candidate.backend == FOREST_BACKEND and spec.shape == (1,):  # which leaves that dimension out else
        reshape = ModelTensorReshape(())
    return ModelOutput(spec.name, BY_PROTOCOL_NAME[spec.datatype], dims=spec.shape or (1,), reshape=reshape)


def _of_scalars(spec: TensorSpec) -> ModelTensorReshape | None:
    """A configuration has no dims that are empty: clients have one element there, and the model none."""
    return None if spec.dims else ModelTensorReshape(())


def _warmups(description: Description, largest: int, row: Arrays) -> Sequence[ModelWarmup]:
    inputs = {
        spec.name: WarmupInput(
            BY_PROTOCOL_NAME[spec.datatype], tuple(row[spec.name].shape) or (1,), input_data_file=warmup_file(index)
        )
        for index, spec in enumerate(description.inputs)
    }
    sizes = sorted({1, largest}) if largest else [1]
    return [ModelWarmup(f"batch_{size}", size, inputs) for size in sizes]


def warmup_file(index: int) -> str:
    return f"input_{index}"


def write_entry(folder: Path, candidate: Candidate, made: Path, config: ModelConfig, warmup: Arrays) -> None:
    """The model's directory, with hard links to the files where the system has them. Raises OSError."""
    version = folder / VERSION
    version.mkdir(parents=True)
    for source, name in model_files(candidate, made):
        _place(source, version / name)
    (folder / CONFIG_FILE).write_text(format_readable(config), encoding="utf-8")
    data = folder / WARMUP_DIRECTORY
    data.mkdir()
    for index, tensor in enumerate(config.input):
        (data / warmup_file(index)).write_bytes(_bytes_of(warmup[tensor.name], tensor.data_type))


def model_files(candidate: Candidate, made: Path) -> list[tuple[Path, str]]:
    """The model's file or folder, and weights that lie beside it, with their names in a version directory."""
    besides = (each for each in sorted(made.parent.iterdir()) if belongs_to(each, made))
    return [(made, candidate.filename), *((each, renamed(each, made, candidate.filename)) for each in besides)]


def _place(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
        return
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _bytes_of(array: Array, datatype: DataType) -> bytes:
    if datatype is DataType.BYTES:
        return bytes(encode_bytes_elements(array.ravel().tolist()))
    return np.ascontiguousarray(array, datatype.dtype.newbyteorder("<")).tobytes()
