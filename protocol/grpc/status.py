"""gRPC status codes for errors, and the encoding of `grpc-message`."""

from __future__ import annotations

import logging

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.metadata import encode_grpc_message

from protocol.errors import ServerError, told
from protocol.log.tags import Tags

logger = logging.getLogger(__name__)

_STATUS_OF_KIND = {
    "UNKNOWN": Status.UNKNOWN,
    "INTERNAL": Status.INTERNAL,
    "NOT_FOUND": Status.NOT_FOUND,
    "INVALID_ARG": Status.INVALID_ARGUMENT,
    "UNAVAILABLE": Status.UNAVAILABLE,
    "OVERLOADED": Status.RESOURCE_EXHAUSTED,
    "QUOTA_EXCEEDED": Status.RESOURCE_EXHAUSTED,
    "UNSUPPORTED": Status.UNIMPLEMENTED,
    "ALREADY_EXISTS": Status.ALREADY_EXISTS,
    "CANCELLED": Status.CANCELLED,
    "DEADLINE_EXCEEDED": Status.DEADLINE_EXCEEDED,
    "PAYLOAD_TOO_LARGE": Status.RESOURCE_EXHAUSTED,
    "INSUFFICIENT_STORAGE": Status.RESOURCE_EXHAUSTED,
    "UNAUTHENTICATED": Status.UNAUTHENTICATED,
    "FORBIDDEN": Status.PERMISSION_DENIED,
    "RESTRICTED": Status.UNAVAILABLE,
}

UNEXPECTED = "the server failed unexpectedly; its log has the details"

# Clients drop a response whose headers are large (8 KiB by default), and the whole text with them.
MAX_STATUS_MESSAGE = 4096


def status_of(error: Exception, where: str, tags: Tags | None = None) -> tuple[Status, str]:
    """The status and text for an error; one that is not a `ServerError` is a defect, logged with its traceback.

    `where` names the call for the log, whose line has the `tags`. The error loses its traceback
    (`protocol.errors.told`).
    """
    match error:
        case ServerError():
            told(error)
            return code_of(error), error.message
        case GRPCError():
            return error.status, error.message or error.status.name
        case _:
            logger.error("%s failed unexpectedly", where, exc_info=error, extra={"tags": tags or {}})
            return code_of(error), UNEXPECTED


def code_of(error: Exception) -> Status:
    """The status for an error; INTERNAL for one that is not ours."""
    match error:
        case ServerError():
            return code_of_kind(error.kind)
        case GRPCError():
            return error.status
        case _:
            return Status.INTERNAL


def code_of_kind(kind: str) -> Status:
    """The status for the kind of a `ServerError`."""
    return _STATUS_OF_KIND.get(kind, Status.UNKNOWN)


def encode_status_message(message: str) -> str:
    """Percent-encoded as `grpc-message` wants it, and shortened where it would not fit a client's header limit."""
    message = message.encode(errors="replace").decode()  # lone surrogates of file names have no encoding
    encoded = encode_grpc_message(message)
    while len(encoded) > MAX_STATUS_MESSAGE:
        message = message[: len(message) * MAX_STATUS_MESSAGE // len(encoded) - 16] + " ..."
        encoded = encode_grpc_message(message)
    return encoded
