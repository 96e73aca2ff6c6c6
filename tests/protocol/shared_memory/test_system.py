"""Segments by key: what is opened, what is refused, and what becomes of those that their client takes away."""

from __future__ import annotations

import os
import resource
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument, Unavailable
from protocol.shared_memory import system
from protocol.shared_memory.system import Segment, open_segment, segment_name
from tests.protocol.shared_memory.conftest import ClientSegment, MakeSegment, attempt, open_descriptors

CONTENTS = bytes(range(256)) * 64


@pytest.fixture
def client(make_segment: MakeSegment) -> ClientSegment:
    return make_segment(CONTENTS)


@pytest.fixture(params=["mapped", "by its descriptor"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How bytes are moved: the second way is that of segments that cannot be mapped."""
    if request.param != "mapped":
        monkeypatch.setattr(system, "mapped", lambda *_: None)
    return str(request.param)


@pytest.fixture
def segment(client: ClientSegment, way: str) -> Iterator[Segment]:
    segment = open_segment("r", client.key, 0, len(CONTENTS))
    yield segment
    segment.close()


@pytest.fixture
def unmapped(client: ClientSegment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Segment]:
    monkeypatch.setattr(system, "mapped", lambda *_: None)
    segment = open_segment("r", client.key, 0, len(CONTENTS))
    yield segment
    segment.close()


@pytest.fixture
def mapped(client: ClientSegment) -> Iterator[Segment]:
    segment = open_segment("r", client.key, 0, len(CONTENTS))
    yield segment
    segment.close()


@pytest.fixture
def truncated_after_a_look(client: ClientSegment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Tells how far the client truncates its segment as soon as its size was looked at."""
    lseek = os.lseek

    def to(left: int) -> None:
        def look(descriptor: int, position: int, whence: int) -> int:
            found = lseek(descriptor, position, whence)
            client.truncate(left)
            return found

        monkeypatch.setattr(os, "lseek", look)

    yield to
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("key", "name"),
    [("a", "a"), ("/a", "a"), ("///a", "a"), ("..a", "..a"), ("/a b%2f", "a b%2f"), ("größe", "größe")],
)
def test_a_key_may_have_leading_slashes(key: str, name: str) -> None:
    assert segment_name(key, region="r") == name


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "//////",
        ".",
        "..",
        "/..",
        "a/b",
        "/a/../b",
        "../etc/passwd",
        "//../x",
        "a/",
        "a\0b",
        "\0",
        "\udcff",
        "/" * 1024 + "a",
    ],
    ids=ascii,
)
def test_a_key_outside_the_name_space_is_refused(key: str) -> None:
    """What is shown of the key is short, and text."""
    with pytest.raises(InvalidArgument) as caught:
        segment_name(key, region="r")
    assert caught.value.message.startswith("cannot register shared memory region 'r' - invalid shm key '")
    assert len(caught.value.message.encode()) < 1200


@pytest.mark.parametrize("slashes", ["", "/", "///"])
def test_the_reserved_prefix_is_refused(slashes: str) -> None:
    key = f"{slashes}triton_python_backend_shm_region_1"
    with pytest.raises(InvalidArgument) as caught:
        segment_name(key, region="r")
    assert caught.value.message == (
        f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix "
        f"'triton_python_backend_shm_region_'"
    )


def make_directory(path: Path) -> None:
    path.mkdir()


def make_link(path: Path) -> None:
    path.symlink_to(__file__)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unbound:
        unbound.bind(str(path))


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: None, "Unable to open shared memory region: '{}'"),
        (make_directory, "Unable to open shared memory region: '{}'"),
        (make_link, "Unable to open shared memory region: '{}'"),
        (make_socket, "Unable to open shared memory region: '{}'"),
        (make_fifo, "Invalid shared memory region: '{}'"),
    ],
    ids=["nothing", "directory", "symbolic link", "socket", "fifo"],
)
def test_what_is_no_segment_is_refused_at_once(make: Callable[[Path], None], text: str) -> None:
    """It is the client's mistake, and leaves nothing open."""
    key = f"/trioton_test_{uuid.uuid4().hex}"
    path = Path("/dev/shm") / key[1:]
    before = open_descriptors()
    make(path)
    try:
        with pytest.raises(InvalidArgument) as caught:
            open_segment("r", key, 0, 8)
    finally:
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
    assert caught.value.message == text.format(key)
    assert open_descriptors() == before


