"""Codec of jobs: what their requests say beside the inference request, and pages of jobs. Pure.

Source: RFC 7240 (`Prefer`), the IETF's draft of `Idempotency-Key`; the rest is ours.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from protocol.errors import InvalidArgument
from protocol.http.codec.json_text import JsonReader
from protocol.jobs.job import MAX_CUSTOM_ID, Job
from protocol.jobs.job_json import job_json
from protocol.jobs.source import OUTPUT_FORMATS, DataFormat, DataPlace, JobSource, format_of
from protocol.jobs.states import JobState
from protocol.jobs.store import JobFilter
from protocol.jobs.webhook import JOB_EVENTS, Webhook, states_of
from protocol.messages import LATEST_VERSION, Buffer

IDEMPOTENCY_KEY = b"idempotency-key"
MAX_ITEMS = 10_000
MAX_PAGE = 100
DEFAULT_PAGE = 20
MAX_METADATA = 16
MAX_URL = 2048
# Of a body without requests: the two URLs and 16 metadata have less, however they are escaped.
MAX_SOURCE_BODY = 256 << 10
# Characters of a client's own text.
MAX_TEXT = 512
# However long a client would wait; proxies give up before.
MAX_WAIT_SECONDS = 600.0

_KEY = re.compile(rb"[ -~]{1,255}")


@dataclass(frozen=True, slots=True)
class Preferences:
    """What a client prefers: that the answer comes later, and how many seconds it waits for it at first."""

    is_async: bool = False
    wait: float | None = None

    @property
    def applied(self) -> bytes:
        """As `Preference-Applied` says it."""
        return b"respond-async" if self.wait is None else b"respond-async, wait=%g" % self.wait


def preferences(headers: Iterable[tuple[bytes, bytes]]) -> Preferences:
    """Of all headers `Prefer`. What cannot be read is no preference, as the first of a name counts."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name.lower() == b"prefer":
            for part in value.lower().split(b","):
                key, _, text = part.partition(b";")[0].partition(b"=")
                found.setdefault(key.strip(), text.strip().strip(b'"'))
    wait = found.get(b"wait", b"")
    return Preferences(b"respond-async" in found, _seconds(wait) if wait.isdigit() else None)


def _seconds(digits: bytes) -> float:
    return MAX_WAIT_SECONDS if len(digits) > 6 else min(float(digits), MAX_WAIT_SECONDS)


def idempotency_key(headers: Mapping[bytes, bytes]) -> str:
    """Empty for none. Raises InvalidArgument."""
    value = headers.get(IDEMPOTENCY_KEY)
    if value is None:
        return ""
    if not _KEY.fullmatch(value):
        raise InvalidArgument("Idempotency-Key must be 1 to 255 printable ASCII characters")
    return value.decode()


def fingerprint(what: str, header_length: bytes | None, body: Buffer) -> bytes:
    """The same for requests that are the same; `what` is what they ask for beside their body."""
    digest = hashlib.sha256(f"{what}\0".encode("utf-8", "surrogatepass"))
    digest.update((header_length or b"") + b"\0")
    digest.update(body)
    return digest.digest()


class ListedRequest(msgspec.Struct):
    """What a request in a list says beside the members of an inference request."""

    model_name: str
    model_version: str | int | None = None
    custom_id: Annotated[str, msgspec.Meta(max_length=MAX_CUSTOM_ID)] = ""

    @property
    def version(self) -> int:
        """Raises InvalidArgument."""
        if self.model_version in (None, ""):
            return LATEST_VERSION
        text = str(self.model_version)
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise InvalidArgument(
                f"'model_version' of model '{self.model_name:.128}': expected digits, got '{text:.40}'"
            )
        return int(text)


class WebhookForm(msgspec.Struct):
    """Who is to be told of a job, and of what."""

    url: str
    events: list[str] | None = None

    def read(self, known: Mapping[str, JobState] = JOB_EVENTS) -> Webhook:
        """Raises InvalidArgument: it wants to be told of an event that is not known."""
        if self.events is None:
            return Webhook(self.url, "")
        return Webhook(self.url, "", states_of(self.events, known))


class _JobBody(msgspec.Struct):
    """What bodies that make jobs have in common."""

    metadata: dict[str, Any] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    webhook: WebhookForm | None = None

    def checked_metadata(self) -> dict[str, str]:
        """Raises InvalidArgument."""
        found = self.metadata or {}
        texts = [*found, *found.values()]
        if len(found) > MAX_METADATA or not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts):
            raise InvalidArgument(
                f"'metadata': expected at most {MAX_METADATA} texts by name, none of more than {MAX_TEXT} characters"
            )
        return found

    def checked_webhook(self) -> Webhook | None:
        """Raises InvalidArgument."""
        return None if self.webhook is None else self.webhook.read()


