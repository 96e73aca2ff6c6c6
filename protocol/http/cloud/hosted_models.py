"""Hosted models: those that SageMaker has loaded on a multi-model endpoint, by the hashes that it knows them by."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from protocol.core import InferenceCore, LoadParameters, ModelRepository
from protocol.errors import AlreadyExists, ServerError, Unavailable

logger = logging.getLogger(__name__)

# SageMaker gives up a request of its own after 360 seconds.
UNLOAD_SECONDS = 350.0
_POLL_SECONDS = 0.2
_WITHIN_BUDGET = LoadParameters(within_budget=True)


@dataclass(frozen=True, slots=True, eq=False)
class HostedModel:
    """`name` is what it is served under. Its `lock` is held while it is loaded or unloaded."""

    name: str
    repository: ModelRepository
    lock: trio.Lock = field(default_factory=trio.Lock)


class HostedModels:
    """Those of one endpoint. A load that has begun is not cancelled by its client."""

    def __init__(self, core: InferenceCore) -> None:
        self._core = core
        self._by_hash: dict[str, HostedModel] = {}

    def find(self, model_hash: str) -> HostedModel | None:
        """Also one that is being loaded or unloaded."""
        return self._by_hash.get(model_hash)

    def ready(self) -> Iterator[tuple[str, HostedModel]]:
        """Those that take requests, by hash."""
        for model_hash, model in self._by_hash.items():
            with suppress(ServerError):
                if self._core.is_model_ready(model.name):
                    yield model_hash, model

    async def load(self, model_hash: str, name: str, repository: ModelRepository) -> None:
        """Register the repository and load the model; of a load that fails nothing is left.

        Raises:
            AlreadyExists: the hash, the repository or the name is taken.
            ServerError: the model does not load.
        """
        if model_hash in self._by_hash:
            raise AlreadyExists(f"model '{model_hash}' is loaded already")
        model = self._by_hash[model_hash] = HostedModel(name, repository)
        async with model.lock:
            try:
                await self._load(model)
            except BaseException:
                del self._by_hash[model_hash]
                raise

    async def _load(self, model: HostedModel) -> None:
        await self._core.register_repository(model.repository)
        try:
            logger.info("Loading SageMaker TargetModel: %s", model.name)
            await self._core.load_model(model.name, _WITHIN_BUDGET)
        except ServerError:
            with suppress(ServerError):
                await self._core.unload_model(model.name, unload_dependents=True)  # its failure is no one's any more
            await self._core.unregister_repository(model.repository.path)
            raise

    async def unload(self, model_hash: str) -> bool:
        """Unload the model and what was loaded for it alone, and unregister its repository; returns when it is gone.
        False where there is none.

        Raises:
            Unavailable: it has requests that do not end.
        """
        model = self._by_hash.get(model_hash)
        if model is None:
            return False
        async with model.lock:
            if self._by_hash.get(model_hash) is not model:
                return False
            await self._core.unload_model(model.name, unload_dependents=True)
            await self._until_gone(model.name)
            await self._core.unregister_repository(model.repository.path)
            del self._by_hash[model_hash]
        return True

    async def _until_gone(self, name: str) -> None:
        with trio.move_on_after(UNLOAD_SECONDS):
            while True:
                if await self._is_gone(name):
                    return
                await trio.sleep(_POLL_SECONDS)
        raise Unavailable(f"model '{name}' is not unloaded after {UNLOAD_SECONDS:g} seconds: its requests do not end")

    async def _is_gone(self, name: str) -> bool:
        index = await self._core.repository_index()
        return all(entry.state in ("", "UNAVAILABLE") for entry in index if entry.name == name)
