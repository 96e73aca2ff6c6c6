"""What is measured: the lines of the table. Everything else in the benchmark takes them from here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# http has its tensors as binary data, json all in JSON; stream is gRPC's ModelStreamInfer, shm gRPC with the tensors in
# system shared memory.
Protocol = Literal["http", "json", "grpc", "stream", "shm"]
Port = Literal["http", "grpc"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a model under a number of requests in flight."""

    model: str
    protocol: Protocol
    concurrency: int

    @property
    def label(self) -> str:
        return f"{self.model}/{self.protocol}/{self.concurrency}"

    @property
    def port(self) -> Port:
        """Where the server listens for it."""
        return "http" if self.protocol in ("http", "json") else "grpc"

    def is_under(self, path: str) -> bool:
        """Whether the label is `path` or starts with it, part by part: add_sub, add_sub/http, add_sub/http/1."""
        return f"{self.label}/".startswith(f"{path.rstrip('/')}/")


_GROUPS: tuple[tuple[str, Protocol, tuple[int, ...]], ...] = (
    ("add_sub", "http", (1, 4, 16, 64)),
    ("add_sub", "json", (16,)),
    ("add_sub", "grpc", (1, 4, 16, 64)),
    ("add_sub", "stream", (16,)),
    ("large", "http", (1, 8)),
    ("large", "grpc", (1, 8)),
    ("large", "shm", (1, 8)),
)
ROWS = tuple(Row(model, protocol, each) for model, protocol, concurrencies in _GROUPS for each in concurrencies)


def add_select(parser: argparse.ArgumentParser) -> None:
    """Give the command the option that `selected` reads."""
    parser.add_argument(
        "--select", action="append", metavar="ROW", help="rows under this, as add_sub or large/grpc/8; repeatable"
    )


def selected(parser: argparse.ArgumentParser, paths: Sequence[str] | None) -> list[Row]:
    """The rows under any of the paths, all where none is given; ends the command where there is none."""
    rows = [row for row in ROWS if paths is None or any(map(row.is_under, paths))]
    if not rows:
        parser.error(f"no row is under that; the rows are {', '.join(row.label for row in ROWS)}")
    return rows