class JobList(_JobBody, kw_only=True):
    """The body that makes a job of a list."""

    requests: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=MAX_ITEMS)]


class _Place(msgspec.Struct, forbid_unknown_fields=True):
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_URL)]
    format: str | None = None


class SourceBody(_JobBody, kw_only=True):
    """The body that makes a job whose rows come from files, and whose results go to others."""

    model_name: str
    model_version: str | int | None = None
    input: _Place
    output: _Place

    def source(self) -> JobSource:
        """Formats that are not given are known by names of files; that of the output else is JSON lines.

        Raises:
            InvalidArgument: what is wrong with it.
        """
        named = ListedRequest(self.model_name, self.model_version)
        read = _format("input", self.input, format_of(self.input.url), tuple(DataFormat))
        written = _format("output", self.output, DataFormat.JSON_LINES, OUTPUT_FORMATS)
        return JobSource(
            named.model_name, DataPlace(self.input.url, read), DataPlace(self.output.url, written), named.version
        )


def _format(member: str, place: _Place, usual: DataFormat | None, allowed: Sequence[DataFormat]) -> DataFormat:
    if place.format is None and usual is not None:
        return usual
    if place.format not in {*allowed}:
        found = "none" if place.format is None else f"'{place.format:.40}'"
        raise InvalidArgument(f"'{member}.format': expected one of {', '.join(allowed)}, got {found}")
    return DataFormat(place.format)


class _Members(msgspec.Struct):
    """What tells the bodies apart."""

    requests: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    output: msgspec.Raw = msgspec.Raw(b"")


class _LooseJobList(msgspec.Struct):
    """One whose requests hold numbers that JSON has no word for."""

    requests: list[Any]
    metadata: Any = None
    timeout: Any = None
    webhook: Any = None


LIST_READER = JsonReader(JobList)
_MEMBERS = msgspec.json.Decoder(_Members)
read_source_body = JsonReader(SourceBody).read
_LOOSE_READER = JsonReader(_LooseJobList)


def has_source(body: Buffer) -> bool:
    """Whether a body is one of a job with a source."""
    if len(body) > MAX_SOURCE_BODY:
        return False
    try:
        members = _MEMBERS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # it is told of by whoever reads all of it
        return False
    return bool(members.input or members.output) and not members.requests


def read_job_list(body: Buffer) -> JobList:
    """Raises InvalidArgument."""
    try:
        return LIST_READER.read(body)
    except InvalidArgument:
        text = bytes(body)
        if b"NaN" not in text and b"Infinity" not in text:
            raise
    loose = _LOOSE_READER.read(body)
    head = {name: getattr(loose, name) for name in ("metadata", "timeout", "webhook")}
    checked = LIST_READER.read(json.dumps({**head, "requests": loose.requests and [0]}, default=str).encode())
    checked.requests = [msgspec.Raw(json.dumps(request).encode()) for request in loose.requests[: MAX_ITEMS + 1]]
    if len(checked.requests) > MAX_ITEMS:
        raise InvalidArgument(f"'requests': expected at most {MAX_ITEMS}, got {len(loose.requests)}")
    return checked


read_listed_request = JsonReader(ListedRequest).read


def timeout_of(query: Mapping[str, str]) -> float | None:
    """Raises InvalidArgument."""
    text = query.get("timeout")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not int(text):
        raise InvalidArgument(f"'timeout': expected a whole number of seconds of at least 1, got '{text:.40}'")
    return float(text)


def webhook_of(query: Mapping[str, str]) -> Webhook | None:
    """Raises InvalidArgument."""
    url, events = query.get("webhook"), query.get("webhook_events")
    if url is None:
        return None
    return WebhookForm(url, None if events is None else events.split(",")).read()


@dataclass(frozen=True, slots=True)
class PageRequest:
    which: JobFilter
    after: str
    limit: int


def page_of(query: Mapping[str, str]) -> PageRequest:
    """Raises InvalidArgument."""
    words = [word for word in query.get("state", "").split(",") if word]
    for word in words:
        if word not in {*JobState}:
            raise InvalidArgument(f"'state': expected one or more of {', '.join(JobState)}, got '{word:.40}'")
    text = query.get("limit", str(DEFAULT_PAGE))
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MAX_PAGE or len(text) > 9:
        raise InvalidArgument(f"'limit': expected a whole number from 1 to {MAX_PAGE}, got '{text:.40}'")
    which = JobFilter(frozenset(map(JobState, words)), query.get("model", ""))
    return PageRequest(which, query.get("after", ""), int(text))


def page_json(jobs: Sequence[Job], limit: int) -> dict[str, Any]:
    """`next` is what `after` is to be for the next page, where there may be one."""
    page: dict[str, Any] = {"object": "list", "jobs": [job_json(job) for job in jobs]}
    if len(jobs) == limit:
        page["next"] = jobs[-1].id
    return page
