"""What perf_analyzer prints: settings, the figures of each level, and the summary. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trioton.perf.server_side import ServerFigures
from trioton.perf_analyzer.csv_report import CsvSettings, general, send_microseconds
from trioton.perf_analyzer.gpu_metrics import GpuFigures
from trioton.perf_analyzer.options import Options, WindowKind
from trioton.perf_analyzer.profile import Profile
from trioton.perf_analyzer.windows import inference_rate

# Beyond so many seconds a request counts as sent late.
_LATE_NANOSECONDS = 1_000_000
# Below this share of them nothing is said.
_FEW = 0.01


def settings_text(options: Options) -> str:
    """The head of the output."""
    lines = ["*** Measurement Settings ***", f"  Batch size: {options.batch}"]
    lines.append(f"  Service Kind: {options.kind.upper()}")
    if options.request_count:
        lines.append(f"  Sending {options.request_count} benchmark requests")
    else:
        lines.append(f'  Using "{options.window}" mode for stabilization')
        judged = "average latency" if options.percent is None else f"p{options.percent} latency"
        lines.append(f"  Stabilizing using {'average throughput' if options.is_async else f'{judged} and throughput'}")
        if options.window is WindowKind.TIME:
            lines.append(f"  Measurement window: {options.window_seconds * 1000:.0f} msec")
        else:
            lines.append(f"  Minimum number of samples in each window: {options.window_requests}")
    if not options.levels.is_single:
        lines.append(f"  Latency limit: {options.latency_limit * 1000:.0f} msec")
        last = general(options.levels.end) if not options.levels.is_open else "no"
        unit = "requests per seconds" if options.is_rate else "concurrent requests"
        lines.append(f"  {'Request Rate' if options.is_rate else 'Concurrency'} limit: {last} {unit}")
    if options.is_binary_search:
        lines.append("  Using Binary Search algorithm")
    if options.rates is not None:
        lines.append(f"  Using {'poisson' if options.is_poisson else 'uniform'} distribution on request generation")
    lines.append("  Using asynchronous calls for inference")
    return "\n".join(lines)


def level_text(options: Options, level: float) -> str:
    """What is said before a level is measured."""
    if options.rates is not None:
        return f"Request Rate: {general(level)} inference requests per second"
    return "" if options.is_rate else f"Request concurrency: {general(level)}"


def profile_text(profile: Profile, options: Options, is_grpc: bool) -> str:
    """The figures of one level."""
    return "\n".join(_profile_lines(profile, options, is_grpc))


def summary_text(profiles: Sequence[Profile], options: Options) -> str:
    """A line for each level, in the order of measuring."""
    judged = "Average" if options.percent is None else f"p{options.percent}"
    lines = [f"Inferences/Second vs. Client {judged} Batch Latency"]
    name = "Request Rate" if options.is_rate else "Concurrency"
    for profile in profiles:
        rate = inference_rate(profile.figures)
        latency = _latency(profile, options.percent)
        lines.append(f"{name}: {general(profile.level)}, throughput: {general(rate)} infer/sec, latency {latency} usec")
    return "\n".join(lines)


def unstable_text(options: Options, level: float) -> str:
    """With the sentence that Model Analyzer looks for in `FAILED`."""
    name = "request rate" if options.is_rate else "concurrency"
    flag = "interval" if options.window is WindowKind.TIME else "request-count"
    return (
        f"Failed to obtain stable measurement within {options.trials} measurement windows for {name} {general(level)}. "
        f"Please try to increase the --measurement-{flag}."
    )


FAILED = "Failed to obtain stable measurement."


def _latency(profile: Profile, percent: int | None) -> int:
    histogram = profile.figures.latency
    return int((histogram.mean if percent is None else histogram.percentile(percent)) // 1000)


def _profile_lines(profile: Profile, options: Options, is_grpc: bool) -> Iterator[str]:
    figures = profile.figures
    yield "  Client: "
    yield f"    Request count: {figures.succeeded}"
    if profile.is_rate:
        yield f"    Avg send request rate: {figures.sent / max(figures.seconds, 1e-9):.2f} infer/sec"
        late = figures.lateness.count - figures.lateness.at_most(_LATE_NANOSECONDS)
        if late > _FEW * max(1, figures.lateness.count):
            share = late / figures.lateness.count
            yield (
                "    [WARNING] Perf Analyzer was not able to keep up with the desired request rate. "
                f"{share:.2%} of the requests were delayed. "
            )
    yield f"    Throughput: {general(inference_rate(figures))} infer/sec"
    if profile.is_decoupled:
        yield f"    Response Throughput: {general(figures.responses / max(figures.seconds, 1e-9))} infer/sec"
    mean = _latency(profile, None)
    if options.percent is None:
        yield f"    Avg latency: {mean} usec"
    for percent in CsvSettings(percent=options.percent).percents:
        yield f"    p{percent} latency: {_latency(profile, percent)} usec"
    if not profile.is_decoupled:
        sent = send_microseconds(figures)
        what = "gRPC time" if is_grpc else "HTTP time"
        parts = "(un)marshal request/response" if is_grpc else "send/recv"
        yield f"    Avg {what}: {mean} usec ({parts} {sent} usec + response wait {max(0, mean - sent)} usec)"
    if profile.server is not None:
        yield "  Server: "
        yield from _server_lines(profile.server, "    ", has_cache=profile.has_cache)
    if profile.gpu is not None:
        yield "  Server Prometheus Metrics: "
        yield from _gpu_lines(profile.gpu)


def _server_lines(server: ServerFigures, indent: str, *, has_cache: bool) -> Iterator[str]:
    yield f"{indent}Inference count: {server.inferences}"
    yield f"{indent}Execution count: {server.executions}"
    if has_cache:
        yield f"{indent}Cache hit count: {server.cache_hits}"
        yield f"{indent}Cache miss count: {server.cache_misses}"
    yield f"{indent}Successful request count: {server.succeeded}"
    parts = {
        "queue": server.queue,
        "compute input": server.compute_input,
        "compute infer": server.compute_infer,
        "compute output": server.compute_output,
    }
    if has_cache:
        parts |= {"cache hit": server.cache_hit, "cache miss": server.cache_miss}
    if server.composing:
        queue = sum(each.queue for each in server.composing)
        compute = sum(each.compute_input + each.compute_infer + each.compute_output for each in server.composing)
        parts = {"queue": queue, "compute": compute}
    overhead = max(0.0, server.request - sum(parts.values()))
    shown = " + ".join(f"{name} {seconds * 1e6:.0f} usec" for name, seconds in {"overhead": overhead, **parts}.items())
    yield f"{indent}Avg request latency: {server.request * 1e6:.0f} usec ({shown})"
    if server.composing:
        yield ""
        yield "  Composing models: "
        for each in server.composing:
            yield f"  {each.model}"
            yield from _server_lines(each, f"{indent}  ", has_cache=False)


def _gpu_lines(gpu: GpuFigures) -> Iterator[str]:
    columns = {
        "Avg GPU Utilization": [f"{uuid} : {value * 100:g}%" for uuid, value in gpu.utilization.items()],
        "Avg GPU Power Usage": [f"{uuid} : {value:g} watts" for uuid, value in gpu.power.items()],
        "Max GPU Memory Usage": [f"{uuid} : {value:.0f} bytes" for uuid, value in gpu.memory_used.items()],
        "Total GPU Memory": [f"{uuid} : {value:.0f} bytes" for uuid, value in gpu.memory_total.items()],
    }
    for name, values in columns.items():
        yield f"    {name}:"
        yield from (f"      {value}" for value in values)
