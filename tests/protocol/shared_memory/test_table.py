"""The table: every text and kind of error, the limits, and a machine that compares it with a plain model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import tritonclient.utils.shared_memory as client_shm
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from protocol.errors import AlreadyExists, InvalidArgument, NotFound, ServerError, Unavailable, Unsupported
from protocol.shared_memory.lease import Lease
from protocol.shared_memory.regions import SystemRegion
from protocol.shared_memory.table import SharedMemoryTable
from tests.protocol.shared_memory.conftest import ClientSegment, MakeSegment, attempt, open_descriptors, output

CONTENTS = bytes(range(64))
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@pytest.fixture
def client(make_segment: MakeSegment) -> ClientSegment:
    return make_segment(CONTENTS)


def test_status_of_what_is_registered(table: SharedMemoryTable, client: ClientSegment) -> None:
    """In the order of names, with everything as the client gave it."""
    table.register_system("b", client.key, 8, 16)
    table.register_system("a", client.key.lstrip("/"), 0, 64)
    table.register_system("c", f"//{client.key}", 63, 1)
    a = SystemRegion("a", client.key.lstrip("/"), 0, 64)
    b = SystemRegion("b", client.key, 8, 16)
    c = SystemRegion("c", f"//{client.key}", 63, 1)
    assert table.system_status() == (a, b, c)
    assert table.system_status("b") == (b,)
    assert table.cuda_status() == ()
    table.unregister_system("b")
    assert table.system_status() == (a, c)
    table.unregister_system()
    assert table.system_status() == ()


Call = Callable[[SharedMemoryTable, str], object]

ERRORS: dict[str, tuple[Call, type[ServerError], str]] = {
    "register without a name": (
        lambda table, key: table.register_system("", key, 0, 8),
        InvalidArgument,
        "'region name' is necessary to register system shared memory region",
    ),
    "register cuda without a name": (
        lambda table, key: table.register_cuda("", bytes(64), 0, 8),
        InvalidArgument,
        "'region name' is necessary to register cuda shared memory region",
    ),
    "name taken": (
        lambda table, key: table.register_system("taken", key, 0, 8),
        AlreadyExists,
        "shared memory region 'taken' already in manager",
    ),
    "name taken, for cuda": (
        lambda table, key: table.register_cuda("taken", bytes(64), 0, 8),
        AlreadyExists,
        "shared memory region 'taken' already in manager",
    ),
    "no such segment": (
        lambda table, key: table.register_system("n", "/trioton_test_none", 0, 8),
        InvalidArgument,
        "Unable to open shared memory region: '/trioton_test_none'",
    ),
    "outside the segment": (
        lambda table, key: table.register_system("n", key, 60, 8),
        InvalidArgument,
        "failed to register shared memory region 'n': invalid args",
    ),
    "reserved prefix": (
        lambda table, key: table.register_system("n", "//triton_python_backend_shm_region_x", 0, 8),
        InvalidArgument,
        "cannot register shared memory region 'n' with key '//triton_python_backend_shm_region_x' as the key contains "
        "the reserved prefix 'triton_python_backend_shm_region_'",
    ),
    "key of slashes, name taken": (
        lambda table, key: table.register_system("taken", "//", 0, 8),
        InvalidArgument,
        "cannot register shared memory region 'taken' - invalid shm key '//'",
    ),
    "NUL in the name": (
        lambda table, key: table.register_system("n\0", key, 0, 8),
        InvalidArgument,
        "invalid shared memory region name 'n\0', it must be text without NUL",
    ),
    "a name that is no text": (
        lambda table, key: table.register_system("\udcff", key, 0, 8),
        InvalidArgument,
        "invalid shared memory region name '?', it must be text without NUL",
    ),
    "a long name": (
        lambda table, key: table.register_system("n" * 1025, key, 0, 8),
        InvalidArgument,
        "the name of a shared memory region has at most 1024 characters, got 1025",
    ),
    "no GPU": (
        lambda table, key: table.register_cuda("n", bytes(64), 0, 8),
        InvalidArgument,
        "failed to register CUDA shared memory region: 'n', GPUs not supported",
    ),
    "status of an unknown name": (
        lambda table, key: table.system_status("n"),
        NotFound,
        "Unable to find system shared memory region: 'n'",
    ),
    "cuda status of an unknown name": (
        lambda table, key: table.cuda_status("n"),
        NotFound,
        "Unable to find cuda shared memory region: 'n'",
    ),
    "cuda status of a system region": (
        lambda table, key: table.cuda_status("taken"),
        NotFound,
        "The region named 'taken' is registered as system shared memory, not CUDA shared memory",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_error(table: SharedMemoryTable, client: ClientSegment, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The kind, the whole text, and that the table is as it was."""
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if it were not installed
    table.register_system("taken", client.key, 0, 8)
    before = open_descriptors()
    call, kind, text = ERRORS[case]
    with pytest.raises(ServerError) as caught:
        call(table, client.key)
    assert (type(caught.value), caught.value.message) == (kind, text)
    assert [region.name for region in table.system_status()] == ["taken"]
    assert open_descriptors() == before


def test_unregister_of_what_is_not_there(table: SharedMemoryTable, client: ClientSegment) -> None:
    """No error: nobody of this name, or one of the other kind, which stays."""
    table.register_system("r", client.key, 0, 8)
    table.unregister_system("x")
    table.unregister_cuda("r")
    table.unregister_cuda()
    assert len(table.system_status()) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.register_system("r", "/key", 0, 8),
        lambda table: table.register_system("", "", 0, 0),
        lambda table: table.register_cuda("r", bytes(64), 0, 8),
        lambda table: table.unregister_system("r"),
        lambda table: table.unregister_system(),
        lambda table: table.unregister_cuda(),
    ],
)
def test_registration_is_not_allowed(call: Callable[[SharedMemoryTable], None]) -> None:
    """Status always works, and a request finds no region."""
    table = SharedMemoryTable(allow_registration=False)
    with pytest.raises(Unsupported) as caught:
        call(table)
    assert caught.value.message == DISABLED
    assert not table.system_status()
    assert not table.cuda_status()
    with table.lease() as lease, pytest.raises(NotFound, match="Unable to find shared memory region: 'r'"):
        lease.read("r", 0, 1)


