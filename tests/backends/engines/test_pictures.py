"""Pictures of an engine's requests: fetched, unpacked, and what they hold meanwhile."""

from __future__ import annotations

import base64
import io

import pytest
import trio
from PIL import Image as Pillow

from backends.engines.pictures import PictureReader
from backends.engines.tensors.images import Given, ImageRoom
from backends.engines.worker.trioton_engine.engine import Image
from protocol.errors import InvalidArgument, Overloaded
from protocol.media.fetcher import MediaFetcher, MediaSettings
from protocol.outgoing.hosts import HostRule
from tests.protocol.media.hosts import Host, answer

LONG = 60.0


def png(width: int) -> bytes:
    file = io.BytesIO()
    Pillow.new("RGB", (width, 1)).save(file, "PNG")
    return file.getvalue()


def reader(port: int, room: ImageRoom | None = None) -> PictureReader:
    return PictureReader("m", MediaFetcher(MediaSettings([HostRule.parse(f"127.0.0.1:{port}")], timeout=LONG)), room)


async def test_all_that_is_given_in_its_order(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/1": answer(png(1)), "/3": answer(png(3))}).run)
    base = f"http://127.0.0.1:{host.port}"
    room = ImageRoom()
    given = [
        Given("x", f"{base}/3"),
        Given("x", base64.b64encode(png(2))),
        Given("x", f"{base}/1"),
        Given("x", f"{base}/3"),
    ]
    images = await reader(host.port, room).read(given)
    assert images.images == tuple(Image(width, 1, bytes(3 * width)) for width in (3, 2, 1, 3))
    assert sorted(host.asked) == ["/1", "/3"]
    assert room.held == 3 * 9
    del images
    assert room.held == 0


async def test_what_cannot_be_fetched(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/no": answer(b"", "404 Not Found"), "/text": answer(b"hello")}).run)
    base = f"http://127.0.0.1:{host.port}"
    room = ImageRoom()
    for media, url, text in (
        (reader(host.port, room), f"{base}/no", f"m: x: '{base}/no' cannot be fetched: its answer has status 404"),
        (reader(host.port, room), f"{base}/text", r"m: x\[0\]: expected a picture .* 5 bytes that are none"),
        (reader(host.port, room), "http://localhost/", "is none of the hosts that this server asks"),
        (PictureReader("m", None, room), base, "m: x: .* cannot be fetched: pictures are not fetched here"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            await media.read([Given("x", url)])
    assert room.held == 0


async def test_files_count_until_they_are_unpacked(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/": answer(png(1))}).run)
    room = ImageRoom(most=20)
    with pytest.raises(Overloaded, match="the pictures of its requests take more than 20 bytes"):
        await reader(host.port, room).read([Given("x", f"http://127.0.0.1:{host.port}/")])
    assert room.held == 0


async def test_a_client_that_leaves_holds_nothing(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({}).run)
    room = ImageRoom()
    async with trio.open_nursery() as inner:
        inner.start_soon(reader(host.port, room).read, [Given("x", f"http://127.0.0.1:{host.port}/")])
        await host.came.wait()
        inner.cancel_scope.cancel()
    assert room.held == 0
