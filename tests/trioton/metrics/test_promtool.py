"""What Prometheus' own linter says of the metrics, where Debian's package `prometheus` is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.trioton.metrics.texts import text_of
from tests.trioton.test_server import one as one_model
from tests.trioton.test_server import settings
from trioton.flags.metrics import metric_setting
from trioton.server import open_server

one = one_model
PROMTOOL = shutil.which("promtool")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: apt-get install prometheus"),
]


async def test_only_tritons_names_are_found_fault_with(one: Path) -> None:
    """They have microseconds, and counters without `_total`; ours have neither."""
    everything = tuple(map(metric_setting, ("histogram_latencies=true", "summary_latencies=true")))
    async with open_server(settings(one, metrics_config=everything)) as server:
        text = text_of(server._parts.metrics)
    assert PROMTOOL is not None
    found = subprocess.run(  # noqa: ASYNC221 (nothing else runs here)
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 3, "lint alone, and no error in the syntax"
    faults = re.findall(r"^(\S+) (.*)", found.stdout + found.stderr, re.M)
    assert [fault for fault in faults if not fault[0].startswith("nv_")] == []
