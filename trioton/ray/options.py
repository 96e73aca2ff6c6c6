"""What a replica starts its server with: the `args` of an application in Serve's configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

# Flags that say what the fields of the options say, or what a replica could not be checked with.
_OWN_FLAGS = frozenset(
    {
        *(f"{service}-{what}" for service in ("http", "grpc", "metrics") for what in ("address", "port")),
        *("allow-http", "allow-grpc", "allow-metrics", "drain-secs", "exit-timeout-secs"),
        *("http-use-ssl", "metrics-use-ssl", "grpc-use-ssl", "grpc-use-ssl-mutual"),
    }
)


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a server.

    Attributes:
        flags: as `trioton serve` takes them: a list of words, or values by name (`{"model-repository": "s3://b/m"}`,
            and a list of values for one that may be repeated).
        command: what runs a server, before its flags, such as the executable of another environment; empty for the
            Python of the replica.
        environment: variables that are added to those of the replica.
        http_port, grpc_port, metrics_port: 0 for any that is free. Others want one replica on each node at most
            (`max_replicas_per_node: 1`).
        address: where the server listens, and is reached; empty for the node's.
        start_timeout_secs: how long it may take until it is ready.
        drain_secs: how long a server that is to end still takes requests, while those who balance learn of it.
        exit_timeout_secs: how long after that it may take to end, with the requests that are under way.
        directory: the name of the directory that it is entered in; empty for none.
        key_file: a file with the bearer key by which the replica loads and unloads models, where the server asks for
            one.
    """

    flags: Sequence[str] | Mapping[str, Any] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = {}
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    address: str = ""
    start_timeout_secs: float = 600.0
    drain_secs: int = 5
    exit_timeout_secs: int = 30
    directory: str = "trioton"
    key_file: str = ""

    @classmethod
    def parse(cls, args: Mapping[str, Any]) -> ServerOptions:
        """Raises ValueError: a field that is not known, or not what is expected."""
        try:
            options = msgspec.convert(dict(args), cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"args of trioton.ray:app: {error}") from None
        for name in ("http_port", "grpc_port", "metrics_port"):
            if not 0 <= (value := getattr(options, name)) <= 65_535:
                raise ValueError(f"args of trioton.ray:app: '{name}' is a port, expected 0 to 65535, got {value}")
        for name in ("start_timeout_secs", "drain_secs", "exit_timeout_secs"):
            if (value := getattr(options, name)) < 0:
                raise ValueError(f"args of trioton.ray:app: '{name}' must not be negative, got {value}")
        options.words()
        return options

    @property
    def end_secs(self) -> int:
        """How long a server takes at most from SIGTERM to its end."""
        return self.drain_secs + self.exit_timeout_secs

    def words(self) -> list[str]:
        """The flags as words. Raises ValueError."""
        words = list(_words_of(self.flags)) if isinstance(self.flags, Mapping) else list(self.flags)
        for word in words:
            name = word.removeprefix("--").partition("=")[0].replace("_", "-")
            if word.startswith("--") and name in _OWN_FLAGS:
                raise ValueError(f"args of trioton.ray:app: 'flags' must not hold --{name}: {_instead(name)}")
        return words

    def key(self) -> str:
        """The bearer key, or an empty text. Raises OSError."""
        return Path(self.key_file).read_text().strip() if self.key_file else ""


def _words_of(flags: Mapping[str, Any]) -> Sequence[str]:
    return [
        f"--{name.replace('_', '-')}={_text(name, value)}"
        for name, given in flags.items()
        for value in (given if isinstance(given, list | tuple) else (given,))
    ]


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(
        f"args of trioton.ray:app: flag '{name}' must be a text, a number, true, false or a list of those, "
        f"got {type(value).__name__}"
    )


def _instead(name: str) -> str:
    if "use-ssl" in name:
        return "end TLS at the balancer"
    if name.startswith("allow"):
        return "a replica serves HTTP, gRPC and metrics"
    field = "address" if name.endswith("address") else name.replace("-", "_")
    return f"it is the field '{field}' of args"
