"""The server's exceptions: one class for each kind of error, without HTTP or gRPC status codes.

Each edge holds one table from kind to its own status (`protocol.http.errors`, `protocol.grpc.status`). Foreign
exceptions become one of these beside the foreign call; whatever reaches an edge as another exception is a defect
of ours and is answered as INTERNAL.
"""

from __future__ import annotations

from typing import ClassVar


class ServerError(Exception):
    """A failure that is reported to the client. `message` is the whole text of the error response."""

    kind: ClassVar[str] = "UNKNOWN"
    # The word that Triton puts before a load error in the repository index.
    label: ClassVar[str] = "Unknown"
    # In how many seconds the same request may succeed; None where it will fail again. The edges tell it their clients.
    retry_after: float | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Internal(ServerError):
    """The server or a model failed; the client did nothing wrong."""

    kind = "INTERNAL"
    label = "Internal"


class NotFound(ServerError):
    """There is no such model, version, or other thing that was named."""

    kind = "NOT_FOUND"
    label = "Not found"


class InvalidArgument(ServerError):
    """The request is invalid, and will be again."""

    kind = "INVALID_ARG"
    label = "Invalid argument"


class InvalidField(InvalidArgument):
    """A field that the client has named is wrong, or cannot be honoured; `param` is its name, for interfaces whose
    errors have a place for that."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class Unavailable(ServerError):
    """Not now: stopping, overloaded, restarting, or not ready. The same request may succeed later."""

    kind = "UNAVAILABLE"
    label = "Unavailable"
    retry_after = 1.0  # whatever is in the way may be gone soon


class Overloaded(Unavailable):
    """Too many requests are in flight; the edges answer 503 as for its base, and RESOURCE_EXHAUSTED."""

    kind = "OVERLOADED"


class QuotaExceeded(ServerError):
    """The caller's key has used up what it may; the edges answer 429, and RESOURCE_EXHAUSTED.

    `limit` is the name of what it has reached, `fields` are header fields that tell of all of its limits.
    """

    kind = "QUOTA_EXCEEDED"
    label = "Quota exceeded"

    def __init__(
        self, message: str, *, retry_after: float, limit: str = "", fields: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.limit = limit
        self.fields = fields


class Unsupported(ServerError):
    """The server, or the model, cannot do this at all."""

    kind = "UNSUPPORTED"
    label = "Unsupported"


class NotHere(Unsupported):
    """This process cannot, and the one that runs the models can: an edge passes the call on to that."""


class Decoupled(Unsupported):
    """The model answers streaming requests only; each edge says so in its own words."""


class AlreadyExists(ServerError):
    """What was to be made is there already."""

    kind = "ALREADY_EXISTS"
    label = "Already exists"


class Cancelled(ServerError):
    """The client cancelled the request."""

    kind = "CANCELLED"
    label = "Cancelled"


class DeadlineExceeded(ServerError):
    """The deadline of the request passed before its response."""

    kind = "DEADLINE_EXCEEDED"
    label = "Deadline exceeded"


class PayloadTooLarge(InvalidArgument):
    """The request is larger than a limit of the server; the edges answer 413 and RESOURCE_EXHAUSTED."""

    kind = "PAYLOAD_TOO_LARGE"


class InsufficientStorage(ServerError):
    """There is no room to keep what is to be kept; the edges answer 507 and RESOURCE_EXHAUSTED."""

    kind = "INSUFFICIENT_STORAGE"
    retry_after = 60.0  # what has ended is forgotten, by and by


class Unauthenticated(ServerError):
    """No valid key came with the call; the edges answer 401 with `WWW-Authenticate: Bearer`, and UNAUTHENTICATED."""

    kind = "UNAUTHENTICATED"
    label = "Unauthenticated"


class Forbidden(ServerError):
    """The caller is known and may not make this call; the edges answer 403 and PERMISSION_DENIED."""

    kind = "FORBIDDEN"
    label = "Forbidden"


class Restricted(Forbidden):
    """The header that the call's category needs is missing or has another value; the edges answer 403 as for its
    base, but UNAVAILABLE in gRPC, as Triton does."""

    kind = "RESTRICTED"


KINDS: dict[str, type[ServerError]] = {
    cls.kind: cls
    for cls in (
        ServerError,
        Internal,
        NotFound,
        InvalidArgument,
        Unavailable,
        Overloaded,
        Unsupported,
        AlreadyExists,
        Cancelled,
        DeadlineExceeded,
        PayloadTooLarge,
        InsufficientStorage,
        Unauthenticated,
        Forbidden,
        Restricted,
    )
}


# Characters of a foreign exception's text, and of a name that a client gave.
_LONGEST_TEXT = 1 << 16
_LONGEST_NAME = 200
# Members of a client's value.
_MOST_SHOWN = 8


def text_of(error: BaseException) -> str:
    """`Type: text` of a foreign exception, for an error of ours. Never raises, though the exception's own code may."""
    try:
        text = str(error)
        if len(text) > _LONGEST_TEXT:
            text = f"{text[:_LONGEST_TEXT]} ... [{len(text)} characters in all]"
    except BaseException as failure:
        text = f"<no text: its __str__ raised {type(failure).__name__}>"
    return f"{type(error).__name__}: {text}"


def shown_name(name: str) -> str:
    """A model's name as a client gave it, for a text: cut where no model can have it."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def shown_value(value: object, most: int = 40) -> str:
    """A value of a client's JSON, for a text: so many characters, or its size where it is large or nests."""
    if isinstance(value, str):
        return repr(value[:most])[:most]
    if isinstance(value, list | dict):
        parts = value.values() if isinstance(value, dict) else value
        if len(value) > _MOST_SHOWN or any(isinstance(part, list | dict) for part in parts):
            return f"an object with {len(value)} members" if isinstance(value, dict) else f"a list of {len(value)}"
    return repr(value)[:most]


def told(error: ServerError) -> None:
    """The error has been made into a response: drop its traceback. Frames that it holds may hold the error, and the
    request, whose tensors would stay until that cycle is collected."""
    error.__traceback__ = None
