"""HAProxy's configuration for a fleet, as text. Pure.

Every backend has the same slots, all of them empty and disabled: replicas are put into them through the admin socket,
without a reload. A slot of the backend `health` is checked, and takes no requests; the others track it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trioton.fleet.flags import SequenceSource

CHECKED = "health"
READINESS = "/v2/health/ready"
# Those that requests of one protocol go to, by what becomes of them.
HTTP_BACKENDS = ("http", "http_canary", "http_sequence")
GRPC_BACKENDS = ("grpc", "grpc_canary", "grpc_sequence")
SEQUENCES = "sequences"
SHARE_KEY = "share"
# Of HAProxy's weights, which go up to 256.
FULL_WEIGHT = 100
CHECK_INTERVAL_MS, FALLS = 500, 2

# Larger than the default: the beginning of a body, in which an id is looked for, fits in.
_BUFFER_BYTES = 32768
_WINDOW_BYTES = 1 << 20
_STREAMS = 1024
_MOST_SEQUENCES = "500k"
_LONGEST_ID = 128

# What concerns all replicas; the supervisor asks all of them.
_MODELS_EXTENSIONS = (
    "^/v2/repository(/.*)?$",
    "^/v2/models/stats$",
    "^/v2/models/[^/]+(/versions/[0-9]+)?/stats$",
    "^/v2/(logging|trace/setting)$",
    "^/v2/models/[^/]+/trace/setting$",
    "^/v2/(system|cuda)sharedmemory/",
    "^/v1/(un)?load_lora_adapter$",
    "^/(sleep|wake_up)$",
)
_CALLS = ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "ModelStatistics")
_SHARED_MEMORY_CALLS = "(System|Cuda)SharedMemory(Status|Register|Unregister)"
_SERVICE = "/inference.GRPCInferenceService"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files as HAProxy wants them: `<file>` with the chain and `<file>.key` beside it."""

    file: Path
    client_roots: Path | None = None


@dataclass(frozen=True, slots=True)
class Frontend:
    """A socket that HAProxy inherits, listening."""

    fd: int
    tls: Certificates | None = None


@dataclass(frozen=True, slots=True)
class BalancerPlan:
    """What the configuration depends on.

    Attributes:
        control_http, control_grpc: where the supervisor's control listens, as host:port.
        script: the Lua script.
        check_headers: what replicas want to see where health is not for everybody.
        share_map: a file with the canary's share, in thousandths; its content is changed through the socket.
    """

    slots: int
    http: Frontend
    grpc: Frontend
    metrics: Frontend | None
    control_http: str
    control_grpc: str
    socket: Path
    script: Path
    share_map: Path
    sequences_from: SequenceSource = SequenceSource.BODY
    sequence_idle_secs: int = 600
    slow_start_secs: int = 10
    check_headers: Sequence[tuple[str, str]] = field(default=(), repr=False)


def slot_name(slot: int) -> str:
    return f"r{slot}"


def configuration(plan: BalancerPlan) -> str:
    """The whole file."""
    sections = [_global(plan), _DEFAULTS, _http_frontend(plan), _grpc_frontend(plan)]
    if plan.metrics is not None:
        sections.append(_metrics_frontend(plan.metrics))
    sections += [_sequence_table(plan), _health(plan)]
    sections += [_backend(plan, name, is_grpc=False) for name in HTTP_BACKENDS]
    sections += [_backend(plan, name, is_grpc=True) for name in GRPC_BACKENDS]
    sections.append(_section("backend control", [f"server supervisor {plan.control_http}"]))
    sections.append(_section("backend control_grpc", [f"server supervisor {plan.control_grpc} proto h2"]))
    return "\n".join(sections)


def _section(head: str, lines: Sequence[str]) -> str:
    return "\n".join([head, *(f"    {line}" for line in lines), ""])


def _global(plan: BalancerPlan) -> str:
    return _section(
        "global",
        [
            f"stats socket {plan.socket} mode 600 level admin expose-fd listeners",
            "stats timeout 1h",
            f"lua-load-per-thread {plan.script}",
            f"tune.bufsize {_BUFFER_BYTES}",
            f"tune.h2.initial-window-size {_WINDOW_BYTES}",
            f"tune.h2.max-concurrent-streams {_STREAMS}",
            "ssl-default-bind-options ssl-min-ver TLSv1.2",
        ],
    )


# What lasts for hours are streams. A request that could not reach its replica at all goes to another one.
_DEFAULTS = _section(
    "defaults",
    [
        "mode http",
        "timeout connect 5s",
        "timeout client 1h",
        "timeout server 1h",
        "timeout http-request 20s",
        "timeout http-keep-alive 75s",
        "timeout queue 30s",
        "timeout check 5s",
        "option http-no-delay",
        "retries 3",
        "retry-on conn-failure",
        "option redispatch 1",
        "http-reuse always",
    ],
)


def _bind(frontend: Frontend, protocols: str) -> str:
    if frontend.tls is None:
        return f"bind fd@{frontend.fd}" + (" proto h2" if protocols == "h2" else "")
    roots = frontend.tls.client_roots
    clients = "" if roots is None else f" ca-file {roots} verify required"
    return f"bind fd@{frontend.fd} ssl crt {frontend.tls.file} alpn {protocols}{clients}"


