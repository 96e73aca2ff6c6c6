"""One turn: which program takes it, and every way in which a run gives no figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.load import LoadGenerator
from tests.bench.measurement import LoadFailed, Measurement
from tests.bench.rows import Row

ROW, JSON_ROW = Row("add_sub", "grpc", 16), Row("add_sub", "json", 16)
REPORT = """\
Concurrency,Inferences/Second,p50 latency,p99 latency
16,1234.5,100,400
"""


def generator(folder: Path, body: str, *, grace_seconds: float = 20.0) -> LoadGenerator:
    """A stand-in for perf_analyzer: a script with `body`, which finds the report's path in `report`."""
    program = folder / "perf_analyzer"
    program.write_text(f"#!{sys.executable}\nimport os, sys, time\nreport = sys.argv[-1]\n{body}\n")
    program.chmod(0o755)
    return LoadGenerator(program, {"OF_THE_TOOL": "yes"}, window_ms=1, grace_seconds=grace_seconds)


def test_a_run_returns_what_the_report_holds(tmp_path: Path) -> None:
    load = generator(tmp_path, f"open(report, 'w').write({REPORT!r})")
    assert load.run(ROW, "127.0.0.1:9").throughput == 1234.5


def test_a_run_sees_its_own_environment_and_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy between the load generator and loopback would be measured instead of the server."""
    monkeypatch.setenv("http_proxy", "127.0.0.1:1")
    load = generator(tmp_path, "print(os.environ.get('http_proxy'), os.environ['OF_THE_TOOL']); sys.exit(1)")
    with pytest.raises(LoadFailed, match=r"^None yes$"):
        load.run(ROW, "127.0.0.1:9")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("print('error: unknown model'); sys.exit(1)", "error: unknown model"),
        ("sys.exit(99)", "ended with 99"),
        ("pass", "wrote no report"),
    ],
)
def test_a_run_without_a_report_fails_with_its_last_words(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(LoadFailed, match=says):
        generator(tmp_path, body).run(ROW, "127.0.0.1:9")


def test_a_run_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    load = generator(tmp_path, "time.sleep(600)", grace_seconds=0.2)
    with pytest.raises(LoadFailed, match="no result within"):
        load.run(ROW, "127.0.0.1:9")


def test_json_is_wrk_s_and_left_alone_without_it(tmp_path: Path) -> None:
    load = generator(tmp_path, "sys.exit(9)")
    assert load.can_run(ROW)
    assert not load.can_run(JSON_ROW)
    with pytest.raises(LoadFailed, match="apt-get install wrk"):
        load.run(JSON_ROW, "127.0.0.1:9")


def test_wrk_gets_its_script_and_its_figures_are_read(tmp_path: Path) -> None:
    program = tmp_path / "wrk"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "assert 'wrk.method' in open(sys.argv[sys.argv.index('--script') + 1]).read()\n"
        "assert sys.argv[-1] == 'http://127.0.0.1:9/v2/models/add_sub/infer'\n"
        "print('    50%    1.50ms\\n    99%    2.00ms\\nRequests/sec:   10.00')\n"
    )
    program.chmod(0o755)
    load = LoadGenerator(tmp_path / "none", {}, window_ms=1, wrk=program)
    assert load.can_run(JSON_ROW)
    assert load.run(JSON_ROW, "127.0.0.1:9") == Measurement(10, 1500, 2000)
