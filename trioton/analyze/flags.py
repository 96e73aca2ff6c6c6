"""Flags of `trioton analyze`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trioton.analyze.search.aim import Objective
from trioton.flags.fields import INTEGER, PATH, choice, filesystem_path, flag, integer, repeatable, switch
from trioton.perf.bounds import LatencyBound, latency_bound
from trioton.perf.data.inputs import GivenShape, given_shape
from trioton.settings import TOOLS

HALVING, OPTUNA = "halving", "optuna"


def _latency(text: str) -> LatencyBound:
    bound = latency_bound(text)
    if bound.subject != "latency":
        raise ValueError("expected a bound on the latency of whole requests, such as p99:20ms or mean:5ms")
    return bound


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("expected a number above 0")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeFlags:
    """What `trioton analyze` can be told."""

    model: str = flag("", str, group=TOOLS, metavar="<name>", help="The model that is analyzed.")
    latency: LatencyBound | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        _latency,
        group=TOOLS,
        metavar="<percentile>:<duration>",
        help="What latency has to keep, such as p99:20ms or mean:5ms.",
    )
    objective: str = flag(
        Objective.THROUGHPUT.value,
        choice(*(each.value for each in Objective)),
        group=TOOLS,
        metavar=f"{{{','.join(Objective)}}}",
        help="The greatest rate under --latency; or at --rate the least latency, or the least memory under --latency.",
    )
    rate: float = flag(
        0.0,
        _above_zero,
        group=TOOLS,
        metavar="<number>",
        help="Requests a second for the objectives latency and memory. Where absent, 70 % of what the model can do as "
        "it is configured for latency, and 95 % for memory.",
    )
    minutes: float = flag(
        10.0,
        _above_zero,
        group=TOOLS,
        metavar="<number>",
        help="How long it may take, in all. There is always an answer.",
    )
    output: Path | None = flag(  # noqa: RUF009
        None,
        filesystem_path,
        group=TOOLS,
        metavar=PATH,
        help="The folder of the results; where absent, <model>.analysis here. The same command goes on there after any "
        "end of the process.",
    )
    restart: bool = switch(group=TOOLS, help="Begin anew where there are results already.")
    search: str = flag(
        HALVING,
        choice(HALVING, OPTUNA),
        group=TOOLS,
        metavar=f"{{{HALVING},{OPTUNA}}}",
        help="How candidates are chosen; optuna needs the package of that name.",
    )
    input_data: tuple[str, ...] = repeatable(
        str,
        group=TOOLS,
        metavar="<data>",
        help="The requests: random, zero, warmup, or a path as trioton perf takes it. May be given several times. "
        "Where absent, random. Only given data is taken to repeat as that of clients does.",
    )
    shape: tuple[GivenShape, ...] = repeatable(
        given_shape,
        group=TOOLS,
        metavar="<input>:<size>,…",
        help="Sizes of an input whose shape varies, such as ids:16 or ids:1-64. May be given several times.",
    )
    batch: int = flag(1, integer(1, 65_536), group=TOOLS, metavar=INTEGER, help="Rows of each request.")
    largest_request: int | None = flag(
        None,
        integer(1, 65_536),
        group=TOOLS,
        metavar=INTEGER,
        help="Rows of the largest request that clients send: no smaller batch size is tried, which would refuse it. "
        "Where absent, the model's max_batch_size.",
    )
    protocol: str = flag(
        "grpc", choice("grpc", "http"), group=TOOLS, metavar="{grpc,http}", help="The protocol of the load."
    )
    seed: int = flag(0, integer(0, 2**32 - 1), group=TOOLS, metavar=INTEGER, help="Of random data and arrivals.")
    server_flag: tuple[str, ...] = repeatable(
        str,
        group=TOOLS,
        metavar="<flag>",
        help="A flag for the server that is measured, as in --server-flag=--host-policy=left,cpu-cores=0-3. May be "
        "given several times.",
    )
    model_analyzer_config: Path | None = flag(  # noqa: RUF009
        None,
        filesystem_path,
        group=TOOLS,
        metavar=PATH,
        help="A YAML file of NVIDIA's Model Analyzer in place of the repository, --model and --latency. What it asks "
        "for that is not done here is refused by name.",
    )
    live: str = flag(
        "",
        str,
        group=TOOLS,
        metavar="<host>:<port>",
        help="The HTTP address of a running server: proposals from what it tells of itself, without any load.",
    )
    live_secs: float = flag(
        60.0, _above_zero, group=TOOLS, metavar="<seconds>", help="How long --live watches the server."
    )
    trace_file: Path | None = flag(  # noqa: RUF009
        None,
        filesystem_path,
        group=TOOLS,
        metavar=PATH,
        help="With --live: a trace file of that server, from which arrivals and latencies are taken.",
    )
    verify: Path | None = flag(  # noqa: RUF009
        None,
        filesystem_path,
        group=TOOLS,
        metavar=PATH,
        help="With --live: a copy of the server's repository, from which a spare server replays the recorded arrivals "
        "with the configuration as it is and as it is proposed.",
    )
    candidate: str = flag(
        "", str, group=TOOLS, metavar="<name>", help="With apply: another candidate than the proposed one, by its name."
    )
    write: bool = switch(group=TOOLS, help="With apply: change the file, too.")
    json: bool = switch(group=TOOLS, help="Write the result as JSON, for programs.")
