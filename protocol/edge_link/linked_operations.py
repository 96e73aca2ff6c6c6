"""Operations of the core as an edge process has them: methods of `protocol.core.InferenceCore` that are no inference.

What the core can say within a callback is asked for at once (`_query`), and the process waits for that; the rest by a
message (`_call`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protocol.core import (
    LoadParameters,
    ModelIndex,
    ModelMetadata,
    ModelRepository,
    ModelStatistics,
    QueueRoom,
    ServerMetadata,
)
from protocol.messages import LATEST_VERSION
from protocol.text.model import TextFacts, TextModel

if TYPE_CHECKING:
    from protocol.edge_link.linked_texts import LinkedTexts


class LinkedOperations(abc.ABC):
    texts: LinkedTexts

    @abc.abstractmethod
    def _query(self, name: str, *arguments: Any) -> Any:
        """The result of one of `operations.QUERIES`. Raises ServerError."""

    @abc.abstractmethod
    async def _call(self, name: str, *arguments: Any) -> Any:
        """The result of one of `operations.CALLS`. Raises ServerError. Cancelled, the call is cancelled in the core."""

    def is_live(self) -> bool:
        return bool(self._query("is_live"))

    def is_ready(self) -> bool:
        return bool(self._query("is_ready"))

    def is_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        return bool(self._query("is_model_ready", name, version))

    def server_metadata(self) -> ServerMetadata:
        found: ServerMetadata = self._query("server_metadata")
        return found

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        found: ModelMetadata = self._query("model_metadata", name, version)
        return found

    def model_config(self, name: str, version: int = LATEST_VERSION) -> dict[str, Any]:
        found: dict[str, Any] = self._query("model_config", name, version)
        return found

    def each_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Iterator[ModelStatistics]:
        return iter(self._query("each_statistics", name, version))

    def sleeping(self) -> Mapping[str, bool]:
        found: dict[str, bool] = self._query("sleeping")
        return found

    def repositories(self) -> Sequence[ModelRepository]:
        found: Sequence[ModelRepository] = self._query("repositories")
        return found

    def is_decoupled(self, name: str, version: int = LATEST_VERSION) -> bool:
        return bool(self._query("is_decoupled", name, version))

    def is_batching(self, name: str, version: int = LATEST_VERSION) -> bool:
        return bool(self._query("is_batching", name, version))

    def takes_device_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        self._query("takes_device_tensors", name, version)  # raises where there is no such model
        return False

    def takes_shared_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        self._query("takes_shared_tensors", name, version)
        return False

    def labels(self, name: str, version: int, output: str) -> Sequence[str]:
        found: Sequence[str] = self._query("labels", name, version, output)
        return found

    def queue_room(self, name: str, version: int = LATEST_VERSION) -> QueueRoom | None:
        found: QueueRoom | None = self._query("queue_room", name, version)
        return found

    async def text_model(self, name: str, version: int = LATEST_VERSION) -> TextModel:
        return await self.texts.model(name, version)

    async def text_models(self) -> Sequence[TextFacts]:
        return await self.texts.models()

    async def check_ready(self) -> bool:
        return bool(await self._call("check_ready"))

    async def check_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        return bool(await self._call("check_model_ready", name, version))

    async def repository_index(self, *, ready: bool = False) -> Sequence[ModelIndex]:
        found: Sequence[ModelIndex] = await self._call("repository_index", ready)
        return found

    async def load_model(self, name: str, parameters: LoadParameters = LoadParameters()) -> None:  # noqa: B008 (frozen)
        await self._call("load_model", name, parameters)

    async def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        await self._call("unload_model", name, unload_dependents)

    async def load_adapter(self, name: str, adapter: str, path: str, *, replace: bool = False) -> None:
        await self._call("load_adapter", name, adapter, path, replace)

    async def unload_adapter(self, name: str, adapter: str) -> None:
        await self._call("unload_adapter", name, adapter)

    async def sleep(self, name: str, level: int = 1) -> None:
        await self._call("sleep", name, level)

    async def wake(self, name: str) -> None:
        await self._call("wake", name)

    async def reset_prefix_cache(self, name: str) -> None:
        await self._call("reset_prefix_cache", name)

    async def register_repository(self, repository: ModelRepository) -> None:
        await self._call("register_repository", repository)

    async def unregister_repository(self, path: str) -> None:
        await self._call("unregister_repository", path)
