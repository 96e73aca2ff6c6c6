"""Warm-up data: the tensors of `model_warmup` (zeros, random values, or files in `<model>/warmup/`).

Flow: configuration and model directory -> [warmup data] -> the model instances run it after their load
(`actors.instance.warmup`). Blocks where files are read. Source: Triton's `ModelWarmup`.
"""

from __future__ import annotations

import math
import posixpath
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import ModelConfig, ModelWarmup, WarmupInput

WARMUP_DIRECTORY = "warmup"

# More bytes than any model's input, all rows of a batch together; a slip in `dims` or `batch_size` must not take the
# machine's memory.
MAX_INPUT_BYTES = 1 << 32
# More runs than warm any model up; a slip in `count` must not keep the model loading for ever.
MAX_COUNT = 100_000
# More requests than any batch has.
MAX_BATCH_SIZE = 100_000


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One sample. It runs `count` times, each time as `batch_size` requests, whose `tensors` are one row each where the
    model has a batch dimension."""

    name: str
    batch_size: int
    count: int
    tensors: tuple[Tensor, ...]

    def requests(self, model: str, version: int) -> list[InferenceRequest]:
        """The requests of one execution, made anew; the tensors are shared."""
        return [InferenceRequest(model, list(self.tensors), model_version=version) for _ in range(self.batch_size)]


def warmup_samples(config: ModelConfig, model_directory: Path) -> tuple[WarmupSample, ...]:
    """The samples that are to run, in their order; those with a `batch_size` of 0 are skipped.

    Inputs that the configuration has come first and in its order, as in any other request; more inputs (control
    tensors) follow. Random values are the same for each load: numbers of floating-point types are from 0 to 1,
    integers are of any value, and strings are empty.

    Raises:
        InvalidArgument: what is wrong with which input, or a file that cannot be read.
    """
    return tuple(_sample(config, warmup, model_directory) for warmup in config.model_warmup if warmup.batch_size > 0)


def _sample(config: ModelConfig, warmup: ModelWarmup, model_directory: Path) -> WarmupSample:
    if config.is_batching and warmup.batch_size > config.max_batch_size:
        raise InvalidArgument(
            f"warmup sample '{warmup.name}' of model '{config.name}' has batch_size {warmup.batch_size}, but "
            f"max_batch_size is {config.max_batch_size}"
        )
    if warmup.count > MAX_COUNT:
        raise InvalidArgument(
            f"warmup sample '{warmup.name}' of model '{config.name}' has count {warmup.count}, at most {MAX_COUNT} is "
            "allowed"
        )
    if warmup.batch_size > MAX_BATCH_SIZE:
        raise InvalidArgument(
            f"warmup sample '{warmup.name}' of model '{config.name}' has batch_size {warmup.batch_size}, at most "
            f"{MAX_BATCH_SIZE} is allowed"
        )
    runs = max(1, warmup.count) * (1 if config.is_batching else warmup.batch_size)  # one for each request there
    if runs > MAX_COUNT:
        raise InvalidArgument(
            f"warmup sample '{warmup.name}' of model '{config.name}' runs {runs} requests one by one, at most "
            f"{MAX_COUNT} are allowed"
        )
    missing = [entry.name for entry in config.input if not entry.optional and entry.name not in warmup.inputs]
    if missing:
        raise InvalidArgument(
            f"warmup sample '{warmup.name}' of model '{config.name}' does not set required input(s): "
            + ", ".join(f"'{name}'" for name in missing)
        )
    configured = {entry.name: entry for entry in config.input}
    for name, given in warmup.inputs.items():
        if (entry := configured.get(name)) is None:
            continue
        where = f"warmup sample '{warmup.name}' of model '{config.name}' has for input '{name}'"
        if given.data_type is not entry.data_type:
            raise InvalidArgument(
                f"{where} data_type {given.data_type.value}, but the model expects {entry.data_type.value}"
            )
        if not _fits(given.dims, entry.dims):
            raise InvalidArgument(f"{where} dims {list(given.dims)}, but the model expects {list(entry.dims)}")
    order = {name: place for place, name in enumerate(configured)}
    names = sorted(warmup.inputs, key=lambda name: order.get(name, len(order)))
    rows = (1,) if config.is_batching else ()
    shape_tensors = {entry.name for entry in config.input if entry.is_shape_tensor}  # they have no batch dimension
    return WarmupSample(
        name=warmup.name,
        batch_size=warmup.batch_size,
        count=max(1, warmup.count),
        tensors=tuple(
            _tensor(
                name, warmup.inputs[name], () if name in shape_tensors else rows, warmup.batch_size, model_directory
            )
            for name in names
        ),
    )


def _fits(given: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether the dims may be those of the input; a variable one that is given is found later, with Triton's text."""
    return len(given) == len(expected) and all(
        -1 in (size, wanted) or size == wanted for size, wanted in zip(given, expected, strict=True)
    )


