"""The help text: every flag under its group, no line too long."""

from __future__ import annotations

from trioton.flags.demo import DEMO
from trioton.flags.fields import rows
from trioton.help import WIDTH, command_help
from trioton.settings import BATCH, FLEET, FRONTEND, GROUPS, RUN, TOOLS, Settings


def test_help_shows_every_flag_under_its_group() -> None:
    text = command_help("usage: x", rows(Settings))
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [f"{group}:" for group in GROUPS if group not in (BATCH, DEMO, FLEET, FRONTEND, RUN, TOOLS)]
    for row in rows(Settings):
        assert f"  --{row.name}" in text
    assert text.startswith("usage: x\n\n")
    assert max(map(len, text.splitlines())) <= WIDTH


def test_defaults_are_shown_where_there_is_one() -> None:
    text = command_help("usage: x", rows(Settings))
    assert "Serve HTTP. Default: true." in text
    assert "The port to listen on. Default: 8000." in text
    assert "None" not in text
    assert "()" not in text
    assert " object at " not in text
