"""Adapters of one model version: adds and removes them while it is loaded, at all of its instances or at none.

Flow: core → model manager → model → [model adapters] → backends of the instances. Owned by the model, and called in
tasks of the model manager, so that a client that leaves ends no change half way. Instances read `added` when they load,
so that one that is started again has what was added before.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from backends.interface import AddedAdapter, Backend
from protocol.errors import Internal, InvalidArgument, NotFound, ServerError, Unavailable, Unsupported

logger = logging.getLogger("trioton.model")

# Of one model; each is kept in memory, here and in its engines.
MOST_ADAPTERS = 1024
LONGEST_NAME = 256


class ModelAdapters:
    """`paths` are those of all adapters, by name, as they were given; `added` is what the instances follow."""

    def __init__(self, model: str, own: Mapping[str, str], backends: Callable[[], Sequence[Backend]]) -> None:
        self._model = model
        self._own = own
        self._backends = backends
        self._locks: dict[str, trio.Lock] = {}  # of those that are being changed
        self.paths: dict[str, str] = dict(own)
        self.added: dict[str, AddedAdapter] = {}

    def continue_from(self, before: ModelAdapters) -> None:
        """Have what one had that was loaded from the same files. Called before the first instance is loaded."""
        self.paths.update(before.paths)
        self.added.update(before.added)
        for name in self.paths.keys() - before.paths.keys():
            del self.paths[name]

    def check_new(self, name: str, *, replace: bool) -> None:
        """Judge the name of one that is to be added.

        Raises:
            InvalidArgument: it cannot be a name, or there is one of it, or there are too many.
        """
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise InvalidArgument(
                f"model '{self._model}': a LoRA adapter's name must have 1 to {LONGEST_NAME} printable characters, got "
                f"{name[:LONGEST_NAME]!r}"
            )
        if name in self.paths:
            if not replace:
                raise InvalidArgument(
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                    "'load_inplace' to True."
                )
        elif len(self.paths.keys() | (self._locks.keys() - {name})) >= MOST_ADAPTERS:
            raise InvalidArgument(
                f"model '{self._model}' has {MOST_ADAPTERS} LoRA adapters, which is the maximum: unload one before "
                f"'{name}' is loaded"
            )

    async def add(self, name: str, path: str, folder: str, *, replace: bool) -> None:
        """Add one to all instances; what uses one that is replaced ends first. `folder` is where it lies, `path` what
        the caller calls that.

        Raises:
            ServerError: it could not be added; nothing has changed then.
        """
        async with self._alone(name):
            self.check_new(name, replace=replace)
            await self._change(name, AddedAdapter(name, folder))
            self.paths[name] = path

    async def remove(self, name: str) -> None:
        """Remove one from all instances, when what uses it has ended; new requests for it are refused at once.

        Raises:
            NotFound: there is none of this name.
            ServerError: it could not be removed; nothing has changed then.
        """
        async with self._alone(name):
            if name not in self.paths:
                raise NotFound(f"The lora adapter '{name[:LONGEST_NAME]}' cannot be found.")
            await self._change(name, AddedAdapter(name))
            del self.paths[name]
            if name not in self._own:
                del self.added[name]

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(name, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and self._locks.get(name) is lock:
                del self._locks[name]

    async def _change(self, name: str, wanted: AddedAdapter) -> None:
        backends = self._backends()
        if not backends:
            raise Unavailable(f"model '{self._model}' has no instance now")
        if not all(backend.takes_adapters for backend in backends):
            await self._refuse(backends, name)
        before = self.added.get(name)
        self.added[name] = wanted
        try:
            for backend in backends:
                await self._follow(backend, name)
        except ServerError:
            if before is None:
                del self.added[name]
            else:
                self.added[name] = before
            await self._undo(name)
            raise

    async def _refuse(self, backends: Sequence[Backend], name: str) -> None:
        """One has no adapters, or is not there; it says so."""
        for backend in backends:
            if not backend.takes_adapters:
                await backend.follow_adapter(name)
        raise Unavailable(f"model '{self._model}': an instance was not ready for a change of its adapters")

    async def _follow(self, backend: Backend, name: str) -> None:
        """Errors name the instance and the adapter."""
        instance = backend.spec.name
        try:
            await backend.follow_adapter(name)
        except (Unavailable, Unsupported):
            raise
        except ServerError as error:
            raise type(error)(f"model instance '{instance}': LoRA adapter '{name}': {error.message}") from None
        except Exception as error:
            logger.exception("model instance '%s': LoRA adapter '%s' could not be changed", instance, name)
            raise Internal(f"model instance '{instance}': LoRA adapter '{name}': {type(error).__name__}") from None

    async def _undo(self, name: str) -> None:
        """Have all instances as they were; one that has ended follows when it is started again."""
        for backend in self._backends():
            try:
                await self._follow(backend, name)
            except Unavailable:
                pass
            except ServerError as error:
                logger.error("%s; it could not be restored", error)
