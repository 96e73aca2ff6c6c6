"""Failure log: one log line for each inference request that is answered with an error: request, status, time taken.

Both edges log through one `FailureLog`. The level tells the server's faults from the client's, whose mistakes are
logged with `--log-verbose` only. Text from clients and models is escaped and cut, so that none can forge a line or fill
the disk, and each kind of error has a token bucket.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from protocol.errors import ServerError, text_of
from protocol.limits.flood import FloodGuard
from protocol.log.tags import Tags, tagged, tags_of
from protocol.messages import LATEST_VERSION, InferenceRequest

logger = logging.getLogger(__name__)

# The failures of the server and its models, and those of its capacity; all other kinds are mistakes of the client.
_LEVELS = {
    "INTERNAL": logging.ERROR,
    "UNKNOWN": logging.ERROR,
    "UNAVAILABLE": logging.WARNING,
    "OVERLOADED": logging.WARNING,
    "DEADLINE_EXCEEDED": logging.WARNING,
}
# Of each kind of error.
LINES_PER_SECOND = 10
# Characters that are shown of a name or an id, and of an error's text.
_LONGEST_NAME = 128
_LONGEST_TEXT = 512


class FailedRequest(NamedTuple):
    """What is known of the request: nothing if it could not be parsed. `seconds` since it arrived, None if that was not
    measured; `tags` are those of its line."""

    model_name: str = ""
    model_version: str = ""
    id: str = ""
    seconds: float | None = None
    tags: Tags = MappingProxyType({})

    @classmethod
    def of(cls, request: InferenceRequest, seconds: float | None) -> FailedRequest:
        version = request.model_version
        number = "" if version == LATEST_VERSION else str(version)
        return cls(request.model_name, number, request.id, seconds, tags_of(request))


OnFailure: TypeAlias = Callable[[str, object, Exception, Callable[[], FailedRequest]], None]
"""Told of a request that failed, with what `FailureLog.note` is."""


class FailureLog:
    """The failure log of one server. `clock` gives seconds and never goes back; `on_failure` is told of every failure,
    whether there is a line for it or not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_failure: OnFailure | None = None
        self._clock = clock
        self._buckets: dict[str, FloodGuard] = {}
        self._left_out: Counter[str] = Counter()

    def note(self, call: str, status: object, error: Exception, describe: Callable[[], FailedRequest]) -> None:
        """Log a request that is answered with `error`, unless its level is off or the rate limit is reached.

        `describe` is called only for a line that is written, or for `on_failure`. Never raises: the response matters
        more.
        """
        if self.on_failure is not None:
            try:
                self.on_failure(call, status, error, describe)
            except Exception:
                logger.exception("a failed request could not be kept for people to see")
        kind = error.kind if isinstance(error, ServerError) else "INTERNAL"
        level = _LEVELS.get(kind, logging.DEBUG)
        if not logger.isEnabledFor(level):
            return
        bucket = self._buckets.get(kind)
        if bucket is None:
            bucket = self._buckets[kind] = FloodGuard(LINES_PER_SECOND)
        if not bucket.passes(self._clock()):
            self._left_out[kind] += 1
            return
        try:
            self._report_left_out(kind, level)
            failed = describe()
            named = {"model": failed.model_name[:_LONGEST_NAME], "version": failed.model_version[:_LONGEST_NAME]}
            extra = tagged(**{**named, **failed.tags})
            logger.log(level, "%s", _line(call, status, error, failed), extra=extra)
        except Exception:
            logger.exception("the line of a failed request could not be written")

    def close(self) -> None:
        """The server ends: log how many lines were suppressed since the last."""
        for kind in list(self._left_out):
            self._report_left_out(kind, _LEVELS.get(kind, logging.DEBUG))

    def _report_left_out(self, kind: str, level: int) -> None:
        if count := self._left_out.pop(kind, 0):
            logger.log(level, "%d more requests failed with %s, whose lines were left out", count, kind)


def _line(call: str, status: object, error: Exception, failed: FailedRequest) -> str:
    text = error.message if isinstance(error, ServerError) else text_of(error)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}..."
    taken = "" if failed.seconds is None else f", after {failed.seconds * 1e3:.3f} ms"
    return (
        f"{call} failed: model {_quoted(failed.model_name)}, version {_quoted(failed.model_version or 'latest')}, "
        f"id {_quoted(failed.id)}, status {status}{taken}: {repr(' '.join(text.split()))[1:-1]}"
    )


def _quoted(text: str) -> str:
    """As a Python literal: in quotes, and without line ends, control characters and lone surrogates."""
    return repr(text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}...")
