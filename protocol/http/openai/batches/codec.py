"""Bodies, queries and objects of files and batches. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.http.codec.jobs import WebhookForm
from protocol.http.openai.codec.reading import BodyReader, read_query
from protocol.http.openai.errors import FieldError
from protocol.jobs.batches.batch import BATCH_EVENTS, Batch, BatchState, LineError, TokenUsage
from protocol.jobs.batches.files import INPUT, StoredFile
from protocol.jobs.webhook import Webhook

ENDPOINTS = ("/v1/responses", "/v1/chat/completions", "/v1/embeddings", "/v1/completions")
MIN_EXPIRY, MAX_EXPIRY = 3600, 2_592_000
DEFAULT_PAGE, MAX_PAGE, MAX_FILES_PAGE = 20, 100, 10_000
# Files that a page has at most, whatever its limit: its client asks for the next one.
FILES_AT_ONCE = 1000

_ANCHOR = "created_at"
_MAX_METADATA, _MAX_KEY, _MAX_VALUE = 16, 64, 512
_WINDOW = "24h"


class _ExpiresAfter(msgspec.Struct):
    anchor: str
    seconds: int


class BatchRequest(msgspec.Struct):
    """The body that makes a batch. `webhook` is ours: OpenAI has them set up elsewhere."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: _ExpiresAfter | None = None
    webhook: WebhookForm | None = None

    def check(self) -> None:
        """Raises FieldError."""
        if self.endpoint not in ENDPOINTS:
            raise _unexpected("endpoint", f"one of {', '.join(ENDPOINTS)}", self.endpoint)
        if self.completion_window != _WINDOW:
            raise _unexpected("completion_window", f"'{_WINDOW}'", self.completion_window)
        metadata = self.metadata or {}
        if len(metadata) > _MAX_METADATA or any(
            len(key) > _MAX_KEY or len(value) > _MAX_VALUE for key, value in metadata.items()
        ):
            text = f"at most {_MAX_METADATA} texts of {_MAX_VALUE} characters, by names of {_MAX_KEY}"
            raise FieldError(f"'metadata': expected {text}", "metadata")

    @property
    def output_seconds(self) -> float:
        """0 where nothing is said. Raises FieldError."""
        given = self.output_expires_after
        return 0.0 if given is None else _expiry("output_expires_after", given.anchor, given.seconds)

    def checked_webhook(self) -> Webhook | None:
        """Raises InvalidArgument."""
        return None if self.webhook is None else self.webhook.read(BATCH_EVENTS)


BATCH_READER = BodyReader(BatchRequest, {})


def upload_seconds(fields: Mapping[str, str]) -> float:
    """How long an uploaded file is kept; 0 where the form does not say. Raises FieldError."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return 0.0
    if seconds is None or not (seconds.isascii() and seconds.isdigit()) or len(seconds) > 9:
        raise _unexpected("expires_after", "a whole number of seconds", str(seconds))
    return _expiry("expires_after", anchor or "", int(seconds))


def check_purpose(fields: Mapping[str, str]) -> None:
    """Raises FieldError."""
    if "purpose" not in fields:
        raise FieldError("'purpose': Field required", "purpose", "missing_required_parameter")
    if fields["purpose"] != INPUT:
        raise _unexpected("purpose", f"'{INPUT}'", fields["purpose"])


def _expiry(name: str, anchor: str, seconds: int) -> float:
    if anchor != _ANCHOR:
        raise _unexpected(f"{name}.anchor", f"'{_ANCHOR}'", anchor)
    if not MIN_EXPIRY <= seconds <= MAX_EXPIRY:
        raise _unexpected(f"{name}.seconds", f"from {MIN_EXPIRY} to {MAX_EXPIRY}", str(seconds))
    return float(seconds)


def _unexpected(name: str, expected: str, got: str) -> FieldError:
    return FieldError(f"'{name}': expected {expected}, got '{got:.100}'", name)


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted; `purpose` and `ascending` are of files."""

    after: str
    limit: int
    purpose: str = ""
    ascending: bool = False


def page_of(query: bytes, default: int = DEFAULT_PAGE, most: int = MAX_PAGE) -> Page:
    """Raises FieldError."""
    fields = read_query(query)
    text = fields.get("limit", str(default))
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 1 <= int(text) <= most:
        raise _unexpected("limit", f"a whole number from 1 to {most}", text)
    order = fields.get("order", "desc")
    if order not in ("asc", "desc"):
        raise _unexpected("order", "'asc' or 'desc'", order)
    return Page(fields.get("after", ""), int(text), fields.get("purpose", ""), order == "asc")


def list_json(members: Sequence[msgspec.Raw], ids: Sequence[str], *, has_more: bool) -> dict[str, Any]:
    """A page of things that are encoded, and their ids."""
    return {
        "object": "list",
        "data": members,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }


def file_json(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.byte_size,
        "created_at": int(file.created),
        "expires_at": int(file.expires),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_json(batch: Batch) -> dict[str, Any]:
    times = {f"{state}_at": _seconds(batch.times.get(state)) for state in BatchState if state != "validating"}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": {"object": "list", "data": list(map(_error_json, batch.errors))} if batch.errors else None,
        "input_file_id": batch.input_file,
        "completion_window": _WINDOW,
        "status": batch.state,
        "output_file_id": batch.output_file or None,
        "error_file_id": batch.error_file or None,
        "created_at": int(batch.created),
        "expires_at": int(batch.deadline),
        **times,
        "request_counts": {
            "total": batch.counts.total,
            "completed": batch.counts.completed,
            "failed": batch.counts.failed,
        },
        "usage": None if batch.usage is None else _usage_json(batch.usage),
        "metadata": batch.metadata or None,
    }


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


def _error_json(error: LineError) -> dict[str, Any]:
    return {"code": error.code, "line": error.line or None, "message": error.message, "param": error.param}


def _usage_json(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
