"""Flags of `trioton perf`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from protocol.messages import ParameterValue
from trioton.flags.fields import (
    INTEGER,
    PATH,
    STRING,
    choice,
    filesystem_path,
    flag,
    integer,
    repeatable,
    seconds,
    share,
    switch,
)
from trioton.perf.arrivals import Arrivals, Bursty, Constant, Poisson, from_file
from trioton.perf.bounds import Bound, LatencyBound, bounds, duration, latency_bound
from trioton.perf.data.inputs import GivenShape, given_shape
from trioton.perf.data.mixture import Weighted
from trioton.perf.load import Goodput
from trioton.perf.target import Wire
from trioton.settings import TOOLS

_RANGE = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?")
_MOST_LEVELS = 1000
RECORDED = "recorded"
POISSON: Arrivals | str = Poisson()


def given_levels(text: str) -> tuple[float, ...]:
    """`16`, `1,4,16`, `1:64` (doubled from one to the next) or `100:500:100`."""
    found = _RANGE.fullmatch(text)
    try:
        levels = tuple(float(word) for word in text.split(",")) if found is None else _ranged(*found.groups())
    except ValueError:
        levels = ()
    if not levels or min(levels) <= 0 or max(levels) > 1e7:
        raise ValueError("expected numbers above 0, as 16, 1,4,16, 1:64 (doubled) or 100:500:100 (start:end:step)")
    return levels


def _ranged(start: str, end: str, step: str | None) -> tuple[float, ...]:
    level, last, by = float(start), float(end), float(step or 0)
    levels: list[float] = []
    while 0 < level <= last and len(levels) < _MOST_LEVELS and (by > 0 or step is None):
        levels.append(level)
        level = level + by if by else 2 * level
    return tuple(levels)


def given_concurrency(text: str) -> tuple[int, ...]:
    levels = given_levels(text)
    if any(level != int(level) or level > 65_536 for level in levels):
        raise ValueError("expected whole numbers from 1 to 65536, as 16, 1,4,16 or 1:64 (doubled)")
    return tuple(int(level) for level in levels)


def given_arrivals(text: str) -> Arrivals | str:
    """`constant`, `poisson`, `bursty[:<variation>]`, `recorded`, or a file of gaps in microseconds."""
    word, _, value = text.partition(":")
    if text in ("constant", "poisson"):
        return Constant() if text == "constant" else Poisson()
    if text == RECORDED:
        return RECORDED
    if word == "bursty":
        variation = float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else (0.0 if value else 4.0)
        if not 0.1 <= variation <= 100:
            raise ValueError("expected bursty:<variation> from 0.1 to 100, such as bursty:4")
        return Bursty(variation)
    if not Path(text).is_file():
        raise ValueError("expected constant, poisson, bursty[:<variation>], recorded, or a file of gaps")
    return from_file(Path(text))


def given_goodput(text: str) -> Goodput:
    """`ttft:300ms,itl:50ms,latency:2s`."""
    names = {"ttft": "first", "itl": "gap", "latency": "latency"}
    found: dict[str, float] = {}
    for part in text.split(","):
        word, _, value = part.strip().partition(":")
        if word not in names:
            raise ValueError("expected bounds of a request, as ttft:300ms,itl:50ms,latency:2s")
        found[names[word]] = duration(value)
    return Goodput(**found)


def given_priorities(text: str) -> tuple[Weighted, ...]:
    """`1:0.2,2:0.8`."""
    try:
        pairs = [part.split(":") for part in text.split(",")]
        found = tuple(Weighted(int(level), float(share)) for level, share in pairs)
    except ValueError:
        found = ()
    if not found or abs(sum(each.share for each in found) - 1) > 1e-6 or min(each.value for each in found) < 1:
        raise ValueError("expected levels with shares that add up to 1, as 1:0.2,2:0.8")
    return found


def given_parameter(text: str) -> tuple[str, ParameterValue]:
    """`<name>=<value>`: a whole number, a number, true, false or text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError("expected <name>=<value>")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def given_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError("expected <name>: <value>")
    return name.strip(), value.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfFlags:
    """What `trioton perf` can be told."""

    model: str = flag("", str, group=TOOLS, metavar="<name>", help="The model.")
    version: str = flag("", str, group=TOOLS, metavar=INTEGER, help="Its version; where absent, the latest.")
    protocol: str = flag(
        "",
        choice(*(wire for wire in Wire if wire is not Wire.IN_PROCESS)),
        group=TOOLS,
        metavar="{http,grpc,stream,generate,openai}",
        help="How requests reach the model: http (where absent), grpc, stream (one gRPC stream for all requests), "
        "generate (the generate extension) or openai (chat or text completions).",
    )
    in_process: bool = switch(
        group=TOOLS, help="Measure without a wire: the repository's models run in this process, and are called in it."
    )
    server_flag: tuple[str, ...] = repeatable(
        str,
        group=TOOLS,
        metavar="<flag>",
        help="A flag for the server that is started for the measurement: --server-flag=--http-thread-count=4. May be "
        "given several times.",
    )
    concurrency: tuple[int, ...] | None = flag(
        None,
        given_concurrency,
        group=TOOLS,
        metavar="<levels>",
        help="Closed loops of so many requests at a time: 16, 1,4,16, 1:64 (doubled) or 4:16:4.",
    )
    rate: tuple[float, ...] | None = flag(
        None,
        given_levels,
        group=TOOLS,
        metavar="<levels>",
        help="Open loops of so many requests a second, whatever becomes of them; their latency counts from the moment "
        "that was planned. Levels as of --concurrency.",
    )
    arrivals: Arrivals | str = flag(  # noqa: RUF009 (a field, as its neighbours)
        POISSON,
        given_arrivals,
        group=TOOLS,
        metavar="<kind>",
        help="Of open loops: poisson (where absent), constant, bursty[:<variation>], recorded (at the times of the "
        "input data), or a file of gaps in microseconds. The last two have a rate of their own, without --rate.",
    )
    find_rate: bool = switch(
        group=TOOLS, help="Search for the greatest rate of an open loop at which --latency is kept."
    )
    latency: LatencyBound | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        latency_bound,
        group=TOOLS,
        metavar="<bound>",
        help="The bound of --find-rate: p99:20ms, mean:5ms, ttft.p95:300ms or itl.p99:50ms.",
    )
    require: tuple[Bound, ...] | None = flag(
        None,
        bounds,
        group=TOOLS,
        metavar="<bounds>",
        help="What one of the loads has to keep, else the exit code is 3: p99:20ms,rate:500,errors:0.01.",
    )
    goodput: Goodput | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        given_goodput,
        group=TOOLS,
        metavar="<bounds>",
        help="Count the requests that keep these bounds: ttft:300ms,itl:50ms,latency:2s.",
    )
    secs: float = flag(
        10.0,
        seconds,
        group=TOOLS,
        metavar="<seconds>",
        help="The longest that a load is measured; it ends before, when its figures are sure enough.",
    )
    total_secs: float = flag(
        60.0, seconds, group=TOOLS, metavar="<seconds>", help="How long a sweep or a search may take in all, about."
    )
    warmup_secs: float = flag(
        1.0,
        seconds,
        group=TOOLS,
        metavar="<seconds>",
        help="Load at the beginning that is not counted. It does not drain: what is in flight goes on.",
    )
    precision: float = flag(
        0.05,
        share,
        group=TOOLS,
        metavar="<number>",
        help="How sure is sure enough: half the width of the intervals of 95% confidence of the rate and the p95, as a "
        "part of them.",
    )
    requests: int | None = flag(
        None, integer(1), group=TOOLS, metavar=INTEGER, help="Measure exactly so many requests of each load."
    )
    senders: int = flag(
        1,
        integer(1, 256),
        group=TOOLS,
        metavar=INTEGER,
        help="Processes that send, each a part of the load, where one cannot send enough.",
    )
    connections: int = flag(1, integer(1, 1024), group=TOOLS, metavar=INTEGER, help="gRPC connections of each sender.")
    header: tuple[tuple[str, str], ...] = repeatable(
        given_header,
        group=TOOLS,
        metavar="<name>: <value>",
        help="Sent with every request. May be given several times.",
        is_secret=True,
    )
    path: str = flag(
        "", str, group=TOOLS, metavar=STRING, help="The path of requests over HTTP, where it is not the usual one."
    )
    tls: bool = switch(group=TOOLS, help="Speak TLS to the server.")
    ca_file: str = flag(
        "", str, group=TOOLS, metavar=PATH, help="Roots of certificates to trust in place of the system's."
    )
    metrics_url: str = flag(
        "",
        str,
        group=TOOLS,
        metavar="<url>",
        help="Where the server shows its metrics; none for nowhere. Where absent, its HTTP port and port 8002 are "
        "tried.",
    )
    request_timeout_secs: float = flag(
        60.0, seconds, group=TOOLS, metavar="<seconds>", help="A request without an answer for so long has failed."
    )
    input_data: tuple[str, ...] = repeatable(
        str,
        group=TOOLS,
        metavar="<source>",
        help="random (where absent), zero, warmup[:<model directory>] (the samples of the configuration), a .json in "
        "the form of perf_analyzer, a .npz, a folder of files, or a capture (.jsonl, .parquet). JSON files may be "
        "several.",
    )
    shape: tuple[GivenShape, ...] = repeatable(
        given_shape,
        group=TOOLS,
        metavar="<input>:<dims>",
        help="The sizes of an input with variable dims: ids:128 or ids:16-512. May be given several times.",
    )
    batch: int = flag(1, integer(1, 65_536), group=TOOLS, metavar=INTEGER, help="Rows of each request.")
    seed: int = flag(0, integer(0), group=TOOLS, metavar=INTEGER, help="Of random data and arrivals.")
    string_length: int = flag(
        128, integer(0, 1 << 20), group=TOOLS, metavar=INTEGER, help="Characters of random texts."
    )
    prompt_words: int = flag(
        128, integer(1, 1 << 20), group=TOOLS, metavar=INTEGER, help="Words of random prompts, with --protocol=openai."
    )
    max_tokens: int = flag(
        64, integer(1, 1 << 20), group=TOOLS, metavar=INTEGER, help="Tokens that are asked for with random prompts."
    )
    parameter: tuple[tuple[str, ParameterValue], ...] = repeatable(
        given_parameter,
        group=TOOLS,
        metavar="<name>=<value>",
        help="A parameter of every request. May be given several times.",
    )
    output: tuple[str, ...] = repeatable(
        str, group=TOOLS, metavar="<name>", help="An output that is asked for; where absent, all."
    )
    sequences: int = flag(
        0,
        integer(0, 65_536),
        group=TOOLS,
        metavar=INTEGER,
        help="Sequences at a time; where absent, as many as requests are in flight.",
    )
    sequence_length: int = flag(
        0,
        integer(0, 1 << 20),
        group=TOOLS,
        metavar=INTEGER,
        help="Requests of a sequence; where absent, those of the data, or 20.",
    )
    shared_memory: bool = switch(
        group=TOOLS, help="Put inputs and outputs into system shared memory, for a server on this machine."
    )
    output_shared_memory_bytes: int = flag(
        102_400, integer(1), group=TOOLS, metavar=INTEGER, help="Of each output's region."
    )
    cancel_share: float = flag(
        0.0, share, group=TOOLS, metavar="<number>", help="The share of requests that the client gives up."
    )
    cancel_after: float = flag(
        0.01, duration, group=TOOLS, metavar="<duration>", help="How long after their sending: 10ms."
    )
    priorities: tuple[Weighted, ...] = flag(
        (), given_priorities, group=TOOLS, metavar="<level>:<share>,…", help="Priorities of requests: 1:0.2,2:0.8."
    )
    timeout_microseconds: int = flag(
        0, integer(0), group=TOOLS, metavar=INTEGER, help="The timeout that requests carry; 0 for none."
    )
    json: bool = switch(group=TOOLS, help="Write the result as JSON, for programs.")
    csv: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None, filesystem_path, group=TOOLS, metavar=PATH, help="Write a row for each load as CSV into this file."
    )
    html: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=TOOLS,
        metavar=PATH,
        help="Write a page with plots into this file, which needs no network.",
    )
