"""The parsers of the flags of the log."""

from __future__ import annotations

import pytest

from trioton.logging_flags import log_format, verbosity


def test_verbosity_takes_levels_and_booleans() -> None:
    assert [verbosity(text) for text in ("0", "3", "true", "OFF", "-1")] == [0, 3, 1, 0, 0]
    with pytest.raises(ValueError, match="expected a whole number"):
        verbosity("x")


def test_log_format_is_one_of_two() -> None:
    assert [log_format(text) for text in ("ISO8601", "iso8601", "Default")] == ["ISO8601", "ISO8601", "default"]
    with pytest.raises(ValueError, match="expected default or ISO8601"):
        log_format("iso")
