"""Composes the jobs of a server from its settings: a store, what runs them on the core, and batches.

Part of the composition root; `trioton.server` owns what this module makes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import cast

import trio

from actors.core.server_core import ServerCore
from actors.jobs.background import BackgroundRequests
from actors.jobs.batches.batches import FullStore, ServerBatches
from actors.jobs.data.allowed import AllowedPlaces
from actors.jobs.data.files import JobFiles
from actors.jobs.inference import InferenceExecutor
from actors.jobs.jobs import ServerJobs
from actors.jobs.pace import Pace
from actors.jobs.registry import make_store
from actors.jobs.transfer import RowParts
from protocol.access.keys_file import KeysFile
from protocol.failures import CallbackFailures
from protocol.http.codec.job_rows import RowDecoder, result_line
from protocol.jobs.batches.batch import BATCH_KIND
from protocol.jobs.batches.store import BatchStore
from protocol.jobs.model_inputs import ModelInputs
from protocol.quotas.accounts import Account
from protocol.services import EdgeServices
from trioton.batch_service import batch_rules, line_executor
from trioton.job_webhooks import make_webhooks
from trioton.settings import Settings


@dataclass(frozen=True, slots=True)
class StartedJobs:
    """What runs of a server's jobs; no batches where the store keeps none."""

    jobs: ServerJobs
    batches: ServerBatches | None = None


async def start_jobs(
    place: str,
    settings: Settings,
    core: ServerCore,
    keys: KeysFile | None,
    services: EdgeServices,
    failures: CallbackFailures,
    nursery: trio.Nursery,
) -> StartedJobs:
    """The jobs that are kept at this place, which run in this nursery. To be called when the models are loaded: what
    was interrupted goes on at once. `services` are those of an edge, with which the lines of batches run.

    Raises:
        UnusableStore, UnusableSecrets: nothing runs.
    """
    store = await trio.to_thread.run_sync(make_store, place, settings.job_limits())
    account = partial(_account, keys)
    pace = Pace()
    background = BackgroundRequests(core, failures, pace)
    files: BatchStore | None = store if isinstance(store, BatchStore) else None
    executor = InferenceExecutor(core, account, background)
    lines = None if files is None else line_executor(settings, core, services, files, account, executor)
    jobs = ServerJobs(
        store,
        executor,
        max_seconds=settings.jobs_max_secs,
        keep_seconds=settings.jobs_keep_secs,
        most_in_flight=settings.jobs_max_in_flight,
        webhooks=await make_webhooks(settings, keys, store, failures),
        failures=failures,
        pace=pace,
        executors={} if lines is None else {BATCH_KIND: lines},
        rows=RowParts(
            JobFiles(AllowedPlaces(settings.job_places()), os.environ, result_line),
            executor,
            partial(_decoder, settings.http_max_input_size),
        ),
    )
    await nursery.start(background.run)
    await nursery.start(jobs.run)
    if files is None:
        return StartedJobs(jobs)
    batches = ServerBatches(cast(FullStore, store), jobs, batch_rules(settings, core, account), failures)
    await nursery.start(batches.run)
    return StartedJobs(jobs, batches)


def _decoder(max_input_size: int, inputs: ModelInputs, version: int) -> RowDecoder:
    return RowDecoder(inputs, version, max_input_size)


def _account(keys: KeysFile | None, name: str) -> Account | None:
    """That of a key; None where it is not in the file any more, or there is none."""
    try:
        return None if keys is None else keys.ledger.account(name)
    except KeyError:
        return None
