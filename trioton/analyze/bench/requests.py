"""Requests of a load's data, for what is asked one by one."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.core import ModelStatistics
from trioton.perf.caller import DataError, ModelDescription, Part, Payload
from trioton.perf.data.model_data import ModelData


class NoControl:
    """Implements `Control` for data that asks the server for nothing."""

    async def describe(self) -> ModelDescription:
        raise _refusal()

    async def statistics(self, model: str = "") -> Sequence[ModelStatistics]:
        raise _refusal()

    async def metrics(self) -> str:
        raise _refusal()

    async def register_system_memory(self, name: str, key: str, byte_size: int) -> None:
        raise _refusal()

    async def unregister_system_memory(self, name: str) -> None:
        raise _refusal()


def _refusal() -> DataError:
    return DataError("requests in shared memory cannot be sent one by one")


async def payloads_of(data: ModelData, description: ModelDescription, count: int) -> list[Payload]:
    """The first requests of the data, again from the first on where there are fewer.

    Raises:
        DataError: there is no data for what the model wants.
    """
    async with data.open(description, lambda payload: payload, NoControl(), Part()) as source:
        calls = [source.take() for _ in range(count)]
    return [call.data for call in calls if call is not None]
