"""Public: the exceptions of the server and of plug-ins, one class for each kind of error.

Code that plugs in raises them to choose the kind; any other exception that it raises is reported as `Internal`. The
text is the whole message that a client reads: it should name the model and the field or tensor, what was expected and
what was received. The kinds and their statuses over HTTP and gRPC are those of Triton:

| class | HTTP | gRPC |
|---|---|---|
| `ServerError` itself | 400 | UNKNOWN |
| `Internal` | 500 | INTERNAL |
| `NotFound` | 404 | NOT_FOUND |
| `InvalidArgument` | 400 | INVALID_ARGUMENT |
| `Unavailable` | 503 | UNAVAILABLE |
| `Overloaded` | 503 | RESOURCE_EXHAUSTED |
| `Unsupported`, `Decoupled` | 501 | UNIMPLEMENTED |
| `AlreadyExists` | 400 | ALREADY_EXISTS |
| `Cancelled` | 400 | CANCELLED |
| `DeadlineExceeded` | 504 | DEADLINE_EXCEEDED |
"""

from __future__ import annotations

from protocol.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    Decoupled,
    Internal,
    InvalidArgument,
    NotFound,
    Overloaded,
    ServerError,
    Unavailable,
    Unsupported,
)

__all__ = [
    "AlreadyExists",
    "Cancelled",
    "DeadlineExceeded",
    "Decoupled",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "Overloaded",
    "ServerError",
    "Unavailable",
    "Unsupported",
]
