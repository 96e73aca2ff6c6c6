"""Adapters as vLLM keeps them: each with a number of its own, read when it is first needed.

One that cannot be read would end vLLM's engine if a request brought it; read by itself it fails alone.

On a CPU, vLLM 0.32 computes the requests without an adapter with that of its last place, if there is one. So it gets
one place more than adapters may be there, and one that is not used is taken out before another is read: the last place
stays empty, since vLLM takes the first that is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.exceptions import EngineDeadError

from .engine import Adapter, Refused


def spare_place(arguments: Any) -> int:
    """Make room in the arguments where that is needed; how many adapters may be there then, 0 where vLLM sees to it."""
    if not current_platform.is_cpu():
        return 0
    most: int = arguments.max_loras
    arguments.max_loras = most + 1
    if arguments.max_cpu_loras is not None:
        arguments.max_cpu_loras = max(arguments.max_cpu_loras, most + 1)
    return most


class KnownAdapter:
    """One of them. `users` are the generations that use it, or wait for it."""

    def __init__(self, adapter: Adapter, number: int) -> None:
        self.adapter = adapter
        self.request = LoRARequest(adapter.name, number, adapter.path)
        self.users: set[int] = set()
        self.is_loaded = False


class VllmAdapters:
    """Those of one engine; `most` may be loaded at a time, 0 for any number."""

    def __init__(self, llm: Any, most: int, known: Iterable[Adapter]) -> None:
        self._llm = llm
        self._most = most
        self._known: dict[str, KnownAdapter] = {}
        self._loaded: dict[int, KnownAdapter] = {}  # the one that was loaded first in front
        self._last = 0
        self._loading = asyncio.Lock()
        self._released = asyncio.Event()
        for adapter in known:
            self._known[adapter.name] = self._make(adapter)

    def _make(self, adapter: Adapter) -> KnownAdapter:
        self._last += 1
        return KnownAdapter(adapter, self._last)

    @property
    def all(self) -> tuple[Adapter, ...]:
        return tuple(each.adapter for each in self._known.values())

    def find(self, name: str) -> KnownAdapter:
        """Raises Refused."""
        if name not in self._known:
            raise Refused(f"there is no adapter '{name}'")
        return self._known[name]

    async def load(self, known: KnownAdapter) -> LoRARequest:
        """Have vLLM read it, when there is a place for it. Raises Refused."""
        if not known.is_loaded:
            async with self._loading:
                if not known.is_loaded:
                    await self._make_room()
                    await self._read(known)
        return known.request

    async def _make_room(self) -> None:
        while self._most and len(self._loaded) >= self._most:
            unused = next((each for each in self._loaded.values() if not each.users), None)
            if unused is not None:
                await self._unload(unused)
            else:
                self._released.clear()
                await self._released.wait()

    async def _read(self, known: KnownAdapter) -> None:
        try:
            await self._llm.add_lora(known.request)
        except EngineDeadError:
            raise
        except Exception as error:
            raise Refused(f"adapter '{known.adapter.name}': {error}") from None
        known.is_loaded = True
        self._loaded[known.request.lora_int_id] = known

    async def _unload(self, known: KnownAdapter) -> None:
        known.is_loaded = False
        del self._loaded[known.request.lora_int_id]
        await self._llm.remove_lora(known.request.lora_int_id)

    def release(self, known: KnownAdapter, sequence: int) -> None:
        """A generation uses it no more."""
        known.users.discard(sequence)
        self._released.set()

    async def add(self, adapter: Adapter) -> None:
        """Read one now if there is a place for it, in place of one of the same name. Raises Refused."""
        known = self._make(adapter)
        if not self._most or len(self._loaded) < self._most or any(not each.users for each in self._loaded.values()):
            await self.load(known)
        before = self._known.get(adapter.name)
        self._known[adapter.name] = known
        if before is not None and before.is_loaded and not before.users:
            await self._unload(before)

    async def remove(self, name: str) -> None:
        """Forget one. Raises Refused."""
        known = self.find(name)
        if known.users:
            raise Refused(f"the adapter '{name}' is in use")
        del self._known[name]
        if known.is_loaded:
            await self._unload(known)
