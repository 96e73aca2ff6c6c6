"""Composes the jobs of a server from its settings: a store, and what runs them on the core.

Part of the composition root; `trioton.server` owns what this module makes.
"""

from __future__ import annotations

from functools import partial

import trio

from actors.core.server_core import ServerCore
from actors.jobs.background import BackgroundRequests
from actors.jobs.inference import InferenceExecutor
from actors.jobs.jobs import ServerJobs
from actors.jobs.registry import make_store
from protocol.access.keys_file import KeysFile
from protocol.failures import CallbackFailures
from protocol.quotas.accounts import Account
from trioton.settings import Settings


async def start_jobs(
    settings: Settings, core: ServerCore, keys: KeysFile | None, failures: CallbackFailures, nursery: trio.Nursery
) -> ServerJobs | None:
    """The jobs, which run in this nursery; None where they are not asked for. To be called when the models are loaded:
    what was interrupted goes on at once.

    Raises:
        UnusableStore: nothing runs.
    """
    if settings.jobs_store is None:
        return None
    store = await trio.to_thread.run_sync(make_store, settings.jobs_store, settings.job_limits())
    background = BackgroundRequests(core, failures)
    jobs = ServerJobs(
        store,
        InferenceExecutor(core, partial(_account, keys), background),
        max_seconds=settings.jobs_max_secs,
        keep_seconds=settings.jobs_keep_secs,
        most_in_flight=settings.jobs_max_in_flight,
        failures=failures,
    )
    await nursery.start(background.run)
    await nursery.start(jobs.run)
    return jobs


def _account(keys: KeysFile | None, name: str) -> Account | None:
    """That of a key; None where it is not in the file any more, or there is none."""
    try:
        return None if keys is None else keys.ledger.account(name)
    except KeyError:
        return None
