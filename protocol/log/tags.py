"""Tags of log lines: what a line belongs to (a request, a model and its version, an instance), beside its text.

They travel as the attribute `tags` of a log record, so that every format shows them in its own way; a line whose text
begins with a name for people has the text without it in `body`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from protocol.messages import LATEST_VERSION, InferenceRequest
from protocol.origin import Origin

Tags: TypeAlias = Mapping[str, str]
Log: TypeAlias = "logging.Logger | logging.LoggerAdapter[logging.Logger]"

# The names that there are, in the order in which lines show them.
TAGS = ("request_id", "trace_id", "span_id", "key", "model", "version", "instance")


def tagged(**tags: str) -> dict[str, Any]:
    """The argument `extra` of a line with these tags; empty ones are left out."""
    return {"tags": {name: value for name, value in tags.items() if value}}


def tags_of(request: InferenceRequest) -> dict[str, str]:
    """What a line says of the request that it belongs to. To be called for a line that is written."""
    version = "" if request.model_version == LATEST_VERSION else str(request.model_version)
    tags = {"model": request.model_name, "version": version}
    if request.origin is not None:
        tags.update(msgspec.structs.asdict(request.origin.tags(request.id)))
    elif request.id:
        tags["request_id"] = request.id
    context = None if request.trace is None else request.trace.context()
    if context is not None:
        with suppress(msgspec.MsgspecError, KeyError, ValueError):
            _, tags["trace_id"], tags["span_id"], _ = msgspec.json.decode(context)["traceparent"].split("-")
    return {name: value for name, value in tags.items() if value}


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

    def place(self, level: int, filename: str, line: int, name: str, text: str, tags: Tags) -> None:
        """Log a line that was written at that place, by what bears the name. The level is on."""
        logger = self.logger
        record = logger.makeRecord(logger.name, level, filename, line, "%s: %s", (name, text), None)
        record.tags = {**self.tags, **tags}
        record.body = text
        logger.handle(record)
