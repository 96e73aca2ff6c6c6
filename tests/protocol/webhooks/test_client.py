"""The client of webhooks, and receivers on loopback: whom it tells, at which address, and when it gives up."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

import pytest
import trio
import trustme

from protocol.outgoing.dialer import Dialer
from protocol.outgoing.hosts import AllowedHosts, HostRule
from protocol.outgoing.urls import UrlError
from protocol.webhooks.client import WebhookClient
from protocol.webhooks.exchange import Answer
from tests.protocol.webhooks.receiver import Receiver

# Long enough for a machine that is busy; what is to take too long takes for ever.
LONG = 60.0
LOOPBACK = ("127.0.0.1",)


def client(
    *rules: str, addresses: Sequence[str] = LOOPBACK, tls: ssl.SSLContext | None = None, seconds: float = LONG
) -> WebhookClient:
    hosts = AllowedHosts([HostRule.parse(each) for each in rules], "--allowed")
    return WebhookClient(hosts, Dialer(tls, lambda _: addresses), timeout_seconds=seconds)


async def test_a_message(nursery: trio.Nursery) -> None:
    receiver = await nursery.start(Receiver().run)
    to = client(f"hooks.test:{receiver.port}")
    answer = await to.post(f"http://hooks.test:{receiver.port}/a?b", [("webhook-id", "msg_1")], b"{}")
    assert answer == Answer(204)
    (received,) = receiver.received
    assert (received.target, received.headers["webhook-id"], received.body) == ("/a?b", "msg_1", b"{}")


@pytest.mark.parametrize(
    ("rules", "url", "reason"),
    [
        ((), "https://a/", "is none of the hosts"),
        (("*",), "https://a:8443/", "is none of the hosts"),
        (("*",), "http://a/", "expected an https URL"),
        (("*.a",), "http://b.a/", "expected an https URL"),
        (("*",), "ftp://a/", "expected an http or https URL"),
        (("*",), "https://u:p@a/", "a user's name or a password"),
        (("*",), "no", "expected an http or https URL"),
    ],
)
def test_urls_that_are_refused_at_once(rules: Sequence[str], url: str, reason: str) -> None:
    with pytest.raises(UrlError, match=reason):
        client(*rules).checked(url)


def test_http_is_for_hosts_that_are_named() -> None:
    assert client("a").checked("http://a/").port == 80


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fe80::1", "::ffff:127.0.0.1"])
async def test_an_address_that_is_not_public_is_never_asked(nursery: trio.Nursery, address: str) -> None:
    receiver = await nursery.start(Receiver().run)
    with pytest.raises(UrlError, match="has no public address"):
        await client(f"*:{receiver.port}", addresses=[address]).post(f"https://a.test:{receiver.port}/", [], b"{}")
    assert receiver.received == []


async def test_a_redirect_is_not_followed(nursery: trio.Nursery) -> None:
    receiver = await nursery.start(Receiver(lambda _: b"HTTP/1.1 307 Moved\r\nLocation: /other\r\n\r\n").run)
    assert (await client("127.0.0.1:" + str(receiver.port)).post(receiver.url, [], b"{}")).status == 307
    assert len(receiver.received) == 1


async def test_a_receiver_that_never_answers(nursery: trio.Nursery) -> None:
    receiver = await nursery.start(Receiver(lambda _: None).run)
    with pytest.raises(UrlError, match=r"there was no answer within 0\.2 seconds"):
        await client(f"127.0.0.1:{receiver.port}", seconds=0.2).post(receiver.url, [], b"{}")
    with trio.fail_after(LONG):
        await receiver.gone.wait()


async def test_a_receiver_that_answers_without_end(nursery: trio.Nursery) -> None:
    receiver = await nursery.start(Receiver(lambda _: b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000).run)
    with pytest.raises(UrlError, match="none of HTTP"):
        await client(f"127.0.0.1:{receiver.port}").post(receiver.url, [], b"{}")


async def test_nobody_listens() -> None:
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(UrlError, match="no connection could be made"):
            await client(f"127.0.0.1:{port}").post(f"http://127.0.0.1:{port}/", [], b"{}")


async def test_https(nursery: trio.Nursery) -> None:
    authority = trustme.CA()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("hooks.test").configure_cert(served)
    receiver = await nursery.start(Receiver(tls=served).run)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    rules = (f"hooks.test:{receiver.port}", f"other.test:{receiver.port}")
    assert (await client(*rules, tls=trusting).post(f"https://hooks.test:{receiver.port}/", [], b"{}")).status == 204
    with pytest.raises(UrlError, match="TLS failed: Hostname mismatch"):
        await client(*rules, tls=trusting).post(f"https://other.test:{receiver.port}/", [], b"{}")
    assert len(receiver.received) == 1
