"""A core with one format's models behind it, and what the tests ask of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.interface import Backend
from backends.registry import BackendRegistry
from protocol.datatypes import DataType
from protocol.messages import InferenceRequest
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from tests.backends.conformance.format import Arrays, Format
from tests.backends.helpers import objects
from trioton.testing.models import AsyncModel, Failures

# Where a test waits for others to get somewhere; nothing takes so long unless something is broken.
PATIENCE = 60


@asynccontextmanager
async def serving(
    repository: Path,
    *,
    backends: Mapping[str, type[Backend]] | None = None,
    load: Sequence[str] = ("m",),
    backend_config: Mapping[str, Mapping[str, str]] | None = None,
) -> AsyncIterator[ServerCore]:
    """The core of a server with the models `load`; stopped in order at the end of the block."""
    settings = CoreSettings((repository,), control_mode=ControlMode.EXPLICIT, backend_config=backend_config or {})
    core = ServerCore(settings, BackendRegistry(backends))
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        try:
            for name in load:
                await core.load_model(name)
            yield core
        finally:
            core.stop()


def model_of(core: ServerCore, name: str = "m") -> AsyncModel:
    return AsyncModel(core, name, Failures())


def add_config(folder: Path, *lines: str) -> None:
    path = folder / "config.pbtxt"
    path.write_text("\n".join((path.read_text(), *lines, "")))


def one_instance(folder: Path, count: int = 1) -> None:
    add_config(folder, f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]")


def read(folder: Path) -> ModelConfig:
    return parse_pbtxt((folder / "config.pbtxt").read_text(), source="config.pbtxt")


def sample(config: ModelConfig, rows: int, *, size: int = 3, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Inputs for a configuration, each row unlike the others; dimensions of any size have this `size`."""
    random = np.random.default_rng([rows, size, seed])
    found: dict[str, NDArray[Any]] = {}
    for entry in config.input:
        shape = (rows, *(size if dim == -1 else dim for dim in entry.dims))
        found[entry.name] = random_array(random, entry.data_type, shape)
    return found


def random_array(random: np.random.Generator, datatype: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    count = int(np.prod(shape))
    if datatype is DataType.BYTES:
        texts = [f"é{number}-{random.integers(10**6)}" * (number % 3) for number in range(count)]
        return objects(*(text.encode() for text in texts)).reshape(shape)
    if datatype is DataType.BOOL:
        return random.random(shape) < 0.5
    if datatype in (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64):
        return random.standard_normal(shape).astype(datatype.dtype)
    limits = np.iinfo(datatype.dtype)
    return random.integers(limits.min, limits.max, shape, datatype.dtype, endpoint=True)


def assert_same(found: Arrays, expected: Arrays, tolerance: float = 0.0) -> None:
    """As to names, shapes, datatypes and values."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        if array.dtype == np.object_ or not tolerance:
            np.testing.assert_array_equal(found[name], array, name)
        else:
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


class Gate:
    """Holds the batches of a real backend back until it is opened, and remembers them."""

    def __init__(self) -> None:
        self.batches: list[list[InferenceRequest]] = []
        self._is_open = False
        self._changed = trio.lowlevel.ParkingLot()

    def on(self, backend: type[Backend]) -> type[Backend]:
        """The backend behind this gate."""

        async def execute(instance: Backend, requests: Sequence[InferenceRequest]) -> Any:
            await self._pass(requests)
            return await backend.execute(instance, requests)

        async def execute_overlapping(instance: Backend, requests: Sequence[InferenceRequest], free: Any) -> Any:
            await self._pass(requests)
            return await backend.execute_overlapping(instance, requests, free)

        held = {"execute": execute, "execute_overlapping": execute_overlapping, "begin": Backend.begin}
        return type(f"Gated{backend.__name__}", (backend,), held)

    def open(self) -> None:
        self._is_open = True
        self._changed.unpark_all()

    async def wait_batches(self, count: int) -> None:
        """Until so many have come to the gate."""
        with trio.fail_after(PATIENCE):
            while len(self.batches) < count:
                await self._changed.park()

    async def _pass(self, requests: Sequence[InferenceRequest]) -> None:
        self.batches.append(list(requests))
        self._changed.unpark_all()
        while not self._is_open:
            await self._changed.park()


def gated(form: Format, gate: Gate) -> dict[str, type[Backend]]:
    return {form.backend: gate.on(form.backend_class())}
