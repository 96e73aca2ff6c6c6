"""Response cache: answers a request from the stored response to an equal one, without running the model.

Flow: core → model → [response cache] → hit: back to the core; miss: scheduler → … → [response cache] → core.
`ResponseCache` is owned by the server, which runs it; `VersionCache` is one model version's view of it. A cache that
fails, is slow or is gone never fails a request: it runs as if there were no cache.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import trio

from actors.cache.entry import (
    KEY_BYTES,
    BadEntry,
    decode_response,
    encode_response,
    files_generation,
    input_bytes,
    request_key,
)
from actors.cache.interface import Cache, CacheError
from actors.cache.registry import UnusableCache, find_cache
from actors.metrics.statistics import VersionStatistics
from actors.tracing.stamps import QUEUE_START, REQUEST_END, REQUEST_START
from protocol.errors import text_of
from protocol.log.access_record import CACHED
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor
from repository.content_sample import content_sample
from repository.fingerprint import fingerprint
from repository.json_form import to_json_form
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig

T = TypeVar("T")

logger = logging.getLogger("trioton.response_cache")

# How long one look-up or insertion may take; a request never waits longer than twice this for its cache.
CALL_TIMEOUT_SECONDS = 1.0
# After a failure requests go without the cache for so long, so that an outage costs one of them a little, not all.
RETRY_SECONDS = 1.0
# An outage is logged when it begins, and then this often.
LOG_INTERVAL_SECONDS = 30.0
CLOSE_GRACE_SECONDS = 5.0
# Digesting more would hold up every other call.
DIGEST_IN_THREAD_ABOVE = 1 << 20


class ResponseCache:
    """The cache of one server. Before and after `run` it stores and finds nothing."""

    def __init__(self, name: str, settings: Mapping[str, str], extra: Mapping[str, type[Cache]] | None = None) -> None:
        self._name = name
        self._settings = settings
        self._extra = extra
        self._cache: Cache | None = None
        self._retry_at = 0.0
        self._failures = 0
        self._log_at = 0.0

    @property
    def is_shared(self) -> bool:
        """As `Cache.is_shared`."""
        return self._cache is not None and self._cache.is_shared

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the cache and keep it open until cancelled.

        Raises:
            UnusableCache: there is no such cache, or its settings are wrong; before it is started.
        """
        made = await trio.to_thread.run_sync(find_cache, self._name, self._extra)
        try:
            cache = made(self._settings)
        except ValueError as error:
            raise UnusableCache(f"cache '{self._name}': {error}") from None
        try:
            await self._guarded(cache.open)
            self._cache = cache
            task_status.started()
            await trio.sleep_forever()
        finally:
            self._cache = None
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_GRACE_SECONDS):
                try:
                    await cache.close()
                except Exception:  # a cache that cannot be closed must not spoil the server's end
                    logger.exception("cache '%s' failed to close", self._name)

    def generation(self, directory: ModelDirectory, config: ModelConfig) -> bytes:
        """Distinguishes the loads of a model: in a cache of this server alone each is different, in a shared one those
        with other files or another configuration. Reads the files' metadata and a little of each, so it blocks."""
        if not self.is_shared:
            return secrets.token_bytes(KEY_BYTES)
        files = fingerprint(directory)
        return files_generation(files, content_sample(directory, files), to_json_form(config))

    async def look_up(self, key: bytes) -> tuple[list[Tensor], dict[str, ParameterValue]] | None:
        """Outputs and parameters of a response; None on a miss or a failure."""
        cache = self._cache
        if cache is None or not self._is_up():
            return None
        found = await self._guarded(lambda: cache.look_up(key))
        if found is None:
            return None
        try:
            return decode_response(found)
        except BadEntry as error:
            self._log(f"an entry is broken: {error}")
            return None

    async def insert(self, key: bytes, response: InferenceResponse) -> bool:
        """Store a response; False if there was one already."""
        cache = self._cache
        if cache is None or not self._is_up():
            return True
        return await self._guarded(lambda: cache.insert(key, encode_response(response))) is not False

    async def _guarded(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """The result of the call, or None if it fails or takes too long."""
        with trio.move_on_after(CALL_TIMEOUT_SECONDS):
            try:
                return await call()
            except CacheError as error:
                self._fail(str(error))
            except Exception as error:  # whatever an implementation raises concerns no request
                self._fail(text_of(error))
            return None
        self._fail(f"no answer within {CALL_TIMEOUT_SECONDS:g} s")
        return None

    def _is_up(self) -> bool:
        return trio.current_time() >= self._retry_at

    def _fail(self, reason: str) -> None:
        self._retry_at = trio.current_time() + RETRY_SECONDS
        self._log(reason)

    def _log(self, reason: str) -> None:
        self._failures += 1
        now = trio.current_time()
        if now >= self._log_at:
            self._log_at = now + LOG_INTERVAL_SECONDS
            logger.error(
                "cache '%s': %s; requests run without it (failures so far: %d)", self._name, reason, self._failures
            )


class VersionCache:
    """One load of a model version's view of the cache. `key` is its part of all keys (`version_key`).

    A caller that is cancelled while its response is being stored may leave it unstored.
    """

    def __init__(self, cache: ResponseCache, key: bytes, version: int) -> None:
        self._cache = cache
        self._key = key
        self._version = version

    def forget(self) -> None:
        """Invalidate everything that was stored before."""
        self._key = secrets.token_bytes(KEY_BYTES)

    async def infer(
        self,
        request: InferenceRequest,
        run: Callable[[InferenceRequest], Awaitable[InferenceResponse]],
        statistics: VersionStatistics,
    ) -> InferenceResponse:
        """The response from the cache, or that of `run`, which is then stored. Errors are not stored.

        The request need not have been checked: an equal one was, or there is no entry.
        """
        began = trio.current_time()
        key = await self._request_key(request)
        found = await self._cache.look_up(key)
        looked_up = trio.current_time()
        if found is not None:
            outputs, parameters = found
            statistics.count_cache_hit(looked_up - began)
            if request.trace is not None:
                request.trace.identify(self._version, request.id)
                for activity in (REQUEST_START, QUEUE_START, REQUEST_END):
                    request.trace.stamp(activity)
                request.trace.annotate({CACHED: True})
            return InferenceResponse(request.model_name, self._version, outputs, request.id, parameters)
        if request.trace is not None:
            request.trace.annotate({CACHED: False})
        response = await run(request)
        inserting = trio.current_time()
        if await self._cache.insert(key, response):
            statistics.count_cache_miss(looked_up - began + trio.current_time() - inserting)
        return response

    async def _request_key(self, request: InferenceRequest) -> bytes:
        if input_bytes(request) > DIGEST_IN_THREAD_ABOVE:
            return await trio.to_thread.run_sync(request_key, self._key, request)
        return request_key(self._key, request)
