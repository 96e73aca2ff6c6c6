"""`docs/metrics.md` has every metric that a server can show, with its type, and no other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import trio

from actors.capture.capture import Capture
from actors.capture.settings import CaptureSettings
from actors.capture.writer import CaptureWriter
from actors.jobs.figures import RunnerFigures, WebhookFigures
from actors.lifecycle.residence import ResidenceSnapshot
from actors.metrics.custom import CustomMetrics
from actors.metrics.gen_ai import GenAiMetrics
from actors.metrics.latencies import LatencySummaries
from actors.metrics.statistics import VersionSnapshot, VersionStatistics
from actors.quotas.store import ExchangeFigures
from backends import engine_families as families
from protocol.core import ModelStatistics
from protocol.jobs.states import JobState
from protocol.jobs.store import StoreFigures
from protocol.open_connections import Open, OpenConnections
from protocol.quotas.usage import Usage
from repository.stores.targets import FolderTarget
from tests.trioton.test_gpus import Driver
from trioton.gpus import Gpus
from trioton.loop_lag import LoopLag
from trioton.metrics.edges import EdgeReading
from trioton.metrics.metrics import Metrics

BUDGET = ResidenceSnapshot(2, 1, 0, {"m": 1}, {}, {})
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def described() -> dict[str, str]:
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1].startswith(("`nv_", "`trioton_", "`vllm:", "`gen_ai_")):
            found.update(dict.fromkeys(re.findall(r"`([\w:]+)`", cells[1]), cells[2]))
    return found


async def test_the_page_has_every_metric(nursery: trio.Nursery) -> None:
    statistics = VersionStatistics(summaries=LatencySummaries((0.5,)))
    assert statistics.histograms is not None
    assert statistics.summaries is not None
    plain = VersionSnapshot(
        "m",
        1,
        {},
        ModelStatistics("m", "1"),
        pending_requests=0,
        load_seconds=0.0,
        failures={},
        histograms=statistics.histograms.frozen(),
        summaries=statistics.summaries.frozen(),
        flushes={"full": 1},
        batch_size_bounds=(1.0,),
        instances={"ready": 1},
        arena_bytes=1,
        routed=[("other", "1", "primary", 1)],
    )
    used = Usage()
    used.refusals["requests"] = 1
    gpus, connections = Gpus(interval=1.0, library=Driver), OpenConnections()
    await nursery.start(gpus.run)
    metrics = Metrics(
        lambda: [plain, replace(plain, model="cached", has_cache=True)],
        interval=1.0,
        gpus=gpus,
        residence=lambda: BUDGET,
        keys=lambda: {"alice": used},
        quotas=ExchangeFigures,
        log_events=lambda: {"info": 1},
        connections=connections,
        jobs=lambda: RunnerFigures(store=StoreFigures(dict.fromkeys(JobState, 0), 0.0, 0), webhooks=WebhookFigures()),
        capture=Capture(CaptureSettings(), CaptureWriter(CaptureSettings(), FolderTarget(PAGE.parent))),
        edges=lambda: [EdgeReading(1, 0, 0, 0, LoopLag().snapshot())],
    )
    with connections.of("http", Open):
        shown = [series.family for source in metrics.sources for series in source()]
    of_engines = [each for each in vars(families).values() if isinstance(each, families.Family)]
    custom = CustomMetrics()
    GenAiMetrics(custom)
    assert described() == {
        **{family.name: family.kind for family in custom.values()},
        **{family.name: family.kind for family in shown},
        **{family.name: family.kind for family in of_engines},
    }
