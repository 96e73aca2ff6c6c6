"""Flags that the HTTP and the gRPC edge have in common. Part of `trioton.settings`.

The dataclass fields are made by functions, as those of `trioton.flags`; `trioton.flags.http` and `trioton.flags.grpc`
have the classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protocol.access.forwarding import HeaderForwarding
from protocol.access.restricted import Dialect, RestrictedApis, Restriction
from trioton.flags.fields import (
    BOOLEAN,
    INTEGER,
    PATH,
    STRING,
    UsageError,
    boolean,
    filesystem_path,
    flag,
    integer,
    port,
    repeatable,
)

MILLISECONDS = "<milliseconds>"
REGULAR_EXPRESSION = "<regular expression>"

ANYWHERE = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class EdgeFlags:
    """Makes the fields of one edge; `group` is the heading of its help text and the service's name."""

    group: str

    def allow(self) -> bool:
        return self.on_off(True, f"Serve {self.group}.")

    def address(self) -> str:
        return flag(ANYWHERE, str, group=self.group, metavar=STRING, help="The address to listen on.")

    def port(self, default: int) -> int:
        return flag(default, port, group=self.group, metavar=INTEGER, help="The port to listen on.")

    def reuse_port(self) -> bool:
        return self.on_off(False, "Let other processes listen on the same port; the system spreads the connections.")

    def on_off(self, default: bool, help: str) -> bool:
        return flag(default, boolean, group=self.group, metavar=BOOLEAN, help=help)

    def count(self, default: int, help: str, *, minimum: int = 1, maximum: int | None = None) -> int:
        return flag(default, integer(minimum, maximum), group=self.group, metavar=INTEGER, help=help)

    def milliseconds(self, default: int, help: str, *, minimum: int, maximum: int | None = None) -> int:
        return flag(default, integer(minimum, maximum), group=self.group, metavar=MILLISECONDS, help=help)

    def restrictions(self, dialect: Dialect, *, metavar: str, help: str) -> tuple[Restriction, ...]:
        return repeatable(
            partial(Restriction.parse, dialect=dialect),
            group=self.group,
            metavar=metavar,
            help=f"{help} May be given several times.",
            is_secret=True,
        )

    def header_forwarding(self, whose: str) -> HeaderForwarding | None:
        help = f"{whose} it matches become parameters of the inference request."
        return flag(None, HeaderForwarding, group=self.group, metavar=REGULAR_EXPRESSION, help=help)

    def certificate(self) -> Path | None:
        return self._file("The server's certificate, with those between it and the root, in PEM form.")

    def key(self) -> Path | None:
        return self._file("The private key of the server's certificate, in PEM form.")

    def root_certificate(self, more: str = "") -> Path | None:
        return self._file(f"The certificate that vouches for clients, in PEM form{more}.")

    def _file(self, help: str) -> Path | None:
        return flag(None, filesystem_path, group=self.group, metavar=PATH, help=help)


def refuse_files_without_tls(files: Mapping[str, Path | None], needed: str) -> None:
    """Certificates that nobody would use are refused: someone believes that they are. `files` are flags by name.

    Raises:
        UsageError: one is given.
    """
    for name, path in files.items():
        if path is not None:
            raise UsageError(f"{name} needs {needed}")


def check_restrictions(flag_name: str, restrictions: Sequence[Restriction], dialect: Dialect) -> None:
    """Raises UsageError where they contradict each other."""
    try:
        RestrictedApis(restrictions, dialect)
    except ValueError as error:
        raise UsageError(f"{flag_name}: {error}") from None
