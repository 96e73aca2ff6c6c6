"""Engines as plain data, and models of the stand-in, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from backends.interface import InstanceSpec
from backends.tensorrt.description import EngineDescription, EngineTensor, Range
from protocol.datatypes import DataType
from repository.model_config import InstanceKind, SecondaryDevice
from tests.backends.helpers import source_of
from tests.backends.tensorrt.fake_tensorrt import plan, tensor

Bounds = tuple[Sequence[int], Sequence[int], Sequence[int]]

ADD_SUB = """
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def engine_tensor(
    name: str,
    shape: Sequence[int],
    *ranges: Bounds,
    output: bool = False,
    data_type: DataType = DataType.FP32,
    shape_tensor: bool = False,
    format: str = "LINEAR",
) -> EngineTensor:
    """An input without ranges has its own shape as the only one that is allowed."""
    found = tuple(Range(*map(tuple, bounds)) for bounds in ranges)
    if not found and not output and not shape_tensor:
        found = (Range(tuple(shape), tuple(shape), tuple(shape)),)
    return EngineTensor(name, data_type, tuple(shape), not output, shape_tensor, format, found)


def engine(*tensors: EngineTensor, profiles: int = 1) -> EngineDescription:
    return EngineDescription(tensors, profiles)


def rows_engine(*bounds: tuple[int, int, int], width: int = 4) -> EngineDescription:
    """X and Y of any number of rows that these profiles allow."""
    ranges = [tuple((rows, width) for rows in bound) for bound in bounds]
    x = engine_tensor("X", (-1, width), *ranges)  # type: ignore[arg-type]  # three each
    return engine(x, engine_tensor("Y", (-1, width), output=True), profiles=len(bounds))


def add_sub_plan(*bounds: tuple[int, int, int], rows: int = -1) -> bytes:
    """INPUT0 and INPUT1 of four numbers per row, in these profiles; with `rows` of that many only."""
    ranges = [[(least, 4), (best, 4), (most, 4)] for least, best, most in bounds]
    names = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    tensors = [tensor(name, (rows, 4), *ranges, output=name.startswith("OUT")) for name in names]
    return plan("add_sub", *tensors, profiles=len(bounds))


def write_plan(folder: Path, content: bytes, name: str = "model.plan") -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / name).write_bytes(content)


def spec(
    config: str,
    folder: Path,
    *,
    kind: InstanceKind = InstanceKind.GPU,
    profiles: Sequence[str] = (),
    devices: Sequence[SecondaryDevice] = (),
    **settings: str,
) -> InstanceSpec:
    text = f'backend: "tensorrt" platform: "tensorrt_plan"\n{config}'
    source = source_of(text, folder, settings={key.replace("_", "-"): value for key, value in settings.items()})
    return InstanceSpec(source, "m_0_0", kind, profiles=tuple(profiles), secondary_devices=tuple(devices))
