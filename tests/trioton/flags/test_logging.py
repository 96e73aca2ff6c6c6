"""The parsers of the flags of the log."""

from __future__ import annotations

import pytest

from protocol.log.access_log import AccessMode, AccessPolicy
from trioton.flags.logging import AccessLogFlag, access_log, log_format, verbosity


def test_verbosity_takes_levels_and_booleans() -> None:
    assert [verbosity(text) for text in ("0", "3", "true", "OFF", "-1")] == [0, 3, 1, 0, 0]
    with pytest.raises(ValueError, match="expected a whole number"):
        verbosity("x")


def test_log_format_is_one_of_two() -> None:
    assert [log_format(text) for text in ("ISO8601", "iso8601", "Default")] == ["ISO8601", "ISO8601", "default"]
    with pytest.raises(ValueError, match="expected default or ISO8601"):
        log_format("iso")


@pytest.mark.parametrize(
    ("text", "policy", "file"),
    [
        ("off", AccessPolicy(), ""),
        ("errors", AccessPolicy(AccessMode.ERRORS), ""),
        ("all,file=/a/b=c.log", AccessPolicy(AccessMode.ALL), "/a/b=c.log"),
        ("sample:100", AccessPolicy(AccessMode.SAMPLE, 100), ""),
        ("errors,slow=0.5", AccessPolicy(AccessMode.ERRORS, 1, 0.5), ""),
        ("sample:7,file=x,slow=250", AccessPolicy(AccessMode.SAMPLE, 7, 250.0), "x"),
    ],
)
def test_access_logs(text: str, policy: AccessPolicy, file: str) -> None:
    flag = access_log(text)
    assert flag == AccessLogFlag(policy, file)
    assert access_log(str(flag)) == flag


@pytest.mark.parametrize(
    "text",
    [
        *("", "some", "sample", "sample:0", "sample:-1", "sample:x", "sample:\u0663", f"sample:{10**10}", "all:2"),
        *("slow=5", "all,slow=", "all,slow=-1", "all,slow=nan", "all,slow=inf", "all,file=", "all,errors", "all,"),
        *("off,slow=5", "all,fast=1"),
    ],
)
def test_access_logs_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|stands alone"):
        access_log(text)
