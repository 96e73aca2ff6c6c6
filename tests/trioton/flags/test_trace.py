"""The flags of tracing: what they mean together, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.tracing.settings import ExportSettings
from protocol.server_settings import TraceSettings
from trioton.cli import settings_from
from trioton.flags.fields import UsageError
from trioton.settings import Settings


def settings(*arguments: str, **environment: str) -> Settings:
    return settings_from(["--model-repository=/models", *arguments], environment)


def test_nothing_is_traced_by_default() -> None:
    tracing = Settings(model_repository=(Path("/models"),)).tracing()
    assert tracing.start == TraceSettings(("OFF",), 1000, -1, 0, "", "triton")
    assert tracing.export == ExportSettings("http://localhost:4318/v1/traces")


def test_mode_triton() -> None:
    tracing = settings(
        "--trace-config=triton,file=/tmp/t=1.json",
        "--trace-config=triton,log-frequency=50",
        "--trace-config",
        "rate=100",
        "--trace-config=rate=10",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=level=tensors",
        "--trace-config=count=7",
        "--trace-config=mode=triton",
        "--trace-config=opentelemetry,url=http://unused",
    ).tracing()
    assert tracing.start == TraceSettings(("TIMESTAMPS", "TENSORS"), 10, 7, 50, "/tmp/t=1.json", "triton")


def test_mode_opentelemetry() -> None:
    """It needs no file, and rate 0 has a meaning."""
    tracing = settings(
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=on",
        "--trace-config=rate=0",
        "--trace-config=opentelemetry,url=http://collector/v1/traces",
        "--trace-config=opentelemetry,resource=service.name=s",
        "--trace-config=opentelemetry,resource=x=a=b",
        "--trace-config=opentelemetry,bsp_max_queue_size=1000",
        "--trace-config=opentelemetry,bsp_schedule_delay=10",
        "--trace-config=opentelemetry,bsp_max_export_batch_size=5",
    ).tracing()
    assert tracing.start == TraceSettings(("TIMESTAMPS",), 0, mode="opentelemetry")
    assert tracing.export == ExportSettings(
        "http://collector/v1/traces", {"service.name": "s", "x": "a=b"}, 1000, 10, 5
    )


@pytest.mark.parametrize("word", ["on", "TRUE", "min", "max", "Timestamps"])
def test_words_for_timestamps(word: str) -> None:
    tracing = settings(f"--trace-config=level={word}", "--trace-file=t").tracing()
    assert tracing.start.level == ("TIMESTAMPS",)


@pytest.mark.parametrize("word", ["off", "FALSE"])
def test_any_off_wins(word: str) -> None:
    arguments = [f"--trace-level={word}", "--trace-config=level=max", "--trace-level=tensors"]
    assert settings(*arguments).tracing().start.is_off


def test_the_older_flags() -> None:
    older = ["--trace-file=old", "--trace-level=min", "--trace-level=tensors"]
    older += ["--trace-rate=2", "--trace-count=3", "--trace-log-frequency=4"]
    assert settings(*older).tracing().start == TraceSettings(("TIMESTAMPS", "TENSORS"), 2, 3, 4, "old")
    newer = ["--trace-config=triton,file=new", "--trace-config=rate=5"]
    for arguments in ((*older, *newer), (*newer, *older)):
        assert settings(*arguments).tracing().start == TraceSettings(("TIMESTAMPS", "TENSORS"), 5, 3, 4, "new")


def test_the_environment() -> None:
    tracing = settings(TRIOTON_TRACE_CONFIG="level=on; triton,file=t;rate=3").tracing()
    assert tracing.start == TraceSettings(("TIMESTAMPS",), 3, file="t")


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--trace-config=level=loud", "--trace-config: invalid value for trace level option: loud"),
        ("--trace-level=loud", "--trace-level: invalid value for trace level option: loud"),
        (
            "--trace-config=mode=jaeger",
            'invalid value for trace mode option: jaeger. Available options are "triton" and "opentelemetry"',
        ),
        ("--trace-config=jaeger,url=x", 'invalid value for trace mode option: jaeger. Available options are "triton"'),
        ("--trace-config=level", "--trace-config option format is '<setting>=<value>' or '<mode>,<setting>=<value>'"),
        ("--trace-config==5", "--trace-config option format is"),
        ("--trace-config=triton,=5", "--trace-config option format is"),
        ("--trace-config=,rate=5", "invalid value for trace mode option: ."),
        ("--trace-config=speed=5", "there is no trace setting 'speed'; expected level or rate or count or mode"),
        (
            "--trace-config=triton,rate=5",
            "there is no trace setting 'rate' of mode triton; expected file or log-frequency",
        ),
        ("--trace-config=rate=-1", "expected a whole number from 0 to 4294967295, got 'rate=-1'"),
        ("--trace-config=count=-2", "expected a whole number from -1 to 2147483647"),
        ("--trace-config=opentelemetry,bsp_schedule_delay=0", "expected a whole number from 1 to"),
        ("--trace-config=opentelemetry,resource=x", "a resource attribute is given as resource=<key>=<value>"),
        ("--trace-config=level=on", "the trace level is TIMESTAMPS, but trace file name is not given"),
    ],
)
def test_what_is_refused(argument: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(argument)
    assert text in str(caught.value)


def test_combinations_that_are_refused() -> None:
    for arguments, reason in (
        (("--trace-file=t", "--trace-config=rate=0"), "sample rate must be non-zero"),
        (
            ("--trace-config=mode=opentelemetry", "--trace-config=level=tensors"),
            "level TENSORS is not supported in mode opentelemetry",
        ),
    ):
        with pytest.raises(UsageError, match=f"but {reason}; see --trace-config"):
            settings("--trace-config=level=on", *arguments)
