"""Flags of `trioton demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trioton.flags.fields import INTEGER, PATH, filesystem_path, flag, port, switch

DEMO = "Demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What `trioton demo` can be told."""

    once: bool = switch(group=DEMO, help="End by itself, with exit code 0 only if all answers were right.")
    repository: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=DEMO,
        metavar=PATH,
        help="Where to build the models; where absent, ./.demo/models.",
    )
    http_port: int = flag(8000, port, group=DEMO, metavar=INTEGER, help="The port for HTTP.")
    grpc_port: int = flag(8001, port, group=DEMO, metavar=INTEGER, help="The port for gRPC.")
    metrics_port: int = flag(8002, port, group=DEMO, metavar=INTEGER, help="The port for metrics.")
