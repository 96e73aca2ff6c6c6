"""The live console as a part of a server: made from the settings, told of failures, and shown the log.

Part of the composition root.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from actors.console.console import LiveConsole
from actors.core.server_core import ControlMode, ServerCore
from actors.jobs.figures import RunnerFigures
from protocol.failures import CallbackFailures
from protocol.log.failure_log import FailureLog
from trioton.log.server_log import PACKAGES
from trioton.settings import Settings

if TYPE_CHECKING:
    from trioton.edge_processes.messages import FailedCall


def live_console(
    settings: Settings,
    core: ServerCore,
    failures: CallbackFailures,
    failure_log: FailureLog,
    jobs: Callable[[], RunnerFigures | None],
) -> LiveConsole | None:
    """The console, where one was asked for."""
    if not settings.console:
        return None
    own = (socket.gethostname(), settings.http_address, *settings.console_host)
    refusal = (
        ""
        if settings.model_control_mode == ControlMode.EXPLICIT.value
        else "models are loaded and unloaded by calls only with --model-control-mode=explicit"
    )
    names = frozenset(name.lower() for name in own)
    console = LiveConsole(core, failures, names, refusal, lambda: _counted(jobs()))
    failure_log.on_failure = console.recent_errors.note
    return console


def note_failed(console: LiveConsole | None, failed: FailedCall) -> None:
    """Show a request that an edge process has answered with an error."""
    if console is not None:
        texts = failed.kind, failed.text
        console.recent_errors.add(failed.call, failed.status, texts, failed.model, failed.version, failed.id)


def _counted(figures: RunnerFigures | None) -> Mapping[str, int] | None:
    if figures is None or figures.store is None:
        return None
    return {state.value: count for state, count in figures.store.jobs.items()}


@contextmanager
def log_tail(console: LiveConsole | None) -> Iterator[None]:
    """Within this block the console sees what the server's packages log, wherever else that goes."""
    if console is None:
        yield
        return
    loggers = [logging.getLogger(name) for name in PACKAGES]
    for logger in loggers:
        logger.addHandler(console.log_tail)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(console.log_tail)
