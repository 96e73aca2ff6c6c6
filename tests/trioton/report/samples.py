"""A page with a block of every kind, and names that must not become markup."""

from __future__ import annotations

import math

from trioton.report import (
    Axis,
    Bar,
    Code,
    Diff,
    Dot,
    Facts,
    Goal,
    Limit,
    Line,
    LinePlot,
    Page,
    Sample,
    ScatterPlot,
    Section,
    StackedBars,
    Table,
    Text,
)

HOSTILE = "<script>window.hit=1</script><img src=http://198.51.100.7/x onerror=hit>\"'&amp;"


def every_block(name: str = "resnet") -> Page:
    curve = LinePlot(
        f"Latency of {name}",
        Axis("rate", "1/s", from_zero=True),
        Axis("latency", "ms", is_log=True),
        [
            Line(
                f"p99 of {name}",
                [
                    Sample(r, 2 + 400 / (1000 - r), 1.8 + 300 / (1000 - r), 3 + 500 / (1000 - r))
                    for r in range(50, 1000, 50)
                ],
            ),
            Line("p50", [Sample(r, 1 + 90 / (1000 - r)) for r in range(50, 1000, 50)]),
            Line("empty", []),
            Line("broken", [Sample(math.nan, 1), Sample(10, 0), Sample(10, math.inf)]),
        ],
        description="Open loop; the band is the 95 % confidence interval.",
        limits=[Limit("bound", 5.0), Limit("greatest rate", 800, is_vertical=True)],
    )
    front = ScatterPlot(
        "Rate and memory",
        Axis("memory", "MiB"),
        Axis("rate", "1/s"),
        [Dot(f"{name} {i}", 100 + 40 * i, 300 + 100 * math.sin(i) + 30 * i, is_chosen=i == 3) for i in range(9)],
        goals=(Goal.LOWER, Goal.HIGHER),
    )
    stages = StackedBars(
        "Stages",
        Axis("time", "ms"),
        ["queue", "input", "infer", "output"],
        [Bar(name, [3, 1, 8, 0.5]), Bar("other", [0, 1, 9, 0.2]), Bar("none", [0, 0, 0, math.nan])],
        as_shares=True,
    )
    table = Table(
        "Candidates", ["candidate", "rate", "good"], [[name, 1234.5, True], ["b", None, False]], frozenset({0})
    )
    return Page(
        f"Report on {name}",
        [
            Text(f"All about {name}."),
            Text("Unproven.", is_warning=True),
            Section("Results", [table, curve, front, Section("Inner", [stages])]),
            Section(
                "Rest",
                [
                    Facts({"seed": "7", name: name}),
                    Code(f"trioton analyze {name}", "Command"),
                    Diff("a: 1\nb: 2\n", f"a: 1\nb: 3\nc: {name}\n", "before", "after"),
                ],
            ),
        ],
        lead=f"Lead of {name}.",
    )