def _tensor(name: str, given: WarmupInput, rows: tuple[int, ...], batch_size: int, model_directory: Path) -> Tensor:
    if any(size < 0 for size in given.dims):
        raise InvalidArgument(f"warmup setting expects all variable-size dimensions are specified for input '{name}'")
    if given.data_type is DataType.INVALID:
        raise InvalidArgument(f"warmup setting expects input '{name}' to have 'data_type' set")
    elements = math.prod(given.dims)
    # Of a string that is the least: its length field.
    byte_size = elements * (4 if given.data_type is DataType.BYTES else given.data_type.itemsize)
    batch_bytes = byte_size * (batch_size if rows else 1)
    if batch_bytes > MAX_INPUT_BYTES:
        raise InvalidArgument(
            f"warmup setting for input '{name}' asks for {batch_bytes} bytes, at most {MAX_INPUT_BYTES} are allowed"
        )
    # As in the schema's `oneof`, a source that is set counts even where its value is false.
    if given.input_data_file is not None:
        data = _file(name, given, byte_size, model_directory)
    elif given.random_data is not None and given.data_type is not DataType.BYTES:
        data = _random(given.data_type, elements)
    elif given.zero_data is not None or given.random_data is not None:
        data = bytes(byte_size)
    else:
        raise InvalidArgument(f"warmup setting expects input '{name}' to have input_data_type set")
    return Tensor(name, given.data_type, (*rows, *given.dims), data)


def _random(data_type: DataType, elements: int) -> bytes:
    generator = np.random.default_rng(elements)
    if data_type is DataType.BOOL:
        return generator.integers(0, 2, elements, dtype=np.uint8).tobytes()
    if np.issubdtype(data_type.dtype, np.integer):
        return generator.bytes(elements * data_type.itemsize)
    return generator.random(elements, dtype=np.float32).astype(data_type.dtype.newbyteorder("<")).tobytes()


def _file(name: str, given: WarmupInput, byte_size: int, model_directory: Path) -> bytes:
    """The file's bytes: all of them for strings, else as many as the tensor has."""
    wanted = given.input_data_file or ""
    normal = posixpath.normpath(wanted)
    if not wanted or posixpath.isabs(normal) or normal in (".", "..") or normal.startswith("../"):
        raise InvalidArgument(
            f"warmup setting for input '{name}' names the file '{wanted}', which must stay within the model's "
            f"directory '{WARMUP_DIRECTORY}'"
        )
    path = model_directory / WARMUP_DIRECTORY / normal
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"warmup setting for input '{name}': cannot read file '{path}': {error.strerror}"
        ) from None
    if len(data) < byte_size:
        # The missing blank is Triton's.
        raise InvalidArgument(
            f"warmup setting expects {byte_size} bytes, but the data provided from {wanted}only has {len(data)} bytes"
        )
    return data if given.data_type is DataType.BYTES else data[:byte_size]
