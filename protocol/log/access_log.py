"""Access log: one line of JSON for each request that has ended, of either protocol, or for those that are chosen.

The edges ask `begin` for a record when a request arrives, which is mostly None, and tell `end` how it has ended. Where
only failures have lines nothing is measured before: their records are made at the end. docs/logging.md has the fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

import msgspec

from protocol.log.access_record import (
    BATCH_SIZE,
    CACHED,
    COMPUTE_NS,
    INPUT_TOKENS,
    INSTANCE,
    OUTPUT_TOKENS,
    QUEUE_NS,
    AccessRecord,
)
from protocol.origin import RequestTags

# Characters that are shown of a path, a name or an id, and of an error's text.
_LONGEST_NAME = 256
_LONGEST_TEXT = 512
_ENCODER = msgspec.json.Encoder()


class AccessMode(Enum):
    """Which requests have lines, beside failures and slow ones: none, one out of so many, or all."""

    OFF = "off"
    ERRORS = "errors"
    SAMPLE = "sample"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """With SAMPLE one request out of `every`; `slow_ms` adds those that take at least that long."""

    mode: AccessMode = AccessMode.OFF
    every: int = 1
    slow_ms: float | None = None


class Ended(msgspec.Struct):
    """How a request has ended, as its edge knows it. `status` is HTTP's number or gRPC's word;
    `is_cancelled`: its client has left, or has cancelled it."""

    protocol: str
    method: str
    path: str
    status: int | str
    tags: RequestTags
    own_id: str = ""
    model: str = ""
    version: str = ""
    client: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    is_cancelled: bool = False
    error: str = ""
    started_ns: int = 0


class AccessLine(msgspec.Struct, omit_defaults=True):
    """One line, its fields in this order; those that are not known are left out."""

    time: str
    protocol: str
    method: str
    path: str
    status: int | str
    duration_us: int
    bytes_in: int
    bytes_out: int
    cancelled: bool
    request_id: str = ""
    id: str = ""
    trace_id: str = ""
    span_id: str = ""
    key: str = ""
    client: str = ""
    model: str = ""
    version: str = ""
    instance: str = ""
    queue_us: int | None = None
    compute_us: int | None = None
    batch_size: int | None = None
    cached: bool | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""


class AccessLog:
    """The access log of one server. `write` takes a line with its end, and never waits.

    Attributes:
        is_on: some requests have lines.
        measures: some are measured from their beginning.
    """

    def __init__(
        self,
        policy: AccessPolicy,
        write: Callable[[bytes], None],
    ) -> None:
        self._policy = policy
        self._write = write
        self._slow_ns = None if policy.slow_ms is None else int(policy.slow_ms * 1e6)
        self._left = policy.every
        self.is_on = policy.mode is not AccessMode.OFF
        self.measures = self.is_on and (policy.mode is not AccessMode.ERRORS or policy.slow_ms is not None)

    def begin(self) -> AccessRecord | None:
        """The record of a request that has arrived; None where it has a line only if it fails."""
        if not self.measures:
            return None
        mode = self._policy.mode
        is_chosen = mode is AccessMode.ALL
        if mode is AccessMode.SAMPLE:
            self._left -= 1
            if not self._left:
                self._left = self._policy.every
                is_chosen = True
        return AccessRecord(is_chosen=is_chosen) if is_chosen or self._slow_ns is not None else None

    def end(self, record: AccessRecord | None, is_failed: bool, describe: Callable[[], Ended]) -> None:
        """A request has ended; to be called once it cannot end otherwise, and harmless when it is called again.

        `describe` is called only for a line that is written. Never raises: the response matters more.
        """
        if record is None:
            if not is_failed:
                return
            record = AccessRecord()
        if record.is_written:
            return
        record.is_written = True
        now = time.monotonic_ns()
        is_slow = self._slow_ns is not None and now - record.started_ns >= self._slow_ns
        if not (is_failed or record.is_chosen or is_slow):
            return
        try:
            self._write(encode(record, describe(), now))
        except Exception as error:
            self._write(_ENCODER.encode({"error": f"an access line could not be written: {error!r}"[:200]}) + b"\n")


OFF = AccessLog(AccessPolicy(), lambda line: None)


def encode(record: AccessRecord, ended: Ended, now_ns: int) -> bytes:
    """The line, with its end."""
    facts, tags = record.facts, ended.tags
    queue_ns, compute_ns = facts.get(QUEUE_NS, record.queue_ns), facts.get(COMPUTE_NS, record.compute_ns)
    line = AccessLine(
        f"{datetime.now(UTC).isoformat(timespec='microseconds').removesuffix('+00:00')}Z",
        ended.protocol,
        ended.method,
        _shown(ended.path),
        ended.status,
        (now_ns - (ended.started_ns or record.started_ns)) // 1000,
        ended.bytes_in,
        ended.bytes_out,
        ended.is_cancelled,
        tags.request_id,
        _shown(ended.own_id) if ended.own_id != tags.request_id else "",
        tags.trace_id,
        tags.span_id,
        tags.key,
        ended.client,
        _shown(ended.model),
        record.version or ended.version,
        _text(facts.get(INSTANCE)),
        _microseconds(queue_ns),
        _microseconds(compute_ns),
        _number(facts.get(BATCH_SIZE)),
        bool(facts[CACHED]) if CACHED in facts else None,
        _number(facts.get(INPUT_TOKENS)),
        _number(facts.get(OUTPUT_TOKENS)),
        _shown(" ".join(ended.error.split()), _LONGEST_TEXT),
    )
    return _ENCODER.encode(line) + b"\n"


def _shown(text: str, most: int = _LONGEST_NAME) -> str:
    """Cut, and without lone surrogates, which have no UTF-8 form."""
    text = text if len(text) <= most else f"{text[:most]}..."
    return text.encode("utf-8", "backslashreplace").decode()


def _microseconds(ns: object) -> int | None:
    return ns // 1000 if isinstance(ns, int) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
