"""Targets: which model is measured, by which protocol, and where it serves."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from trioton.in_process import Models


class Wire(enum.StrEnum):
    """How requests reach the model."""

    HTTP = "http"  # KServe v2, with binary tensors
    GRPC = "grpc"
    STREAM = "stream"  # one gRPC stream for all requests: decoupled models, and what is answered in order
    GENERATE = "generate"  # the generate extension: text in JSON, one response or events
    OPENAI = "openai"  # chat or text completions, whose responses are events
    IN_PROCESS = "in-process"  # no wire: calls of the models of this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model on a server, or in this process.

    Attributes:
        address: host and port; empty where there is no wire.
        version: empty for the latest.
        path: of the generate extension or OpenAI's routes, where it is another than the usual one.
        headers: sent with every request.
        metrics_url: where the server shows its metrics; empty for its usual place, "none" for nowhere.
        tls: whether to speak TLS; `ca_file` holds the roots that are trusted, where they are not the system's.
        connections: how many a gRPC caller spreads its calls over.
        models: of this process, for `Wire.IN_PROCESS`.
        timeout_seconds: a call without an answer for so long has failed.
    """

    wire: Wire
    model: str
    address: str = ""
    version: str = ""
    path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    metrics_url: str = ""
    tls: bool = False
    ca_file: str = ""
    connections: int = 1
    timeout_seconds: float = 60.0
    models: Models | None = field(default=None, repr=False)
