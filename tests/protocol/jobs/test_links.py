"""Signed links to results."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Forbidden
from protocol.jobs.links import LinkExpired, ResultLink, check, sign

SECRET = b"s" * 32
LINK = ResultLink("job_1", 3, 100)


def test_a_link_holds_until_it_expires() -> None:
    signature = sign(SECRET, LINK)
    check(SECRET, LINK, signature, 99.9)
    with pytest.raises(LinkExpired):
        check(SECRET, LINK, signature, 100.0)


@pytest.mark.parametrize(
    "other",
    [
        replace(LINK, job_id="job_2"),
        replace(LINK, job_id="job_1\n3"),
        replace(LINK, item=None),
        replace(LINK, item=4),
        replace(LINK, expires=101),
    ],
)
def test_a_link_is_for_one_result(other: ResultLink) -> None:
    for now in (0.0, 1000.0):  # that it has expired is for who had one
        with pytest.raises(Forbidden):
            check(SECRET, other, sign(SECRET, LINK), now)
    with pytest.raises(Forbidden):
        check(b"x" * 32, LINK, sign(SECRET, LINK), 0.0)


@given(st.text())
def test_any_other_signature_is_refused(text: str) -> None:
    with pytest.raises(Forbidden):
        check(SECRET, LINK, text, 0.0)


@given(st.text(), st.none() | st.integers(0), st.integers(0))
def test_different_links_are_signed_differently(job_id: str, item: int | None, expires: int) -> None:
    link = ResultLink(job_id, item, expires)
    assert (sign(SECRET, link) == sign(SECRET, LINK)) == (link == LINK)
