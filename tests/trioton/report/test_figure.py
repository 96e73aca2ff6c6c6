import re

import pytest

from trioton.report.figure import WIDTH, tick_below

# Of a character, in pixels, in the fonts that browsers take for `system-ui` at 12 px: at most.
WIDEST = 9.0


@pytest.mark.parametrize("x", [100.0, 690.0, 700.3, 704.0])
@pytest.mark.parametrize("text", ["0", "10,000", "1,000,000"])
def test_the_label_of_a_tick_stays_within_the_drawing(x: float, text: str) -> None:
    found = re.search(r'x="([\d.]+)".*text-anchor="(\w+)"', tick_below(x, 366, text))
    assert found is not None
    at, width = float(found[1]), len(text) * WIDEST
    assert at + {"middle": width / 2, "end": 0.0}[found[2]] <= WIDTH


def test_a_label_with_room_is_below_its_tick() -> None:
    assert tick_below(700.3, 366, "10") == '<text x="700.3" y="366" class="tick" text-anchor="middle">10</text>'
