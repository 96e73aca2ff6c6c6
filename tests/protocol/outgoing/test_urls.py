"""URLs of media: one form for each, and those that programs may read differently are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.media.download import Download
from protocol.outgoing.urls import MAX_URL, HttpUrl, UrlError, normal_host, parse_url, redirected


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://example.com", HttpUrl("http", "example.com", 80, "/")),
        ("HTTPS://Example.COM./a/b.png?x=1&y=2#part", HttpUrl("https", "example.com", 443, "/a/b.png?x=1&y=2")),
        ("http://example.com:8080/ä", HttpUrl("http", "example.com", 8080, "/%C3%A4")),
        ("http://[::1]:80/a%20b", HttpUrl("http", "::1", 80, "/a%20b")),
        ("http://[0:0::1]/", HttpUrl("http", "::1", 80, "/")),
        ("https://münchen.de/", HttpUrl("https", "xn--mnchen-3ya.de", 443, "/")),
        ("http://my_store:9000/x", HttpUrl("http", "my_store", 9000, "/x")),
        ("http://2130706433/", HttpUrl("http", "2130706433", 80, "/")),
    ],
)
def test_what_is_asked_of_whom(text: str, url: HttpUrl) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("file:///etc/passwd", "expected an http or https URL, got 'file'"),
        ("http://", "'' is no name of a host"),
        ("http:///x", "is no name of a host"),
        ("http://a b/", "no spaces"),
        ("http://good.example\\@evil.example/", "no spaces, backslashes"),
        ("http://good.example\r\nHost: evil", "no spaces, backslashes or control"),
        ("http://user:word@example.com/", "user's name or a password"),
        ("http://@example.com/", "user's name or a password"),
        ("http://example.com:99999/", "it is no URL: Port out of range"),
        ("http://example.com:x/", "it is no URL: Port could not be cast"),
        ("http://[::1/", "it is no URL: Invalid IPv6 URL"),
        ("http://exa<mple.com/", "is no name of a host"),
        ("http://" + "a" * 70 + ".com/", "is no name of a host"),
        ("http://example.com/" + "a" * MAX_URL, f"at most {MAX_URL} characters"),
    ],
)
def test_what_is_no_such_url(text: str, reason: str) -> None:
    with pytest.raises(UrlError) as caught:
        parse_url(text)
    assert reason in str(caught.value)


def test_the_header_of_the_host() -> None:
    assert [parse_url(each).authority for each in ("http://a:80/", "https://a:80/", "http://[::1]:81/")] == [
        "a",
        "a:80",
        "[::1]:81",
    ]


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("/b", "http://a/b"),
        ("c?d", "http://a/x/c?d"),
        ("https://A/e", "https://a/e"),
        ("//a:8080/f", "http://a:8080/f"),
    ],
)
def test_redirects_within_a_host(location: str, text: str) -> None:
    assert redirected(parse_url("http://a/x/y"), location).text == text


@pytest.mark.parametrize("location", ["http://b/", "//b/", "file:///etc/passwd", "http://a@b/", "http://127.0.0.1/"])
def test_other_redirects(location: str) -> None:
    with pytest.raises(UrlError):
        redirected(parse_url("http://a/x/y"), location)


def test_hosts_that_are_none() -> None:
    for host in ("", ".", "a/b", "a:b", "*"):
        with pytest.raises(UrlError):
            normal_host(host)


_PIECES = [
    "http://",
    "https:",
    "//",
    "a",
    "[",
    "]",
    "::1",
    ":",
    "80",
    "@",
    "%",
    "?",
    "#",
    "ä",
    "\\",
    ".",
    "xn--",
    "0x7f",
]


@given(st.text(max_size=30) | st.lists(st.sampled_from(_PIECES), max_size=8).map("".join))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    """And one that was read is read as the same again: nobody could mean another host by it."""
    try:
        url = parse_url(text)
    except UrlError:
        return
    assert parse_url(url.text) == url
    request = Download(1).request(url)
    assert request.count(b"\r\n") == request.count(b"\n") == 7