def _http_frontend(plan: BalancerPlan) -> str:
    lines = [_bind(plan.http, "h2,http/1.1"), *_header_sequence()]
    if plan.sequences_from is SequenceSource.BODY:
        lines += [
            r"acl inference path_reg ^/v2/models/[^/]+(/versions/[0-9]+)?/(infer|generate|generate_stream)$",
            "acl known var(txn.sequence) -m found",
            "http-request wait-for-body time 60s if METH_POST inference !known",
            "http-request lua.body_sequence if METH_POST inference !known",
        ]
    # As replicas read paths: percent-encoded letters are letters.
    lines += [*_dice(plan), *(f"acl for_all path,url_dec -m reg {pattern}" for pattern in _MODELS_EXTENSIONS)]
    return _section("frontend http", [*lines, "use_backend control if for_all", *_choice("http")])


def _grpc_frontend(plan: BalancerPlan) -> str:
    lines = [_bind(plan.grpc, "h2"), *_header_sequence()]
    if plan.sequences_from is SequenceSource.BODY:
        lines += [
            f"acl call path {_SERVICE}/ModelInfer",
            f"acl stream path {_SERVICE}/ModelStreamInfer",
            "acl known var(txn.sequence) -m found",
            "http-request wait-for-body time 60s if call !known",
            "http-request lua.message_sequence if call !known",
            "http-request lua.stream_sequence if stream !known",
        ]
    lines += [
        *_dice(plan),
        f"acl for_all path_reg ^{_SERVICE}/({'|'.join(_CALLS)}|{_SHARED_MEMORY_CALLS})$",
        "acl for_all path_reg ^/trioton.RepositoryControl/",
    ]
    return _section("frontend grpc", [*lines, "use_backend control_grpc if for_all", *_choice("grpc")])


def _metrics_frontend(frontend: Frontend) -> str:
    lines = ["http-request deny deny_status 404 unless { path /metrics }", "default_backend control"]
    return _section("frontend metrics", [_bind(frontend, "http/1.1"), *lines])


def _header_sequence() -> list[str]:
    """Without the quotes that make a text of digits: it is as good a key."""
    header = "req.hdr(x-sequence-id)"
    return [rf"http-request set-var(txn.sequence) {header},word(1,\\\") if {{ {header} -m found }}"]


def _dice(plan: BalancerPlan) -> list[str]:
    return [
        f"http-request set-var(txn.share) str({SHARE_KEY}),map_str_int({plan.share_map},0)",
        "http-request set-var(txn.over) rand(1000),sub(txn.share)",
    ]


def _choice(protocol: str) -> list[str]:
    """A sequence goes to where it is; of other requests the canary gets its share, as long as there is one."""
    canary = f"{protocol}_canary"
    return [
        "acl of_sequence var(txn.sequence) -m found",
        "acl in_share var(txn.over) -m int lt 0",
        f"use_backend {protocol}_sequence if of_sequence",
        f"use_backend {canary} if in_share {{ nbsrv({canary}) gt 0 }}",
        f"default_backend {protocol}",
    ]


def _sequence_table(plan: BalancerPlan) -> str:
    return _section(
        f"backend {SEQUENCES}",
        [f"stick-table type string len {_LONGEST_ID} size {_MOST_SEQUENCES} expire {plan.sequence_idle_secs}s"],
    )


def _health(plan: BalancerPlan) -> str:
    check = f"check inter {CHECK_INTERVAL_MS}ms fall {FALLS} rise 1 disabled"
    slots = [f"server {slot_name(slot)} 127.0.0.1:1 id {slot} {check}" for slot in range(1, plan.slots + 1)]
    headers = "".join(f" hdr {name} {_quoted(value)}" for name, value in plan.check_headers)
    lines = ["option httpchk", f"http-check send meth GET uri {READINESS}{headers}", "http-check expect status 200"]
    return _section(f"backend {CHECKED}", [*lines, *slots])


def _quoted(text: str) -> str:
    """As one word that is taken as it is: quotes as a shell has them, and a percent sign begins no variable."""
    return "'" + text.replace("%", "%%").replace("'", r"'\''") + "'"


def _backend(plan: BalancerPlan, name: str, *, is_grpc: bool) -> str:
    protocol = " proto h2" if is_grpc else ""
    if name.endswith("_sequence"):
        # The hash decides where a sequence begins; the table keeps it there when replicas come and go.
        lines = [
            "balance hash var(txn.sequence)",
            "hash-type consistent",
            f"stick on var(txn.sequence) table {SEQUENCES}",
        ]
        slow_start = ""
    else:
        lines = ["balance leastconn"]
        slow_start = f" slowstart {plan.slow_start_secs}s" if plan.slow_start_secs else ""
    for slot in range(1, plan.slots + 1):
        server = slot_name(slot)
        options = f"id {slot} weight {FULL_WEIGHT}{protocol}{slow_start} disabled track {CHECKED}/{server}"
        lines.append(f"server {server} 127.0.0.1:1 {options}")
    return _section(f"backend {name}", lines)