def test_a_name_too_long_for_the_file_system_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="Unable to open shared memory region"):
        open_segment("r", "a" * 256, 0, 8)


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [
        (0, len(CONTENTS) + 1),
        (1, len(CONTENTS)),
        (len(CONTENTS), 1),
        (0, 0),
        (-1, 8),
        (8, -1),
        (2**64, 8),
        (8, 2**40),
        (2**63, 2**63),
        (0, 2**64),
    ],
)
def test_bounds_outside_the_segment_are_refused(client: ClientSegment, offset: int, byte_size: int) -> None:
    before = open_descriptors()
    with pytest.raises(InvalidArgument) as caught:
        open_segment("r", client.key, offset, byte_size)
    assert caught.value.message == "failed to register shared memory region 'r': invalid args"
    assert open_descriptors() == before


def test_without_a_descriptor_the_answer_is_not_now(client: ClientSegment) -> None:
    """Not the client's mistake."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))  # the lowest free number is the first one forbidden
    try:
        with pytest.raises(
            Unavailable, match=f"Unable to open shared memory region: '{client.key}': Too many open files"
        ):
            open_segment("r", client.key, 0, 8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_is_not_inherited(client: ClientSegment) -> None:
    before = open_descriptors()
    segment = open_segment("r", client.key, 0, 8)
    (entry,) = open_descriptors() - before
    assert not os.get_inheritable(entry[0])
    segment.close()
    assert open_descriptors() == before


@given(st.data())
def test_a_read_gives_exactly_the_bytes(data: st.DataObject) -> None:
    client = ClientSegment(CONTENTS)
    try:
        segment = open_segment("r", client.key, 0, len(CONTENTS))
        position = data.draw(st.integers(0, len(CONTENTS)))
        size = data.draw(st.integers(0, len(CONTENTS) - position))
        assert bytes(segment.read(position, size)) == CONTENTS[position : position + size]
        segment.close()
    finally:
        client.unlink()


def test_a_read_is_a_copy(client: ClientSegment, segment: Segment) -> None:
    """What the client does afterwards does not reach a request, and the copy cannot be written to."""
    view = memoryview(segment.read(0, 16))
    client.path.write_bytes(bytes(len(CONTENTS)))
    assert bytes(view) == CONTENTS[:16]
    assert view.readonly


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 5,
        bytearray(b"\xff" * 5),
        memoryview(b"\xff" * 5),
        memoryview(b"\xff" * 4).cast("B", (2, 2)),
        b"",
        memoryview(b"\xff" * 4).cast("I"),
    ],
    ids=["bytes", "bytearray", "view", "matrix", "nothing", "words"],
)
def test_a_write_changes_exactly_its_bytes(
    client: ClientSegment, segment: Segment, data: bytes | bytearray | memoryview
) -> None:
    segment.write(100, data)
    size = memoryview(data).nbytes
    assert client.contents == CONTENTS[:100] + b"\xff" * size + CONTENTS[100 + size :]


def test_an_unlinked_segment_is_still_there(client: ClientSegment, segment: Segment) -> None:
    client.unlink()
    segment.write(0, b"abc")
    assert bytes(segment.read(0, 4)) == b"abc\x03"


def test_calls_that_come_back_short_go_on(
    unmapped: Segment, client: ClientSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do beyond 2 GiB, or when a signal arrives."""
    preadv, pwritev = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:7]], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: pwritev(fd, [buffers[0][:7]], at))
    assert bytes(unmapped.read(3, 100)) == CONTENTS[3:103]
    unmapped.write(3, b"\xff" * 100)
    monkeypatch.undo()
    assert client.contents == CONTENTS[:3] + b"\xff" * 100 + CONTENTS[103:]


@pytest.mark.parametrize("left", [0, 99, 107])
def test_a_truncated_segment_is_an_error(client: ClientSegment, segment: Segment, left: int) -> None:
    """It is neither read beyond its end nor made to grow again; what it still holds can be used."""
    client.truncate(left)
    text = (
        f"shared memory region 'r' was truncated: 8 bytes at offset 100 of segment '{client.key}' are needed, but it "
        f"holds {left} bytes"
    )
    with pytest.raises(InvalidArgument) as caught:
        segment.read(100, 8)
    assert caught.value.message == text
    with pytest.raises(InvalidArgument) as caught:
        segment.write(100, b"\xff" * 8)
    assert caught.value.message == text
    assert client.contents == CONTENTS[:left]
    assert bytes(segment.read(0, left)) == CONTENTS[:left]


