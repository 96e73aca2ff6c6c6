"""CSV, export and printed text: columns as the original has them, which was run against the same server."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from tests.trioton.perf_analyzer.figures import profile
from trioton.perf.server_side import ServerFigures
from trioton.perf_analyzer.csv_report import CsvSettings, composing_reports, csv_report
from trioton.perf_analyzer.gpu_metrics import GpuFigures, GpuSamples
from trioton.perf_analyzer.options import Options, Range, WindowKind
from trioton.perf_analyzer.printed import profile_text, settings_text, summary_text, unstable_text
from trioton.perf_analyzer.profile import Exchange, Profile
from trioton.perf_analyzer.profile_export import export_pieces

# Headers of perf_analyzer 2.60.
PLAIN = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)
VERBOSE = f"{PLAIN},Avg latency,request/response,response wait"
METRICS = f"{VERBOSE},Avg GPU Utilization,Avg GPU Power Usage,Max GPU Memory Usage,Total GPU Memory"
DECOUPLED = VERBOSE.replace("Inferences/Second,", "Inferences/Second,Response Throughput,")
PERCENTILE = (
    PLAIN.replace("Concurrency", "Request Rate").replace("p99", "p97 latency,p99") + ",request/response,response wait"
)
COMPOSING = PLAIN.partition(",p50")[0]
CACHED = PLAIN.replace("Server Compute Output,", "Server Compute Output,Server Cache Hit,Server Cache Miss,")
SERVER = ServerFigures(
    model="m", succeeded=10, request=0.004, queue=0.001, compute_input=1e-4, compute_infer=2e-3, compute_output=1e-4
)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize(
    ("settings", "more", "header"),
    [
        (CsvSettings(), {}, PLAIN),
        (CsvSettings(is_verbose=True), {}, VERBOSE),
        (CsvSettings(is_verbose=True, has_metrics=True), {}, METRICS),
        (CsvSettings(is_verbose=True), {"is_decoupled": True}, DECOUPLED),
        (CsvSettings(is_verbose=True, percent=97), {"is_rate": True}, PERCENTILE),
        (CsvSettings(percent=95), {}, PLAIN),
        (CsvSettings(), {"has_cache": True}, CACHED),
    ],
)
def test_columns(settings: CsvSettings, more: dict[str, Any], header: str) -> None:
    text = csv_report([profile(1, [5.0] * 10, server=SERVER, **more)], settings)
    assert text.splitlines()[0] == header


def test_without_statistics_of_the_server() -> None:
    (row,) = rows(csv_report([profile(1, [5.0])], CsvSettings()))
    assert list(row)[:4] == ["Concurrency", "Inferences/Second", "Client Send", "Client Recv"]


def test_rows_are_in_the_order_of_throughput() -> None:
    text = csv_report([profile(1, [1.0] * 30), profile(2, [1.0] * 10), profile(3, [1.0] * 20)], CsvSettings())
    assert [(row["Concurrency"], row["Inferences/Second"]) for row in rows(text)] == [
        ("2", "10"),
        ("3", "20"),
        ("1", "30"),
    ]


def test_columns_add_up_to_the_latency() -> None:
    (row,) = rows(csv_report([profile(1, [5.0] * 10, server=SERVER)], CsvSettings(is_verbose=True)))
    parts = [name for name in row if name.startswith(("Client", "Network", "Server"))]
    assert sum(int(row[name]) for name in parts) == int(row["Avg latency"]) == 5000
    assert row["Server Queue"] == "1000"
    assert int(row["request/response"]) + int(row["response wait"]) == 5000


def test_figures_of_gpus() -> None:
    gpu = GpuFigures({"GPU-a": 0.25, "GPU-b": 0.5}, {"GPU-a": 30.5}, {"GPU-a": 1e10}, {"GPU-a": 2e10})
    settings = CsvSettings(is_verbose=True, has_metrics=True)
    (row,) = rows(csv_report([profile(1, [5.0], gpu=gpu)], settings))
    assert row["Avg GPU Utilization"] == "GPU-a:0.25;GPU-b:0.5;"
    assert row["Max GPU Memory Usage"] == "GPU-a:10000000000;"


def test_samples_of_metrics() -> None:
    samples = GpuSamples()
    for number in (1, 3):
        samples.add(
            "# HELP nv_gpu_utilization x\n"
            f'nv_gpu_utilization{{gpu_uuid="G"}} 0.{number}\n'
            f'nv_gpu_memory_used_bytes{{a="b",gpu_uuid="G"}} {number}e6\n'
            f'nv_gpu_memory_total_bytes{{gpu_uuid="G"}} {number}\n'
            'nv_gpu_other{gpu_uuid="G"} 7\nnv_gpu_utilization{gpu_uuid="H"} nan\n'
        )
    assert samples.figures() == GpuFigures({"G": pytest.approx(0.2)}, {}, {"G": 3e6}, {"G": 1})  # type: ignore[dict-item]
    assert samples.missing == ["nv_gpu_power_usage"]


def test_a_file_for_each_model_of_an_ensemble() -> None:
    composing = (ServerFigures(model="a", succeeded=10, request=0.003, queue=0.001),)
    server = ServerFigures(model="m", succeeded=10, composing=composing)
    ((key, text),) = composing_reports([profile(2, [5.0], server=server, versions={"a": "3"})]).items()
    assert key == ("a", "3")
    assert text.splitlines() == [COMPOSING, "2,10,0,2000,1000,0,0,0,0"]


def exported(*profiles: Profile, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b"".join(export_pieces(profiles, Options(model="m", **more))))
    return found


def test_an_export() -> None:
    exchanges = [
        Exchange(sent=1, responses=[2, 3], inputs={"A": [1.0, float("nan")]}, outputs=[{"B": "x"}, {"B": ""}]),
        Exchange(sent=4, responses=[5], sequence_id=7),
    ]
    found = exported(profile(2, [1.0], exchanges=exchanges, boundaries=[0, 10]), profile(1.5, [1.0], is_rate=True))
    first, second = found["experiments"]
    assert found["service_kind"] == "triton"
    assert first == {
        "experiment": {"mode": "concurrency", "value": 2},
        "requests": [
            {
                "timestamp": 1,
                "request_inputs": {"A": [1.0, None]},
                "response_timestamps": [2, 3],
                "response_outputs": [{"B": "x"}, {"B": ""}],
            },
            {"timestamp": 4, "sequence_id": 7, "response_timestamps": [5], "response_outputs": []},
        ],
        "window_boundaries": [0, 10],
    }
    assert second["experiment"] == {"mode": "request_rate", "value": 1.5}


def test_what_is_printed() -> None:
    options = Options(model="m", is_grpc=True, concurrency=Range(1, 4, 1), window=WindowKind.COUNT)
    text = settings_text(options)
    assert "Minimum number of samples in each window: 50" in text
    assert "Concurrency limit: 4 concurrent requests" in text
    server = ServerFigures(model="m", composing=(SERVER,), request=0.005)
    shown = profile_text(profile(2, [5.0] * 10, server=server), options, is_grpc=True)
    assert "    Throughput: 10 infer/sec" in shown.splitlines()
    assert "(overhead 1800 usec + queue 1000 usec + compute 2200 usec)" in shown
    assert summary_text([profile(2, [5.0] * 10)], options).splitlines() == [
        "Inferences/Second vs. Client Average Batch Latency",
        "Concurrency: 2, throughput: 10 infer/sec, latency 5000 usec",
    ]


def test_requests_that_were_sent_late_are_told() -> None:
    late = profile(100, [5.0] * 100, is_rate=True)
    late.figures.lateness.record_all([5_000_000] * 10)
    shown = profile_text(late, Options(model="m", rates=Range(100, 1, 1)), is_grpc=False)
    assert "not able to keep up with the desired request rate. 9.09% of the requests" in shown


def test_model_analyzer_finds_its_sentence() -> None:
    assert "Failed to obtain stable measurement" in unstable_text(Options(model="m"), 4)
