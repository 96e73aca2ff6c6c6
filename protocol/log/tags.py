"""Tags of log lines: what a line belongs to (a request, a model and its version, an instance), beside its text.

They travel as the attribute `tags` of a log record, so that every format shows them in its own way; a line whose text
begins with a name for people has the text without it in `body`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from protocol.messages import LATEST_VERSION, InferenceRequest
from protocol.origin import Origin
from protocol.server_settings import Trace

Tag: TypeAlias = str | int | tuple[str, ...]
Tags: TypeAlias = Mapping[str, Tag]
TagsNow: TypeAlias = Callable[[], Tags]
"""Of the only request that what comes now can be about; none where there may be others."""

# The names that there are, in the order in which lines show them.
TAGS = (*("request_id", "request_ids", "request_count", "trace_id", "span_id", "key", "model", "version", "instance"),)
# Of the ids of a batch's requests.
_MOST_IDS = 8


def tagged(**tags: Tag) -> dict[str, Any]:
    """The argument `extra` of a line with these tags; empty ones are left out."""
    return {"tags": {name: value for name, value in tags.items() if value}}


def tags_of(request: InferenceRequest) -> dict[str, str]:
    """What a line says of the request that it belongs to. To be called for a line that is written."""
    version = "" if request.model_version == LATEST_VERSION else str(request.model_version)
    named = {"model": request.model_name, "version": version}
    return {**{name: value for name, value in named.items() if value}, **tags_by(*found_by(request))}


FoundBy: TypeAlias = tuple[Origin | None, str, Trace | None]


def found_by(request: InferenceRequest) -> FoundBy:
    """What its tags are made of, which may outlive its tensors."""
    return request.origin, request.id, request.trace


def tags_by(origin: Origin | None, own_id: str, trace: Trace | None) -> dict[str, str]:
    """As `tags_of`, but for the model."""
    tags = {"request_id": own_id} if origin is None else msgspec.structs.asdict(origin.tags(own_id))
    context = None if trace is None else trace.context()
    if context is not None:
        with suppress(msgspec.MsgspecError, KeyError, ValueError):
            _, tags["trace_id"], tags["span_id"], _ = msgspec.json.decode(context)["traceparent"].split("-")
    return {name: value for name, value in tags.items() if value}


def tags_of_batch(requests: Sequence[InferenceRequest]) -> Tags:
    """What a line says of the requests of a batch, one of which it may be about: of several the first ids."""
    if len(requests) == 1:
        return tags_by(*found_by(requests[0]))
    each = (_id_of(request) for request in requests[:_MOST_IDS])
    return {"request_ids": tuple(filter(None, each)), "request_count": len(requests)} if requests else {}


def _id_of(request: InferenceRequest) -> str:
    return request.id if request.origin is None else request.origin.tags(request.id).request_id


def of_call(origin: Origin, own_id: str = "", **more: str) -> dict[str, str]:
    """As `tags_of`, for a call whose request could not be read."""
    tags = {**msgspec.structs.asdict(origin.tags(own_id)), **more}
    return {name: value for name, value in tags.items() if value}


def about(request: InferenceRequest) -> dict[str, Any]:
    """The argument `extra` of a line about a request."""
    return {"tags": tags_of(request)}


class TaggedLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines all have some tags."""

    def __init__(self, logger: logging.Logger, tags: Tags) -> None:
        super().__init__(logger, {"tags": tags})
        self.tags = tags

    def of_instance(self, name: str) -> TaggedLog:
        """The same for the lines of one instance."""
        return TaggedLog(self.logger, {**self.tags, "instance": name})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        given = kwargs.get("extra") or {}
        kwargs["extra"] = {**given, "tags": {**self.tags, **given.get("tags", {})}}
        return msg, kwargs

    def handle(self, record: logging.LogRecord, tags: Tags) -> None:
        """Log a record that was made elsewhere, with these tags too. Its level is on."""
        vars(record)["tags"] = {**self.tags, **tags}
        self.logger.handle(record)
