"""Which hosts clients may name, and which of their addresses may be asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.outgoing.hosts import AllowedHosts, HostRule, is_public
from protocol.outgoing.urls import UrlError, parse_url


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Example.com", HostRule("example.com")),
        ("example.com:8080", HostRule("example.com", port=8080)),
        ("*.example.com", HostRule(suffix=".example.com")),
        ("*", HostRule()),
        ("*:8443", HostRule(port=8443)),
        ("10.0.0.7:9000", HostRule("10.0.0.7", port=9000)),
        ("::1", HostRule("::1")),
        ("[::1]", HostRule("::1")),
        ("[::1]:80", HostRule("::1", port=80)),
    ],
)
def test_rules(text: str, rule: HostRule) -> None:
    assert HostRule.parse(text) == rule


@pytest.mark.parametrize(
    "text", ["", ":80", "http://example.com", "example.com/a", "a:0", "a:65536", "a:b", "*.", "a.*.b", "**", "[::1]:x"]
)
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match="expected a host"):
        HostRule.parse(text)


def hosts(*rules: str) -> AllowedHosts:
    return AllowedHosts([HostRule.parse(each) for each in rules], "--allowed")


@pytest.mark.parametrize(
    ("rules", "url"),
    [
        (["example.com"], "http://example.com/"),
        (["example.com"], "https://example.com/"),
        (["example.com:8080"], "http://example.com:8080/"),
        (["*.example.com"], "http://a.b.example.com/"),
        (["other", "*"], "http://anything/"),
        (["127.0.0.1"], "http://127.0.0.1/"),
    ],
)
def test_hosts_that_may_be_asked(rules: list[str], url: str) -> None:
    hosts(*rules).check(parse_url(url))


@pytest.mark.parametrize(
    ("rules", "url"),
    [
        ([], "http://example.com/"),
        (["example.com"], "http://evil-example.com/"),
        (["example.com"], "http://www.example.com/"),
        (["*.example.com"], "http://example.com/"),
        (["*.example.com"], "http://badexample.com/"),
        (["example.com"], "http://example.com:22/"),
        (["example.com"], "http://example.com:443/"),
        (["example.com:8080"], "http://example.com/"),
        (["*"], "http://example.com:6379/"),
    ],
)
def test_hosts_that_may_not(rules: list[str], url: str) -> None:
    with pytest.raises(UrlError, match="is none of the hosts that this server asks"):
        hosts(*rules).check(parse_url(url))


PUBLIC = ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "64:ff9b::101:101", "2002:101:101::1"]
OWN = [
    *("0.0.0.0", "10.1.2.3", "100.100.100.200", "127.0.0.1", "127.9.9.9", "168.63.129.16", "169.254.169.254"),
    *("172.16.0.1", "192.168.1.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1"),
    *("2002:7f00:1::1", "2002:a9fe:a9fe::", "2001:0:7f00:1::", "100::1"),
]


def test_public_addresses() -> None:
    assert [each for each in PUBLIC if not is_public(each)] == []
    assert [each for each in OWN if is_public(each)] == []


def test_an_address_that_is_not_public_needs_a_host_that_is_named() -> None:
    url = parse_url("http://a.example.com/")
    addresses = ["127.0.0.1", "1.1.1.1", "::1"]
    assert hosts("a.example.com").usable(url, addresses) == addresses
    for rule in ("*", "*.example.com"):
        assert hosts(rule).usable(url, addresses) == ["1.1.1.1"]
        with pytest.raises(UrlError, match="has no public address"):
            hosts(rule).usable(url, OWN)


def test_a_host_is_named_with_its_port() -> None:
    """The server's own ports are not open because another one on its machine is."""
    allowed = hosts("localhost:9000", "*")
    assert allowed.usable(parse_url("http://localhost:9000/"), ["127.0.0.1"]) == ["127.0.0.1"]
    with pytest.raises(UrlError, match="has no public address"):
        allowed.usable(parse_url("http://localhost/"), ["127.0.0.1"])


@given(
    st.text(max_size=20)
    | st.lists(st.sampled_from(["*", ".", "a", "[", "]", ":", "::1", "80"]), max_size=6).map("".join)
)
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    try:
        rule = HostRule.parse(text)
    except ValueError:
        return
    assert not (rule.host and rule.suffix)
    assert rule.host or rule.suffix or text.startswith("*")
