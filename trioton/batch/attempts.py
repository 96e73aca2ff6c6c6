"""Attempts: runs one row on the model until it has succeeded or failed for good.

What is unavailable is tried again with back-off. A row whose model's process has died is tried again alone, as others
may have been to blame; one that was alone when that happened again has failed. Owned by the run; cancelled, a row is
given up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
import trio

from actors.jobs.feed import retry_seconds
from actors.jobs.responses import all_responses
from backends.interface import InstanceDied
from protocol.errors import Internal, ServerError, Unavailable, text_of
from protocol.jobs.job import ItemError
from protocol.jobs.rows import ResultRow
from protocol.jobs.source import Position
from protocol.messages import InferenceRequest, InferenceResponse
from trioton.batch.gate import Gate
from trioton.batch.openai_lines import RouteRequest, RouteResult, Routes
from trioton.in_process import Models

# So often the model's process may die with a row, the first time beside others, then alone.
MOST_DEATHS = 3


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A row of the input as a request, or why it is none. `end` is the position behind it."""

    index: int
    custom_id: str
    request: InferenceRequest | RouteRequest | ServerError
    end: Position


class ModelUnavailable(Exception):
    """The model has refused a row for too long, and answered no other one meanwhile; the text says why."""


@dataclass(slots=True)
class Attempts:
    """Of one run.

    Attributes:
        routes: for rows that are requests to routes; None where there can be none.
        patience: for how many seconds a row is tried again that the model refuses as unavailable.
        retries: how often rows were tried again.
    """

    models: Models
    is_decoupled: bool
    patience: float
    routes: Routes | None = None
    retries: int = 0
    _gate: Gate = field(default_factory=Gate)
    _answered_at: float = -math.inf

    async def run(self, row: RequestRow) -> ResultRow:
        """Raises ModelUnavailable."""
        request = row.request
        if isinstance(request, ServerError):
            return _failed(row, request)
        trying = _Trying(row)
        while True:
            try:
                async with self._gate.passed(alone=trying.deaths > 0):
                    result = await self._answer(row, request)
                self._answered_at = trio.current_time()
                return result
            except InstanceDied as error:
                trying.deaths += 1
                if trying.deaths >= MOST_DEATHS:
                    return _failed(row, _poison(trying.deaths, error))
            except Unavailable as error:
                if failed := await self._refused(trying, error):
                    return failed
            except ServerError as error:
                self._answered_at = trio.current_time()
                return _failed(row, error)
            except Exception as error:
                return _failed(row, Internal(f"internal error: {text_of(error)}"))
            self.retries += 1

    async def _refused(self, trying: _Trying, error: Unavailable) -> ResultRow | None:
        """Wait a while; or how the row has failed, if there is no more patience with it."""
        now = trio.current_time()
        trying.since = min(trying.since, now)
        left = trying.since + self.patience - now
        if left <= 0:
            if self._answered_at < trying.since:
                raise ModelUnavailable(error.message)
            return _failed(trying.row, error)
        trying.refusals += 1
        await trio.sleep(min(retry_seconds(trying.refusals - 1), left))
        return None

    async def _answer(self, row: RequestRow, request: InferenceRequest | RouteRequest) -> ResultRow:
        if isinstance(request, RouteRequest):
            assert self.routes is not None  # else no such rows are read
            return await self.routes.run(row.index, row.custom_id, request)
        responses = await self._infer(msgspec.structs.replace(request))
        return ResultRow(row.index, row.custom_id, responses)

    async def _infer(self, request: InferenceRequest) -> list[InferenceResponse]:
        if self.is_decoupled:
            return await all_responses(self.models, request)
        return [await self.models.infer(request)]


@dataclass(slots=True)
class _Trying:
    row: RequestRow
    deaths: int = 0
    refusals: int = 0
    since: float = math.inf  # the first refusal


def _failed(row: RequestRow, error: ServerError) -> ResultRow:
    make = RouteResult if isinstance(row.request, RouteRequest) else ResultRow
    return make(row.index, row.custom_id, error=ItemError(error.kind, error.message))


def _poison(deaths: int, error: InstanceDied) -> Internal:
    return Internal(f"the process of the model has died {deaths} times with this row, at last alone: {error.message}")