def test_the_number_of_regions_is_limited(client: ClientSegment) -> None:
    table = SharedMemoryTable(allow_registration=True, max_regions=2)
    table.register_system("a", client.key, 0, 8)
    table.register_system("b", client.key, 0, 8)
    with pytest.raises(Unavailable) as caught:
        table.register_system("c", client.key, 0, 8)
    assert caught.value.message == (
        "failed to register shared memory region 'c': 2 regions are registered and the server allows no more than 2; "
        "unregister some first"
    )
    with pytest.raises(AlreadyExists):
        table.register_system("a", client.key, 0, 8)
    table.unregister_system("a")
    table.register_system("c", client.key, 0, 8)
    table.close()


def test_regions_leave_descriptors_for_connections(client: ClientSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many regions are allowed, they take at most half of what the process may open."""
    monkeypatch.setattr("protocol.shared_memory.table.descriptor_limit", lambda: 5)
    table = SharedMemoryTable(allow_registration=True)
    for name in ("a", "b"):
        table.register_system(name, client.key, 0, 8)
    with pytest.raises(Unavailable, match="2 regions are registered and the server allows no more than 2"):
        table.register_system("c", client.key, 0, 8)
    table.close()


def test_two_tables_in_one_process(table: SharedMemoryTable, client: ClientSegment) -> None:
    other = SharedMemoryTable(allow_registration=True)
    table.register_system("r", client.key, 0, 8)
    other.register_system("r", client.key, 8, 8)
    table.unregister_system()
    with other.lease() as lease:
        assert bytes(lease.read("r", 0, 8)) == CONTENTS[8:16]
    other.close()


def test_tritonclients_own_segments(table: SharedMemoryTable) -> None:
    """What `tritonclient.utils.shared_memory` writes is read, and what is written it reads."""
    values = np.arange(16, dtype=np.float32)
    handle = client_shm.create_shared_memory_region("in", "/trioton_test_client", 128)
    try:
        client_shm.set_shared_memory_region(handle, [values])
        table.register_system("in", "/trioton_test_client", 0, 128)
        with table.lease() as lease:
            data = lease.read("in", 0, values.nbytes)
            lease.output("in", 64, 64).write(output((np.frombuffer(data, np.float32) * 2).data))
        seen = client_shm.get_contents_as_numpy(handle, np.float32, [16], offset=64)
        assert seen.tolist() == (values * 2).tolist()
        del seen
    finally:
        client_shm.destroy_shared_memory_region(handle)


class TableMachine(RuleBasedStateMachine):
    """Registers, leases, unregisters in any order, and holds the table against a dictionary and a set of users."""

    leases = Bundle("leases")
    names = st.sampled_from("abc")

    def __init__(self) -> None:
        super().__init__()
        self.segment = ClientSegment(CONTENTS)
        self.before = open_descriptors()
        self.table = SharedMemoryTable(allow_registration=True, max_regions=2)
        self.offsets: dict[str, int] = {}
        self.users: dict[str, set[Lease]] = {}
        self.leaving: set[str] = set()
        self.open = ExitStack()

    @rule(name=names, offset=st.integers(0, 60))
    def register(self, name: str, offset: int) -> None:
        expected = AlreadyExists if name in self.offsets else Unavailable if len(self.offsets) == 2 else None
        refusal = attempt(lambda: self.table.register_system(name, self.segment.key, offset, 4))
        if expected:
            assert type(refusal) is expected
        else:
            assert refusal is None
            self.offsets[name] = offset
            self.users[name] = set()

    @rule(name=names | st.just(""))
    def unregister(self, name: str) -> None:
        self.table.unregister_system(name)
        self.leaving |= set(self.offsets) if not name else {name} & set(self.offsets)
        self._sweep()

    @rule(target=leases)
    def begin(self) -> Lease:
        return self.open.enter_context(self.table.lease())

    @rule(lease=leases, name=names, size=st.integers(0, 6))
    def read(self, lease: Lease, name: str, size: int) -> None:
        result = attempt(lambda: bytes(lease.read(name, 0, size)))
        if name not in self.offsets:
            assert type(result) is NotFound
            return
        self.users[name].add(lease)
        if size > 4:
            assert type(result) is InvalidArgument
        else:
            assert result == CONTENTS[self.offsets[name] :][:size]

    @rule(lease=consumes(leases))
    def end(self, lease: Lease) -> None:
        lease.__exit__(None, None, None)
        for users in self.users.values():
            users.discard(lease)
        self._sweep()

    def _sweep(self) -> None:
        """What is leaving and has no users goes."""
        for name in [name for name in self.leaving if not self.users[name]]:
            del self.offsets[name], self.users[name]
            self.leaving.discard(name)

    @invariant()
    def the_table_shows_the_model(self) -> None:
        assert {region.name: region.offset for region in self.table.system_status()} == self.offsets
        assert len(open_descriptors() - self.before) == len(self.offsets)

    def teardown(self) -> None:
        self.open.close()
        self.table.close()
        assert open_descriptors() == self.before
        self.segment.unlink()


TestTableMachine = pytest.mark.slow(TableMachine.TestCase)
TestTableMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() <= before
