"""Composes the batches of a server from its settings: what runs their lines, and what keeps them, on the jobs' store.

Part of the composition root; `trioton.server` owns what this module makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from actors.core.server_core import ServerCore
from actors.jobs.batches.batches import BatchRules
from actors.jobs.inference import InferenceExecutor
from protocol.errors import Unavailable
from protocol.http.openai.batches.execution import LineExecutor
from protocol.http.openai.batches.source import FileReader, LineSource, NoFiles
from protocol.http.openai.targets import find_target
from protocol.quotas.accounts import Account
from protocol.quotas.quota import Unit
from protocol.services import EdgeServices
from trioton.settings import Settings

FindAccount = Callable[[str], Account | None]


def line_executor(
    settings: Settings,
    core: ServerCore,
    services: EdgeServices,
    files: FileReader | None = None,
    account: FindAccount = lambda _: None,
    jobs: InferenceExecutor | None = None,
) -> LineExecutor:
    """What runs the lines of batches, with the services of an edge. Without files only `run_body` may be called. With
    what runs jobs, inferences wait there for room beside live requests; else they run at once."""
    return LineExecutor(
        services,
        replace(settings.http_edge(), openai=settings.openai()),
        LineSource(files or NoFiles()),
        lowest_priority=core.lowest_priority,
        load_of=core.load_of if jobs is None else jobs.load_of,
        account=account,
        infer_beside=None if jobs is None else jobs.infer,
    )


def batch_rules(settings: Settings, core: ServerCore, account: FindAccount) -> BatchRules:
    separator = settings.openai().lora_separator

    async def model_of(name: str | None) -> str:
        try:
            return (await find_target(core, name, separator)).model
        except Unavailable:
            return name or ""  # it is there, and may be ready when its lines run

    def charge(owner: str, model: str, lines: int) -> None:
        found = account(owner)
        if found is not None:
            charged = found.resume(model)
            charged.settle(Unit.REQUESTS, lines, taken=1)
            charged.goes_on = True
            charged.end()

    return BatchRules(model_of, charge, settings.http_max_input_size, settings.jobs_keep_files_secs)
