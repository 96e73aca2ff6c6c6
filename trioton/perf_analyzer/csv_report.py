"""perf_analyzer's CSV: the report that Model Analyzer reads by the names of its columns. Pure.

Durations are in whole microseconds, rows in the order of their throughput. "Client Send" is the time from the moment
when a request was due until its bytes were given to the system; "Client Recv" is not told apart from the wait, and 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trioton.perf.figures import Figures
from trioton.perf.server_side import ServerFigures
from trioton.perf_analyzer.profile import Profile
from trioton.perf_analyzer.windows import inference_rate

PERCENTS = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class CsvSettings:
    """`percent`: another percentile, in place of the mean; `has_metrics`: whether GPU columns are wanted."""

    is_verbose: bool = False
    percent: int | None = None
    has_metrics: bool = False

    @property
    def percents(self) -> list[int]:
        return sorted({*PERCENTS, *(() if self.percent is None else (self.percent,))})


def csv_report(profiles: Sequence[Profile], settings: CsvSettings) -> str:
    """The whole file; the header is that of the first profile."""
    return _text([_row(profile, settings) for profile in _sorted(profiles)])


def composing_reports(profiles: Sequence[Profile]) -> dict[tuple[str, str], str]:
    """For each model of an ensemble, by its name and version, a file of its own."""
    found: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for profile in _sorted(profiles):
        for server in () if profile.server is None else profile.server.composing:
            rate = server.succeeded / profile.figures.seconds if profile.figures.seconds else 0.0
            row = {_level_name(profile): general(profile.level), "Inferences/Second": general(rate)}
            row |= _server_columns(server, server.request, 0, has_cache=profile.has_cache)
            found.setdefault((server.model, profile.versions.get(server.model, "1")), []).append(row)
    return {key: _text(rows) for key, rows in found.items()}


def general(value: float) -> str:
    """Six digits, as C++ writes a number."""
    return f"{value:g}"


def send_microseconds(figures: Figures) -> int:
    return int(figures.lateness.mean // 1000)


def _sorted(profiles: Sequence[Profile]) -> list[Profile]:
    return sorted(profiles, key=lambda profile: inference_rate(profile.figures))


def _level_name(profile: Profile) -> str:
    return "Request Rate" if profile.is_rate else "Concurrency"


def _row(profile: Profile, settings: CsvSettings) -> dict[str, str]:
    figures = profile.figures
    sent = 0 if profile.is_decoupled else send_microseconds(figures)
    mean = int(figures.latency.mean // 1000)
    row = {_level_name(profile): general(profile.level), "Inferences/Second": general(inference_rate(figures))}
    if profile.is_decoupled:
        row["Response Throughput"] = general(figures.responses / figures.seconds if figures.seconds else 0.0)
    if profile.server is None:
        row |= {"Client Send": str(sent), "Client Recv": "0"}
    else:
        row |= _server_columns(profile.server, figures.latency.mean / 1e9, sent, has_cache=profile.has_cache)
    for percent in settings.percents:
        row[f"p{percent} latency"] = str(int(figures.latency.percentile(percent) // 1000))
    if settings.is_verbose:
        if settings.percent is None:
            row["Avg latency"] = str(mean)
        row["request/response"] = str(sent)
        row["response wait"] = str(0 if profile.is_decoupled else max(0, mean - sent))
        if settings.has_metrics:
            row |= _gpu_columns(profile)
    return row


def _server_columns(server: ServerFigures, latency: float, sent: int, *, has_cache: bool) -> dict[str, str]:
    """`latency` in seconds, of which what is in no other column is the network's."""
    parts = {
        "Server Queue": server.queue,
        "Server Compute Input": server.compute_input,
        "Server Compute Infer": server.compute_infer,
        "Server Compute Output": server.compute_output,
    }
    if has_cache:
        parts |= {"Server Cache Hit": server.cache_hit, "Server Cache Miss": server.cache_miss}
    columns = {name: _microseconds(seconds) for name, seconds in parts.items()}
    network = max(0, _microseconds(latency) - sent - sum(columns.values()))
    shown = {"Client Send": sent, "Network+Server Send/Recv": network, **columns, "Client Recv": 0}
    return {name: str(value) for name, value in shown.items()}


def _gpu_columns(profile: Profile) -> dict[str, str]:
    gpu = profile.gpu
    columns: dict[str, Mapping[str, float]] = {
        "Avg GPU Utilization": {} if gpu is None else gpu.utilization,
        "Avg GPU Power Usage": {} if gpu is None else gpu.power,
        "Max GPU Memory Usage": {} if gpu is None else gpu.memory_used,
        "Total GPU Memory": {} if gpu is None else gpu.memory_total,
    }
    is_count = {"Max GPU Memory Usage", "Total GPU Memory"}
    return {
        name: "".join(f"{uuid}:{int(value) if name in is_count else general(value)};" for uuid, value in each.items())
        for name, each in columns.items()
    }


def _microseconds(seconds: float) -> int:
    return int(seconds * 1e6)


def _text(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    names = list(rows[0])
    return "".join(f"{','.join(line)}\n" for line in (names, *([row.get(name, "") for name in names] for row in rows)))
