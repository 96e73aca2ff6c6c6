"""The media fetcher, and hosts on loopback: what it asks, of which address, and when it gives up."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trustme

from protocol.errors import Overloaded
from protocol.limits.request_memory import RequestMemory, RequestShare
from protocol.media.fetcher import MAX_FETCHES, MediaFetcher, MediaSettings
from protocol.outgoing.hosts import HostRule
from protocol.outgoing.urls import UrlError
from tests.protocol.media.hosts import Host, answer

LOOPBACK = ["127.0.0.1"]
# Long enough for a machine that is busy; what is to take too long takes for ever.
LONG = 60.0


class Names:
    """Resolves every name to the same addresses."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        return self.addresses


def fetcher(
    *rules: str, names: Names | None = None, tls: ssl.SSLContext | None = None, **settings: Any
) -> MediaFetcher:
    made = MediaSettings([HostRule.parse(each) for each in rules], **{"timeout": LONG, **settings})
    return MediaFetcher(made, tls, names or Names(LOOPBACK))


async def test_a_file(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/a.png?x": answer(b"picture")}).run)
    sizes: list[int] = []
    names = Names(LOOPBACK)
    found = await fetcher(f"pictures.test:{host.port}", names=names).fetch(
        f"http://Pictures.test:{host.port}/a.png?x#y", sizes.append
    )
    assert (bytes(found), sum(sizes), host.asked, names.asked) == (b"picture", 7, ["/a.png?x"], ["pictures.test"])


async def test_names_are_those_of_the_system(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/": answer(b"a")}).run)
    settings = MediaSettings([HostRule.parse(f"localhost:{host.port}")], timeout=LONG)
    assert await MediaFetcher(settings).fetch(f"http://localhost:{host.port}") == b"a"
    with pytest.raises(UrlError, match=r"there is no host 'nowhere\.invalid'"):
        await MediaFetcher(MediaSettings([HostRule()], timeout=LONG)).fetch("http://nowhere.invalid")


async def test_an_address_that_is_not_public_is_never_asked(nursery: trio.Nursery) -> None:
    """Whatever its name is."""
    host = await nursery.start(Host({"/": answer(b"secret")}).run)
    media = fetcher(f"*:{host.port}", f"*.test:{host.port}")
    for name in ("pictures.test", "127.0.0.1", "2130706433"):
        with pytest.raises(UrlError, match="has no public address"):
            await media.fetch(f"http://{name}:{host.port}/")
    assert host.asked == []


async def test_a_name_is_resolved_once(nursery: trio.Nursery) -> None:
    """What it leads to later does not matter."""
    host = await nursery.start(Host({"/": answer(b"", "302 Found", Location="/b"), "/b": answer(b"b")}).run)
    names = Names(LOOPBACK)
    assert await fetcher(f"pictures.test:{host.port}", names=names).fetch(f"http://pictures.test:{host.port}") == b"b"
    assert (host.asked, names.asked) == (["/", "/b"], ["pictures.test"])


async def test_another_address_is_tried_where_one_takes_no_connection(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/": answer(b"a")}).run)
    url, rule = f"http://pictures.test:{host.port}", f"pictures.test:{host.port}"
    nobody = await free_port()
    with pytest.raises(UrlError, match="no connection could be made"):
        await fetcher(f"pictures.test:{nobody}").fetch(f"http://pictures.test:{nobody}")
    assert await fetcher(rule, names=Names(["127.0.0.2", "127.0.0.1"])).fetch(url) == b"a"


async def free_port() -> int:
    """One that nobody listens on."""
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/other", "redirected to another host"),
        ("/port", "is none of the hosts that this server asks"),
        ("/around", "redirected more than 3 times"),
        ("/file", "expected an http or https URL"),
        ("/gone", "status 404"),
        ("/long", "more than 1000 bytes"),
        ("/cut", "cut short"),
    ],
)
async def test_what_is_not_taken(nursery: trio.Nursery, path: str, reason: str) -> None:
    def to(location: str) -> bytes:
        return answer(b"", "302 Found", Location=location)

    answers = {
        "/other": to("http://169.254.169.254/latest/meta-data"),
        "/port": to("http://pictures.test:1/"),
        "/around": to("/around"),
        "/file": to("file:///etc/passwd"),
        "/gone": answer(b"", "404 Not Found"),
        "/long": answer(b"x" * 1001),
        "/cut": answer(b"picture")[:-1],
    }
    host = await nursery.start(Host(answers).run)
    media = fetcher(f"pictures.test:{host.port}", max_bytes=1000)
    with pytest.raises(UrlError, match=reason):
        await media.fetch(f"http://pictures.test:{host.port}{path}")
    assert set(host.asked) == {path}


async def test_a_host_that_does_not_answer(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({}).run)
    with pytest.raises(UrlError, match=r"took longer than 0.2 seconds \(--openai-media-timeout\)"):
        await fetcher(f"a:{host.port}", timeout=0.2).fetch(f"http://a:{host.port}")


async def test_a_client_that_leaves_leaves_nothing(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({}).run)
    media = fetcher(f"a:{host.port}")
    async with trio.open_nursery() as inner:
        inner.start_soon(media.fetch, f"http://a:{host.port}")
        await host.came.wait()
        inner.cancel_scope.cancel()
    with trio.fail_after(LONG):
        await host.gone.wait()


async def test_more_than_may_be_fetched_at_once(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/a": answer(b"a")}).run)
    media = fetcher(f"a:{host.port}")
    async with trio.open_nursery() as inner:
        for _ in range(MAX_FETCHES):
            inner.start_soon(media.fetch, f"http://a:{host.port}")
        with trio.fail_after(LONG):
            while len(host.asked) < MAX_FETCHES:
                await trio.lowlevel.checkpoint()
        with pytest.raises(Overloaded, match="64 files for its clients already"):
            await media.fetch(f"http://a:{host.port}/a")
        inner.cancel_scope.cancel()
    assert await media.fetch(f"http://a:{host.port}/a") == b"a"


async def test_what_is_held_for_all_requests_is_not_exceeded(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/": answer(b"x" * 1000)}).run)
    memory = RequestMemory(1500)
    memory.take(700)
    with RequestShare(memory) as share, pytest.raises(Overloaded, match="--max-request-memory"):
        await fetcher(f"a:{host.port}").fetch(f"http://a:{host.port}", share.take)
    assert memory.held == 700


async def test_https(nursery: trio.Nursery) -> None:
    authority = trustme.CA()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("pictures.test").configure_cert(served)
    host = await nursery.start(Host({"/": answer(b"a")}, served).run)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    media = fetcher(f"pictures.test:{host.port}", f"other.test:{host.port}", tls=trusting)
    assert await media.fetch(f"https://pictures.test:{host.port}") == b"a"
    with pytest.raises(UrlError, match="TLS failed: Hostname mismatch"):
        await media.fetch(f"https://other.test:{host.port}")
    with pytest.raises(UrlError, match=r"TLS failed: .*(self-signed|unable to get local issuer)"):
        await fetcher(f"pictures.test:{host.port}").fetch(f"https://pictures.test:{host.port}")
    plain = await nursery.start(Host({"/": answer(b"a")}).run)
    with pytest.raises(UrlError, match="took longer"):  # it waits for the end of a head
        await fetcher(f"a:{plain.port}", timeout=0.5).fetch(f"https://a:{plain.port}")
