"""A server as a process: signals and exit codes.

The first SIGINT or SIGTERM drains; a second one, or the end of the exit timeout, ends the process at once. The exit
code is 0 only if nothing was cut off. SIGUSR1 has the log files opened again. Source: Triton, "Start and exit".
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import NoReturn

import trio

from backends.free_memory import collect_less
from trioton.allocator import give_back_when_idle, keep_freed_memory
from trioton.descriptor_limit import raise_descriptor_limit
from trioton.ending import ExitTimeoutExpired
from trioton.garbage import collect_garbage, held_for_clients
from trioton.log.server_log import ServerLog, logging_to
from trioton.server import Server, StartError
from trioton.settings import Settings

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
REOPEN_SIGNAL = signal.SIGUSR1
# After the exit timeout everything is cancelled; what does not even end then (a thread that hangs in a framework) gets
# this much longer.
CANCEL_GRACE_SECONDS = 2.0
# A thread that computes in Python (reads configurations, tokenizes) gives the interpreter's lock up after so long where
# the loop waits for it: for each system call of a request. Python's own five milliseconds would be some twenty a
# request.
SWITCH_SECONDS = 0.001


def run_process(settings: Settings) -> int:
    """Serve until a signal; answers the exit code. Ends the process itself where an orderly end is not to be had."""
    keeps_memory = keep_freed_memory()
    sys.setswitchinterval(SWITCH_SECONDS)
    raise_descriptor_limit()
    try:
        with logging_to(settings) as log:
            return trio.run(_serve, settings, log, keeps_memory)
    except OSError as error:  # only the log file is opened out here
        print(f"cannot write the log to '{settings.log_file}': {error.strerror}", file=sys.stderr)
        return 1


async def _serve(settings: Settings, log: ServerLog, keeps_memory: bool) -> int:
    server = Server(settings, log)
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signals, server, signals)
            nursery.start_soon(_collect_less, server)
            if keeps_memory:
                nursery.start_soon(give_back_when_idle)
            nursery.start_soon(_reopen_logs, server)
            code = await _exit_code(server)
            nursery.cancel_scope.cancel()
    return code


async def _exit_code(server: Server) -> int:
    try:
        await server.run()
    except (StartError, ExitTimeoutExpired) as error:
        logger.error("%s", error)
        return 1
    except Exception:
        logger.exception("the server has failed")
        return 1
    return 0


async def _stop_on_signals(server: Server, signals: AsyncIterator[int]) -> None:
    first = await anext(signals)
    logger.info("Signal (%d) received.", first)
    server.stop()
    longest = server.settings.drain_secs + server.settings.exit_timeout_secs
    with trio.move_on_after(longest + CANCEL_GRACE_SECONDS):
        second = await anext(signals)
        logger.error("Signal (%d) received again. Exiting immediately.", second)
        end_process(1)
    logger.error("%s", ExitTimeoutExpired(server.cut_off))
    end_process(1)


async def _reopen_logs(server: Server) -> None:
    """On a signal, after which a log may have been moved away."""
    with trio.open_signal_receiver(REOPEN_SIGNAL) as signals:
        async for _ in signals:
            server.reopen_logs()


async def _collect_less(server: Server) -> None:
    await server.started.wait()
    collect_less()
    await collect_garbage(partial(held_for_clients, server.connections, server.memory))


def end_process(code: int) -> NoReturn:
    """End now, running no clean-up: worker processes notice that their server is gone and end too."""
    logging.shutdown()
    os._exit(code)
