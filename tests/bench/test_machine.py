"""What it was measured on."""

from __future__ import annotations

import pytest

from tests.bench.machine import Machine, processor_name, this_machine


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n", "Some CPU @ 2 GHz"),
        ("processor : 0\nBogoMIPS : 50.00\n", "unknown processor"),
        ("", "unknown processor"),
    ],
)
def test_the_processor_has_the_name_that_the_kernel_gives(cpuinfo: str, expected: str) -> None:
    assert processor_name(cpuinfo) == expected


def test_this_machine_has_cores() -> None:
    assert this_machine().cores >= 1


@pytest.mark.parametrize(("load_average", "busy"), [(0.0, False), (0.5, False), (0.51, True), (3.0, True)])
def test_a_machine_is_busy_above_a_quarter_of_its_cores(load_average: float, busy: bool) -> None:
    assert Machine("2031-02-03", "Some CPU", 2, "Linux 6.1", "3.11.7", load_average).is_busy is busy
