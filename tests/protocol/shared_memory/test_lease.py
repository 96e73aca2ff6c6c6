"""Leases: what a request reads and writes, and what stays while it does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.errors import AlreadyExists, InvalidArgument, NotFound, PayloadTooLarge, Unavailable
from protocol.shared_memory.table import SharedMemoryTable
from tests.protocol.shared_memory.conftest import ClientSegment, MakeSegment, attempt, open_descriptors, output

CONTENTS = bytes(range(100))
# The region that most tests use: 64 bytes at 16.
OFFSET, SIZE = 16, 64
REGION = CONTENTS[OFFSET : OFFSET + SIZE]


@pytest.fixture
def client(table: SharedMemoryTable, make_segment: MakeSegment) -> ClientSegment:
    segment = make_segment(CONTENTS)
    table.register_system("r", segment.key, OFFSET, SIZE)
    return segment


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedMemoryTable]:
    """One table for all examples of a property; nothing is written to its segment."""
    segment = ClientSegment(CONTENTS)
    table = SharedMemoryTable(allow_registration=True)
    table.register_system("r", segment.key, OFFSET, SIZE)
    yield table
    table.close()
    segment.unlink()


NUMBERS = st.integers(-2, SIZE + 2) | st.sampled_from([-(2**63), 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64])


@given(offset=NUMBERS, byte_size=NUMBERS)
@example(offset=0, byte_size=SIZE)
@example(offset=SIZE, byte_size=0)
def test_a_read_stays_in_its_region(shared: SharedMemoryTable, offset: int, byte_size: int) -> None:
    """The bytes of the region and no others, or the client's error."""
    with shared.lease() as lease:
        if 0 <= offset < SIZE and 0 <= byte_size <= SIZE - offset:
            assert bytes(lease.read("r", offset, byte_size)) == REGION[offset : offset + byte_size]
            assert lease.output("r", offset, byte_size).byte_size == byte_size
        else:
            for use in (lease.read, lease.output):
                with pytest.raises(InvalidArgument):
                    use("r", offset, byte_size)


@pytest.mark.parametrize(
    ("offset", "byte_size", "text"),
    [
        (SIZE, 0, "Invalid offset for shared memory region: 'r'"),
        (SIZE, 1, "Invalid offset for shared memory region: 'r'"),
        (2**64, 1, "Invalid offset for shared memory region: 'r'"),
        (-1, 1, "Invalid offset for shared memory region: 'r'"),
        (0, SIZE + 1, "Invalid offset + byte size for shared memory region: 'r'"),
        (SIZE - 1, 2, "Invalid offset + byte size for shared memory region: 'r'"),
        (0, -1, "Invalid offset + byte size for shared memory region: 'r'"),
        (0, 2**40, "Invalid offset + byte size for shared memory region: 'r'"),
        (1, 2**64 - 2, "Invalid offset + byte size for shared memory region: 'r'"),
        (
            2,
            2**64 - 1,
            "Integer overflow detected: byte_size (18446744073709551615) + offset (2) exceeds maximum value "
            "(18446744073709551615) for region 'r'",
        ),
    ],
)
def test_texts_of_bounds(shared: SharedMemoryTable, offset: int, byte_size: int, text: str) -> None:
    with shared.lease() as lease, pytest.raises(InvalidArgument) as caught:
        lease.read("r", offset, byte_size)
    assert caught.value.message == text


@pytest.mark.parametrize("name", ["x", "", "R", "r\0", "\udcff"])
def test_an_unknown_region(shared: SharedMemoryTable, name: str) -> None:
    for use in ("read", "output"):
        with shared.lease() as lease, pytest.raises(NotFound) as caught:
            getattr(lease, use)(name, 0, 1)
        shown = name.encode(errors="replace").decode()
        assert caught.value.message == f"Unable to find shared memory region: '{shown}'"


def test_a_long_unknown_name_makes_no_long_error(shared: SharedMemoryTable) -> None:
    with shared.lease() as lease, pytest.raises(NotFound) as caught:
        lease.read("x" * 10**6, 0, 1)
    assert len(caught.value.message) < 1200


def test_an_output_is_written_where_it_belongs(table: SharedMemoryTable, client: ClientSegment) -> None:
    """What lies around it in the segment stays as it was, also the rest of a larger target."""
    with table.lease() as lease:
        lease.output("r", 4, 8).write(output(b"\xff" * 5))
    assert client.contents == CONTENTS[:20] + b"\xff" * 5 + CONTENTS[25:]


@pytest.mark.parametrize("data", [b"123456789", memoryview(bytes(12)).cast("I")], ids=["bytes", "words"])
def test_an_output_larger_than_its_place(
    table: SharedMemoryTable, client: ClientSegment, data: bytes | memoryview
) -> None:
    with table.lease() as lease, pytest.raises(InvalidArgument) as caught:
        lease.output("r", 0, 8).write(output(data))
    assert caught.value.message == (
        f"shared memory size specified with the request for output 'o' (8 bytes) should be at least "
        f"{memoryview(data).nbytes} bytes to hold the results"
    )
    assert client.contents == CONTENTS


def test_a_region_truncated_under_a_lease(table: SharedMemoryTable, client: ClientSegment) -> None:
    with table.lease() as lease:
        target = lease.output("r", 0, 8)
        client.truncate(OFFSET + 4)
        with pytest.raises(InvalidArgument, match="shared memory region 'r' was truncated"):
            lease.read("r", 0, 8)
        with pytest.raises(InvalidArgument, match="shared memory region 'r' was truncated"):
            target.write(output(bytes(8)))
        assert client.contents == CONTENTS[: OFFSET + 4]


