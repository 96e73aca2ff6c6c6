"""perf_analyzer's command line: options read, options that do not go together, and those that are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioton.perf.data.inputs import given_shape
from trioton.perf_analyzer.options import OptionError, Options, Range, ServiceKind, WindowKind
from trioton.perf_analyzer.parsing import OPTIONS, parse


def read(*words: str) -> Options:
    return parse(["-m", "model", *words])


def test_defaults() -> None:
    assert read() == Options(model="model")


def test_what_model_analyzer_gives(tmp_path: Path) -> None:
    words = "-m m -b 2 -u localhost:8001 -i grpc -f m-results.csv --verbose-csv --concurrency-range 16 "
    words += "--stability-percentage 999 --measurement-mode count_windows --measurement-request-count 100 "
    words += "--collect-metrics --metrics-url http://localhost:8002/metrics --metrics-interval 1000"
    assert parse(words.split()) == Options(
        model="m",
        batch=2,
        address="localhost:8001",
        is_grpc=True,
        csv=Path("m-results.csv"),
        has_verbose_csv=True,
        concurrency=Range(16, 1, 1),
        stability=9.99,
        window=WindowKind.COUNT,
        window_requests=100,
        collects_metrics=True,
        metrics_url="http://localhost:8002/metrics",
        metrics_seconds=1.0,
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--concurrency-range 2:8:2", {"concurrency": Range(2, 8, 2)}),
        ("--request-rate-range 1.5:10.5:0.5", {"rates": Range(1.5, 10.5, 0.5)}),
        ("--request-rate-range=100 --request-distribution poisson", {"rates": Range(100, 1, 1), "is_poisson": True}),
        ("-p 2000 -s 5 -r 7", {"window_seconds": 2.0, "stability": 0.05, "trials": 7}),
        ("--measurement-interval 2000 --max-trials 7", {"window_seconds": 2.0, "trials": 7}),
        ("--percentile 95", {"percent": 95}),
        ("--percentile=-1", {"percent": None}),
        ("--percen 95", {"percent": 95}),  # cut short, as getopt_long takes it
        ("--request-count 9", {"request_count": 9, "window": WindowKind.COUNT}),
        ("-l 20 --concurrency-range 1:0", {"latency_limit": 0.02, "concurrency": Range(1, 0, 1)}),
        ("-i GRPC --streaming -a", {"is_grpc": True, "is_streaming": True, "is_async": True}),
        ("-v -v -v", {"verbosity": 2}),
        ("-z", {"is_zero": True}),
        ("--input-data zero", {"is_zero": True}),
        ("--input-data random", {"is_zero": False}),
        ("--shape a:b:3,4 --shape c:1", {"shapes": (given_shape("a:b:3,4"), given_shape("c:1"))}),
        ("-H a:b -H c:d:e", {"headers": (("a", "b"), ("c", "d:e"))}),
        (
            "--request-parameter a:1:int --request-parameter b:x:y:string --request-parameter c:true:bool",
            {"parameters": (("a", 1), ("b", "x:y"), ("c", True))},
        ),
        ("--sequence-length 7 --sequence-length-variation 0", {"sequence_length": 7, "sequence_variation": 0.0}),
        ("--sequence-id-range 5:9", {"first_sequence": 5, "last_sequence": 9}),
        ("--sequence-id-range 0", {"first_sequence": 1}),
        ("--shared-memory system --output-shared-memory-size 9", {"shared_memory": True, "output_bytes": 9}),
        ("--bls-composing-models a:3,b", {"composing": (("a", "3"), ("b", ""))}),
        ("-t 4", {"concurrency": Range(4, 4, 1)}),
        ("-d -c 8", {"concurrency": Range(1, 8, 1)}),
        ("--max-threads 3 --sync", {}),
        ("--shared-memory none --grpc-compression-algorithm none --trace-level OFF", {}),
        ("stray words", {}),
    ],
)
def test_options(words: str, expected: dict[str, object]) -> None:
    assert read(*words.split()) == Options(model="model", **expected)  # type: ignore[arg-type]


def test_openai(tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text("{}")
    words = f"--service-kind openai --endpoint v1/chat/completions --async --streaming --input-data {data}"
    assert read(*words.split()) == Options(
        model="model",
        kind=ServiceKind.OPENAI,
        endpoint="v1/chat/completions",
        is_async=True,
        is_streaming=True,
        words=(str(data),),
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--bogus", "option --bogus not recognized"),
        ("--measurement-m time_windows --measurement", "option --measurement"),
        ("-b", "option -b requires argument"),
        ("-b 0", "Failed to parse -b. The value must be > 0, got '0'"),
        ("-b x", "Failed to parse -b. Expected a whole number, got 'x'"),
        ("--percentile 100", "must be -1 for not reporting or in range"),
        ("--concurrency-range 1:2:3:4", "does not match <start:end:step>"),
        ("--concurrency-range 0", "start of the search range must be > 0"),
        ("--concurrency-range 1:4:0", "step of the search range must be > 0"),
        ("--concurrency-range 1.5", "Expected a whole number"),
        ("--request-rate-range nan", "Expected a number"),
        ("-i http2", "'http' or 'grpc'"),
        ("--input-data nowhere", "path to a directory, or a json file"),
        ("--request-intervals nowhere", "valid file path"),
        ("--shape a", "expected <input>:<size>"),
        ("--request-parameter a:b", "<name:value:type>"),
        ("--request-parameter a:b:float", "one of bool, int and string"),
        ("--sequence-id-range 5:4", "must be greater than the 'start'"),
        ("--profile-export-file .", "must not already exist"),
        ("--async --sync", "Cannot specify --async and --sync"),
        ("--concurrency-range 2 --request-rate-range 3", "--concurrency-range and --request-rate-range together"),
        ("--streaming", "only allowed with gRPC"),
        ("--concurrency-range 1:0", "can not be both 0"),
        ("--binary-search --concurrency-range 1:4", "cannot be 0 for binary search"),
        ("--binary-search --concurrency-range 1:0 -l 4", "can not be 0 (or 0.0) for binary search"),
        ("--request-count 9 --concurrency-range 1:4", "not supported with multiple levels"),
        ("--request-count 3 --concurrency-range 4", "can not be less than concurrency"),
        ("--warmup-request-count 9 --request-rate-range 1:4", "not supported with multiple levels"),
        ("--service-kind openai", "Must supply --endpoint"),
        ("--service-kind openai --endpoint x", "Must supply --input-data"),
        ("--fixed-schedule", "a dataset must be given"),
        ("--collect-metrics", "Must enable --verbose-csv"),
    ],
)
def test_what_is_wrong_is_told(words: str, text: str) -> None:
    with pytest.raises(OptionError, match=text.replace("(", r"\(").replace(")", r"\)")):
        read(*words.split())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--service-kind tfserving", "--service-kind"),
        ("--service-kind triton_c_api", "--service-kind"),
        ("--shared-memory cuda", "--shared-memory"),
        ("--session-concurrency 4", "--session-concurrency"),
        ("--periodic-concurrency-range 1:4", "--periodic-concurrency-range"),
        ("--input-tensor-format json", "--input-tensor-format"),
        ("--grpc-compression-algorithm gzip", "--grpc-compression-algorithm"),
        ("--trace-level TIMESTAMPS", "--trace-level"),
        ("--ssl-https-verify-peer 0", "--ssl-https-verify-peer"),
        ("--ssl-grpc-private-key-file x", "--ssl-grpc-private-key-file"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(words: str, name: str) -> None:
    with pytest.raises(OptionError, match=name):
        read(*words.split())


def test_what_has_no_effect_is_said() -> None:
    assert read("--enable-mpi", "--output-tensor-format", "json").notes == (
        "--enable-mpi has no effect: there is no MPI run",
        "--output-tensor-format has no effect: outputs come as the server sends them by default",
    )


def test_a_model_has_to_be_named() -> None:
    with pytest.raises(OptionError, match="-m \\(model name\\)"):
        parse([])


def test_every_alias_is_an_option() -> None:
    assert all(row.alias in OPTIONS for row in OPTIONS.values() if row.alias)
