"""Header forwarding: request headers that match a pattern become parameters of the inference request.

`--http-header-forward-pattern` and `--grpc-header-forward-pattern` hold a pattern for header names. The syntax and the
engine are RE2, as in Triton: matching takes time linear in the name, whatever pattern an operator and whatever names a
client think of. Python's `re` takes exponential time for some patterns, even on short names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from protocol.errors import InvalidArgument
from protocol.messages import ParameterValue

# Parameters with a meaning of their own; a header must not set them.
RESERVED_NAMES = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)
RESERVED_PREFIX = "triton_"

# Longer names are not forwarded.
MAX_NAME_LENGTH = 256
# Clients send few different names; those that send many do not get to fill the memory.
MAX_REMEMBERED_NAMES = 1024


class HeaderForwarding:
    """A pattern for names of headers; an empty one forwards nothing.

    A name matches if the pattern matches a part of it, in any letter case; `(?-i)` at the start of the pattern switches
    that off. Names in HTTP/2 and gRPC are always in lower case.

    Raises:
        ValueError: the pattern is none of RE2's, or RE2 is not installed.
    """

    __slots__ = ("_decisions", "_matches", "is_empty", "pattern")

    def __init__(self, pattern: str = "") -> None:
        self.pattern = pattern
        self._matches = _compiled(pattern) if pattern else None
        # No header is ever forwarded; an edge then need not decode them.
        self.is_empty = self._matches is None
        self._decisions: dict[str, bool] = {}

    def parameters(self, headers: Iterable[tuple[str, str]]) -> dict[str, str]:
        """The parameters that these headers make, by the names as they were sent.

        The values of a name that comes several times are joined with `, ` (RFC 9110, 5.3). `put_over` puts the
        parameters over those in the request's body: what a proxy sets, a client cannot forge.

        Raises:
            InvalidArgument: a header that matches has a name that is reserved.
        """
        forwarded: dict[str, str] = {}
        for name, value in headers:
            if not self._is_forwarded(name):
                continue
            if name.lower() in RESERVED_NAMES or name.lower().startswith(RESERVED_PREFIX):
                raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
            forwarded[name] = f"{forwarded[name]}, {value}" if name in forwarded else value
        return forwarded

    def _is_forwarded(self, name: str) -> bool:
        if self._matches is None:
            return False
        decision = self._decisions.get(name)
        if decision is None:
            # Names that begin with a colon are parts of the request line (RFC 9113, 8.3), not headers.
            decision = len(name) <= MAX_NAME_LENGTH and not name.startswith(":") and self._matches(name)
            if len(name) <= MAX_NAME_LENGTH and len(self._decisions) < MAX_REMEMBERED_NAMES:
                self._decisions[name] = decision
        return decision


def put_over(parameters: dict[str, ParameterValue], forwarded: Mapping[str, str]) -> None:
    """Put what headers have made over the parameters of a request's body, in place.

    Letter case means nothing in a header's name, so a parameter that differs in nothing else goes, too: a model that
    looks for `x-user` must not find the client's word where the proxy has sent `X-User`.
    """
    names = {name.lower() for name in forwarded}
    for name in [name for name in parameters if name.lower() in names]:
        del parameters[name]
    parameters.update(forwarded)


def _compiled(pattern: str) -> Callable[[str], bool]:
    import re2  # type: ignore[import-untyped]  # google-re2 has no annotations; most servers have no pattern

    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False  # they would go to stderr, past the log
    try:
        search = re2.compile(pattern, options).search
    except re2.error as exc:
        [reason] = exc.args
        raise ValueError(f"invalid header pattern: {reason.decode(errors='replace')}") from None
    except UnicodeEncodeError:
        raise ValueError("invalid header pattern: invalid UTF-8") from None
    return lambda name: name.isascii() and search(name) is not None