def test_unregistered_under_a_lease(table: SharedMemoryTable, client: ClientSegment) -> None:
    """It stays, visible and with its name taken, until the lease ends; then it is gone and its name free."""
    before = open_descriptors()
    with table.lease() as lease:
        target = lease.output("r", 0, 8)
        table.unregister_system("r")
        table.unregister_system("r")
        assert [region.name for region in table.system_status("r")] == ["r"]
        with pytest.raises(AlreadyExists) as caught:
            table.register_system("r", client.key, 0, 8)
        assert caught.value.message == "shared memory region 'r' already in manager"
        assert bytes(lease.read("r", 0, 4)) == REGION[:4]
        target.write(output(b"\xff" * 8))
    assert table.system_status() == ()
    assert len(before - open_descriptors()) == 1
    assert client.contents[OFFSET : OFFSET + 8] == b"\xff" * 8
    table.register_system("r", client.key, 0, 8)
    with table.lease() as lease:
        assert bytes(lease.read("r", 0, 1)) == CONTENTS[:1]


def test_the_last_of_several_leases_lets_it_go(table: SharedMemoryTable, client: ClientSegment) -> None:
    """One lease counts once, however often it uses the region; a lease taken meanwhile counts too."""
    with table.lease() as late:
        with table.lease() as early:
            early.read("r", 0, 1)
            early.output("r", 0, 1)
            early.read("r", 1, 1)
            table.unregister_system()
            late.read("r", 0, 1)
        assert len(table.system_status()) == 1
    assert table.system_status() == ()


def test_a_lease_that_uses_nothing_holds_nothing(table: SharedMemoryTable, client: ClientSegment) -> None:
    with table.lease() as lease:
        with pytest.raises(NotFound):
            lease.read("x", 0, 1)
        table.unregister_system("r")
        assert table.system_status() == ()


def test_a_failed_request_gives_the_region_back(table: SharedMemoryTable, client: ClientSegment) -> None:
    with pytest.raises(ZeroDivisionError), table.lease() as lease:
        len(lease.read("r", 0, 1)) / 0
    table.unregister_system("r")
    assert table.system_status() == ()


def test_a_refused_use_still_ends_with_the_lease(table: SharedMemoryTable, client: ClientSegment) -> None:
    with table.lease() as lease:
        with pytest.raises(InvalidArgument):
            lease.read("r", SIZE, 1)
        table.unregister_system("r")
        assert len(table.system_status()) == 1
    assert table.system_status() == ()


def test_nothing_is_used_after_the_end(table: SharedMemoryTable, client: ClientSegment) -> None:
    """The descriptor may be another file's by then; what was read stays."""
    with table.lease() as lease:
        data = lease.read("r", 0, 4)
        target = lease.output("r", 0, 8)
    table.unregister_system("r")
    assert bytes(data) == REGION[:4]
    for use in (lambda: lease.read("r", 0, 4), lambda: lease.output("r", 0, 4), lambda: target.write(output(b""))):
        with pytest.raises(RuntimeError, match="after the end of its lease"):
            use()


def test_the_server_ends_while_a_request_runs(table: SharedMemoryTable, client: ClientSegment) -> None:
    with table.lease() as lease:
        target = lease.output("r", 0, 1)
        table.close()
        target.write(output(b"\xff"))
    assert table.system_status() == ()
    assert client.contents[OFFSET] == 0xFF


@pytest.fixture
def small(client: ClientSegment) -> Iterator[SharedMemoryTable]:
    """A server that holds 100 bytes of inputs, and a sparse segment that promises a terabyte."""
    client.truncate(2**40)
    table = SharedMemoryTable(allow_registration=True, max_bytes_in_use=100)
    table.register_system("big", client.key, 0, 2**40)
    yield table
    table.close()


@pytest.mark.parametrize("sizes", [[101], [2**40], [60, 41]], ids=str)
def test_one_request_beyond_the_bytes_limit(small: SharedMemoryTable, sizes: list[int]) -> None:
    """Nothing of that size is allocated, and the limit is named."""
    with small.lease() as lease:
        for size in sizes[:-1]:
            lease.read("big", 0, size)
        with pytest.raises(PayloadTooLarge) as caught:
            lease.read("big", 0, sizes[-1])
    assert caught.value.message == (
        f"the inputs of one request take {sum(sizes)} bytes from shared memory, which exceeds the maximum of 100 bytes "
        f"that the server copies for all requests"
    )
    with small.lease() as lease:
        assert len(lease.read("big", 0, 100)) == 100


def test_all_requests_beyond_the_bytes_limit(small: SharedMemoryTable) -> None:
    """What one request may have, it may have later; outputs are not counted."""
    with small.lease() as second:
        with small.lease() as first:
            first.read("big", 0, 60)
            second.read("big", 0, 40)
            second.output("big", 0, 2**30)
            with pytest.raises(Unavailable) as caught:
                second.read("big", 0, 1)
            assert caught.value.message == (
                "no room for 1 bytes from shared memory: requests in flight hold 100 of at most 100 bytes"
            )
        second.read("big", 0, 60)


def test_leases_in_many_threads(table: SharedMemoryTable, client: ClientSegment) -> None:
    """Registered, used and unregistered at once: each use is whole or an error of the client's, and nothing is left."""

    def use(name: str) -> bytes:
        table.register_system(name, client.key, OFFSET, SIZE)
        with table.lease() as lease:
            data = bytes(lease.read(name, 0, SIZE))
            table.unregister_system(name)
        return data

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(attempt, [partial(use, name) for name in ("a", "b") * 100]))
    for result in results:
        assert isinstance(result, AlreadyExists | NotFound) or result == REGION
    assert REGION in results
    assert [region.name for region in table.system_status()] == ["r"]