@pytest.mark.parametrize("left", [0, 4, 104])
def test_truncated_in_the_midst_of_a_read(
    client: ClientSegment, unmapped: Segment, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    preadv = os.preadv

    def some_then_truncate(descriptor: int, buffers: list[memoryview], position: int) -> int:
        count = preadv(descriptor, [buffers[0][:5]], position)
        client.truncate(left)
        return count

    monkeypatch.setattr(os, "preadv", some_then_truncate)
    with pytest.raises(InvalidArgument, match=f"was truncated: 8 bytes at offset 100 .* holds {left} bytes"):
        unmapped.read(100, 8)


@pytest.mark.parametrize("left", [0, 4096, 8192])
def test_truncated_between_the_check_and_the_copy(
    mapped: Segment, client: ClientSegment, truncated_after_a_look: Callable[[int], None], left: int
) -> None:
    truncated_after_a_look(left)
    text = f"was truncated: 8000 bytes at offset 5000 .* holds {left} bytes"
    with pytest.raises(InvalidArgument, match=text):
        mapped.read(5000, 8000)
    with pytest.raises(InvalidArgument, match=text):
        mapped.write(5000, b"\xff" * 8000)
    assert len(client.contents) == left


def test_a_segment_that_grows_again_is_used_again(
    mapped: Segment,
    client: ClientSegment,
    truncated_after_a_look: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truncated_after_a_look(0)
    with pytest.raises(InvalidArgument, match="was truncated"):
        mapped.read(0, 8)
    monkeypatch.undo()
    client.path.write_bytes(CONTENTS)
    assert bytes(mapped.read(0, len(CONTENTS))) == CONTENTS
    mapped.write(0, b"\xff" * 8)
    assert client.contents == b"\xff" * 8 + CONTENTS[8:]


@pytest.mark.parametrize("left", [0, 99, 107])
def test_truncated_between_the_check_and_the_write(
    client: ClientSegment, unmapped: Segment, truncated_after_a_look: Callable[[int], None], left: int
) -> None:
    """It takes back what it once had, at its client's cost."""
    truncated_after_a_look(left)
    unmapped.write(100, b"\xff" * 8)
    assert client.contents == CONTENTS[:left][:100].ljust(100, b"\0") + b"\xff" * 8


@pytest.mark.usefixtures("way")
def test_a_segment_truncated_again_and_again(client: ClientSegment) -> None:
    """Whenever it happens, the answer is all bytes or an error, and the process lives."""
    is_over = threading.Event()

    def toggle() -> None:
        while not is_over.is_set():
            client.truncate(0)
            client.truncate(len(CONTENTS))

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        for _ in range(300):
            segment = attempt(lambda: open_segment("r", client.key, 0, len(CONTENTS)))
            if isinstance(segment, Segment):
                for result in (
                    attempt(lambda segment=segment: len(segment.read(0, len(CONTENTS)))),  # type: ignore[misc]
                    attempt(lambda segment=segment: segment.write(0, CONTENTS)),  # type: ignore[misc]
                ):
                    assert result in (len(CONTENTS), None) or isinstance(result, InvalidArgument)
                segment.close()
    finally:
        is_over.set()
        thread.join()


def test_a_full_file_system_is_not_now(unmapped: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(
        Unavailable, match="unable to write 3 bytes to shared memory region 'r': No space left on device"
    ):
        unmapped.write(0, b"abc")


def test_no_memory_for_the_copy_is_not_now(client: ClientSegment) -> None:
    """A segment may be sparse and promise more than the machine has."""
    size = 2**55
    client.truncate(size)
    segment = open_segment("r", client.key, 0, size)
    with pytest.raises(Unavailable, match=f"unable to read {size} bytes of shared memory region 'r': out of memory"):
        segment.read(0, size)
    segment.close()


def test_a_status_that_fails_is_the_clients(client: ClientSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> os.stat_result:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fstat", refuse)
    result = attempt(lambda: open_segment("r", client.key, 0, 8))
    monkeypatch.undo()
    assert isinstance(result, InvalidArgument)
    assert result.message == f"Invalid shared memory region: '{client.key}'"


@given(st.text(max_size=40))
def test_any_key_opens_nothing_but_a_segment(key: str) -> None:
    """Whatever is asked for, nothing outside the name space is opened, and no error is the server's."""
    before = open_descriptors()
    with pytest.raises(InvalidArgument):
        open_segment("r", f"trioton_test_none_{key}", 0, 1)
    assert open_descriptors() == before
