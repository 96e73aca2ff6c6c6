"""`trioton fleet`: flags → a fleet → exit code. Signals are as for one server."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import trio

from trioton.flags.fields import Flag, UsageError
from trioton.fleet.balancer import CannotBalance
from trioton.fleet.driver import CannotStart
from trioton.fleet.flags import FleetFlags
from trioton.fleet.fleet import CannotListen, Fleet
from trioton.fleet.supervisor import CannotServe
from trioton.fleet.words import FLEET_TABLE, fleet_words
from trioton.log.server_log import logging_to
from trioton.serve_words import escapes_log, serve_table

logger = logging.getLogger("trioton.fleet")

_FAILED = 1
_FAILURES = (CannotBalance, CannotListen, CannotServe, CannotStart)


def fleet_table() -> Sequence[Flag]:
    """The flags of the command."""
    return (*FLEET_TABLE, *serve_table())


def run_fleet(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Serve until a signal; answers the exit code, 0 for an orderly end.

    Raises:
        UsageError: see `trioton.flags`; flags of servers that a fleet cannot have.
    """
    flags, server_words = fleet_words(words, environment)
    settings = server_words.settings(environment)
    fleet = Fleet(flags, server_words, settings, environment, _key(flags))
    try:
        with logging_to(replace(settings, log_escape=escapes_log(environment))):
            return trio.run(_run, fleet)
    except OSError as error:  # only the log file is opened out here
        print(f"cannot write the log to '{settings.log_file}': {error.strerror}", file=sys.stderr)
        return _FAILED


async def _run(fleet: Fleet) -> int:
    code = 0
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_on_signals, fleet, signals, nursery.cancel_scope)
            try:
                await fleet.run()
            except* _FAILURES as group:
                logger.error("%s", _first(group))
                code = _FAILED
            if nursery.cancel_scope.cancel_called:
                code = _FAILED
            nursery.cancel_scope.cancel()
    return code


async def _end_on_signals(fleet: Fleet, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    logger.info("Signal (%d) received.", await anext(signals))
    fleet.end()
    logger.error("Signal (%d) received again. Exiting immediately.", await anext(signals))
    scope.cancel()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _key(flags: FleetFlags) -> str:
    """Raises UsageError."""
    if flags.fleet_key_file is None:
        return ""
    try:
        key = Path(flags.fleet_key_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"--fleet-key-file: '{flags.fleet_key_file}' cannot be read: {reason}") from None
    if not key or not key.isascii() or any(character.isspace() for character in key):
        raise UsageError(f"--fleet-key-file: '{flags.fleet_key_file}' holds no key, expected one word of ASCII")
    return key
