"""The poller: sockets that are called, while tasks, deadlines, threads and the idle go their way by Trio."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count

import pytest
import trio
import trio.testing

from protocol.reactor import drivers, poller
from protocol.reactor.busy_polling import BusyPolling, Events
from protocol.reactor.drivers import InlineDriver, TaskDriver, the_poller
from protocol.reactor.poller import Poller
from protocol.reactor.socket_tasks import SocketTasks

Pair = tuple[socket.socket, socket.socket]
needs_epoll = pytest.mark.skipif(not drivers.has_epoll(), reason="this system has no epoll")


@pytest.fixture
def pair() -> Iterator[Pair]:
    """One end for the poller, one for whoever talks to it."""
    watched, other = socket.socketpair()
    with watched, other:
        watched.setblocking(False)
        yield watched, other


def busy_polling(look: Callable[[float, int], Events]) -> BusyPolling:
    """One that looks before it sleeps from the start."""
    made = BusyPolling(look)
    made.limit = 200e-6
    made._usual = 0.0
    return made


@pytest.fixture(params=["inline", "inline, busily", "task", "a task for each socket"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "task":
        monkeypatch.setattr(drivers, "trio_epoll_descriptor", lambda: None)
    elif request.param == "a task for each socket":
        monkeypatch.setattr(drivers, "has_epoll", lambda: False)
    elif request.param == "inline, busily":
        monkeypatch.setattr(poller, "BusyPolling", busy_polling)
    return str(request.param)


def inline_driver() -> InlineDriver:
    """One beside the run's own, to be told what Trio tells that."""
    made = InlineDriver(the_poller())
    trio.lowlevel.add_instrument(made)
    return made


class Turns(trio.abc.Instrument):
    """How often Trio has waited itself."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


def echo(watched: socket.socket) -> Callable[[], None]:
    return lambda: watched.sendall(watched.recv(100))


def no_defect(error: Exception) -> None:
    raise AssertionError("the call has failed") from error


def ask(other: socket.socket, times: int) -> None:
    for number in range(times):
        other.sendall(bytes([number]))
        assert other.recv(100) == bytes([number])


@pytest.mark.usefixtures("way")
async def test_sockets_are_called_beside_tasks(pair: Pair) -> None:
    watched, other = pair
    the_poller().add(watched, echo(watched), no_defect)
    left, right = trio.socket.socketpair()
    with left, right:

        async def answer() -> None:
            for _ in range(20):
                await right.send(await right.recv(100))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer)
                nursery.start_soon(trio.to_thread.run_sync, ask, other, 200)
                for _ in range(20):
                    await left.send(b"x")
                    assert await left.recv(100) == b"x"
    the_poller().remove(watched)


async def test_calls_cost_trio_no_turn(pair: Pair) -> None:
    watched, other = pair
    turns = Turns()
    the_poller().add(watched, echo(watched), no_defect)
    trio.lowlevel.add_instrument(turns)
    await trio.to_thread.run_sync(ask, other, 200)
    assert turns.count < 20
    the_poller().remove(watched)


@pytest.mark.usefixtures("way")
async def test_deadlines_pass_while_sockets_are_called(pair: Pair) -> None:
    watched, other = pair
    the_poller().add(watched, echo(watched), no_defect)
    is_over = threading.Event()

    def talk() -> None:
        while not is_over.is_set():
            ask(other, 10)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, talk)
            for _ in range(5):
                with trio.move_on_after(0.02) as waiting:
                    await trio.sleep_forever()
                assert waiting.cancelled_caught
            is_over.set()
    the_poller().remove(watched)


async def test_trio_does_not_sleep_on_behind_a_deadline(pair: Pair) -> None:
    """It has told how long it will sleep before the poller did so in its place."""
    driver = inline_driver()
    the_poller().add(pair[0], echo(pair[0]), no_defect)
    driver.before_io_wait(0.01)
    assert trio.lowlevel.current_statistics().run_sync_soon_queue_size == 0
    with trio.CancelScope(deadline=trio.current_time() + 0.01):
        driver.before_io_wait(0.02)
        assert trio.lowlevel.current_statistics().run_sync_soon_queue_size == 1
        await trio.lowlevel.cancel_shielded_checkpoint()
    the_poller().remove(pair[0])


async def test_nor_behind_one_that_a_call_has_moved_away(pair: Pair) -> None:
    """Nothing is due then any more, and all the sockets would go unheard."""
    watched, other = pair

    def call() -> None:
        watched.recv(100)
        moved.deadline = trio.current_time() + 3600

    driver = inline_driver()
    the_poller().add(watched, call, no_defect)
    with trio.CancelScope(deadline=trio.current_time() + 0.01) as moved:
        other.sendall(b"x")
        driver.before_io_wait(0.02)
        assert trio.lowlevel.current_statistics().run_sync_soon_queue_size == 1
        await trio.lowlevel.cancel_shielded_checkpoint()
    the_poller().remove(watched)


async def test_trio_is_kept_awake_where_a_call_takes_away_what_was_there_for_it(pair: Pair) -> None:
    """A socket that a task waits for can be written to, until the call closes it."""
    watched, other = pair
    waited, left = socket.socketpair()
    waited.setblocking(False)
    closed = trio.Event()

    def call() -> None:
        watched.recv(100)
        trio.lowlevel.notify_closing(waited)
        waited.close()

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(waited)
        closed.set()

    driver = inline_driver()
    the_poller().add(watched, call, no_defect)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        left.sendall(b"x")
        other.sendall(b"x")
        driver.before_io_wait(3600)  # as Trio does, which then would sleep
        assert trio.lowlevel.current_statistics().run_sync_soon_queue_size == 1
    assert closed.is_set()
    the_poller().remove(watched)
    left.close()


@pytest.mark.usefixtures("way")
async def test_a_task_that_a_call_wakes_runs_at_once(pair: Pair) -> None:
    watched, other = pair
    heard = trio.Event()

    def call() -> None:
        watched.recv(100)
        heard.set()

    the_poller().add(watched, call, no_defect)
    thread = threading.Timer(0.05, other.sendall, [b"x"])
    thread.start()
    with trio.fail_after(60):
        await heard.wait()
    thread.join()
    the_poller().remove(watched)


@pytest.mark.usefixtures("way")
async def test_the_idle_are_told(pair: Pair) -> None:
    the_poller().add(pair[0], echo(pair[0]), no_defect)
    with trio.fail_after(60):
        await trio.testing.wait_all_tasks_blocked(0.01)
    the_poller().remove(pair[0])


@pytest.mark.usefixtures("way")
async def test_who_looks_away_is_not_called_any_more() -> None:
    """Not even where both have something: whichever is called first removes the other."""
    pairs = [socket.socketpair() for _ in range(2)]
    called: list[int] = []

    def call(number: int) -> Callable[[], None]:
        def read() -> None:
            pairs[number][0].recv(100)
            called.append(number)
            the_poller().remove(pairs[1 - number][0])

        return read

    for number, (watched, other) in enumerate(pairs):
        other.sendall(b"x")
        the_poller().add(watched, call(number), no_defect)
    await trio.sleep(0.05)
    assert len(called) == 1
    the_poller().remove(pairs[called[0]][0])
    for both in pairs:
        for end in both:
            end.close()


@pytest.mark.usefixtures("way")
async def test_one_that_is_closed_gives_its_number_to_another(pair: Pair) -> None:
    first, _ = pair
    number = first.fileno()
    the_poller().add(first, echo(first), no_defect)
    first.close()
    second, other = socket.socketpair()
    with second, other:
        assert second.fileno() == number
        the_poller().add(second, echo(second), no_defect, later=True)
        the_poller().remove(first)
        await trio.to_thread.run_sync(ask, other, 3)
        the_poller().remove(second)


async def test_workers_are_called_when_what_comes_meanwhile_has_been_read(way: str) -> None:
    if way == "a task for each socket":
        pytest.skip("what comes meanwhile is seen by the tasks' next turn")
    pairs = [socket.socketpair() for _ in range(3)]
    said: list[str] = []

    def call(name: str, number: int, send: int) -> Callable[[], None]:
        def read() -> None:
            pairs[number][0].recv(1)
            said.append(name)
            if len(said) < 3:
                pairs[send][1].sendall(b"x")

        return read

    the_poller().add(pairs[0][0], call("worker", 0, 0), no_defect, later=True)
    the_poller().add(pairs[1][0], call("client", 1, 2), no_defect)
    the_poller().add(pairs[2][0], call("other client", 2, 1), no_defect)
    pairs[0][1].sendall(b"x")
    pairs[1][1].sendall(b"x")
    await trio.sleep(0.05)
    assert said == ["client", "other client", "client", "worker"]
    for watched, other in pairs:
        the_poller().remove(watched)
        watched.close()
        other.close()


@pytest.mark.usefixtures("way")
async def test_the_first_of_the_later_ones_is_called_before_them() -> None:
    """Whichever had something first."""
    pairs = [socket.socketpair() for _ in range(3)]
    said: list[int] = []
    all_have = trio.Event()

    def call(number: int) -> Callable[[], None]:
        def read() -> None:
            said.append(pairs[number][0].recv(1)[0])
            if len(said) == 3:
                all_have.set()

        return read

    with ExitStack() as stack:
        for number in (0, 2, 1):
            for each in pairs[number]:
                stack.enter_context(each)
            pairs[number][1].sendall(bytes([number]))
        for number in range(3):
            the_poller().add(pairs[number][0], call(number), no_defect, later=True, first=number == 1)
        await all_have.wait()
        assert said[0] == 1
        for watched, _ in pairs:
            the_poller().remove(watched)


@pytest.mark.usefixtures("way")
async def test_bursts_have_an_end(pair: Pair) -> None:
    """Once for all that had something, and only as long as asked. Who is to be told by several is told once."""
    watched, other = pair
    said: list[str] = []

    def end() -> None:
        said.append("end")

    def call() -> None:
        watched.recv(1)
        said.append("read")

    the_poller().add(watched, call, no_defect)
    with the_poller().calling_last(end):
        with the_poller().calling_last(end):
            pass
        other.sendall(b"x")
        await trio.sleep(0.05)
    assert said == ["read", "end"]
    del said[:]
    other.sendall(b"x")
    await trio.sleep(0.05)
    assert said == ["read"]
    the_poller().remove(watched)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("later", [False, True])
async def test_a_defect_in_a_call_costs_its_socket(pair: Pair, later: bool) -> None:
    """Its owner is told of it, once; the other sockets, and Trio's own waits, go on."""
    told: list[Exception] = []

    def call() -> None:
        raise ZeroDivisionError

    failing, its_other = socket.socketpair()
    with failing, its_other:
        the_poller().add(failing, call, told.append, later=later)
        the_poller().add(pair[0], echo(pair[0]), no_defect)
        its_other.sendall(b"x")
        await trio.to_thread.run_sync(ask, pair[1], 20)
        assert [type(error) for error in told] == [ZeroDivisionError]
        the_poller().remove(failing)  # as an owner does that does not know that it was removed
        the_poller().remove(pair[0])


@pytest.mark.usefixtures("way")
async def test_an_owner_that_cannot_be_told_of_a_defect_costs_no_other(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    def call() -> None:
        raise ZeroDivisionError

    def failed(error: Exception) -> None:
        raise ValueError("cannot end it")

    failing, its_other = socket.socketpair()
    with failing, its_other:
        the_poller().add(failing, call, failed)
        the_poller().add(pair[0], echo(pair[0]), no_defect)
        its_other.sendall(b"x")
        await trio.to_thread.run_sync(ask, pair[1], 20)
        the_poller().remove(pair[0])
    assert "cannot end it" in caplog.text


@pytest.mark.usefixtures("way")
async def test_a_defect_at_the_end_of_a_burst_keeps_no_other_from_being_called(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    the_poller().add(pair[0], echo(pair[0]), no_defect)
    with the_poller().calling_last(fail), the_poller().calling_last(lambda: ends.append(1)):
        await trio.to_thread.run_sync(ask, pair[1], 5)
        await trio.sleep(0.01)
    assert len(ends) >= 5
    assert "ZeroDivisionError" in caplog.text
    the_poller().remove(pair[0])


async def test_a_defect_in_the_wait_itself_is_got_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It sleeps at once from then on; Trio would have removed the instrument."""
    waited: list[float] = []
    selector_poll: Callable[[float, int], Events] = the_poller()._selector.poll

    def wait(timeout: float, most: int) -> Events:
        waited.append(timeout)
        if len(waited) == 3:
            raise ZeroDivisionError
        return selector_poll(timeout, most)

    monkeypatch.setattr(the_poller().busy, "wait", wait)
    the_poller().add(pair[0], echo(pair[0]), no_defect)
    with the_poller().busy.limited_to(200e-6):
        await trio.to_thread.run_sync(ask, pair[1], 20)
        assert the_poller().busy.limit == 0
    assert len(waited) > 3
    assert "ZeroDivisionError" in caplog.text
    the_poller().remove(pair[0])


async def test_there_is_one_for_each_run() -> None:
    assert the_poller() is the_poller()
    others: list[Poller] = []

    async def main() -> None:
        others.append(the_poller())

    await trio.to_thread.run_sync(trio.run, main)
    assert others[0] is not the_poller()


def instruments() -> list[type[trio.abc.Instrument]]:
    """Of this run, which Trio has no public list of."""
    return [type(each) for each in trio._core._run.GLOBAL_RUN_CONTEXT.runner.instruments["_all"]]


async def test_it_waits_in_place_of_trio(caplog: pytest.LogCaptureFixture) -> None:
    the_poller()
    assert instruments().count(InlineDriver) == 1
    assert not caplog.records


async def test_by_a_task_it_reads_no_private_attribute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(drivers, "trio_epoll_descriptor")
    the_poller("task")
    assert the_poller() is the_poller("inline")
    assert InlineDriver not in instruments()
    assert instruments().count(TaskDriver) == 1
    assert not caplog.records


async def test_a_trio_without_the_attribute_gets_a_task_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    monkeypatch.setattr(runner, "io_manager", object())
    made = the_poller()
    monkeypatch.undo()
    assert the_poller() is made
    assert instruments().count(TaskDriver) == 1
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert trio.__version__ in record.getMessage()


async def test_a_system_without_epoll_gets_a_task_for_each_socket_and_the_log_says_so_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drivers, "has_epoll", lambda: False)
    monkeypatch.delattr("select.epoll")
    the_poller().add(pair[0], echo(pair[0]), no_defect)
    await trio.to_thread.run_sync(ask, pair[1], 20)
    assert isinstance(the_poller()._selector, SocketTasks)
    the_poller().remove(pair[0])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "epoll" in record.getMessage()


class ScriptedSelector:
    """Says that these are ready, one list for each poll."""

    def __init__(self, *ready: Sequence[int]) -> None:
        self._ready = [*ready]

    def register(self, descriptor: int, events: int, /) -> None: ...

    def unregister(self, descriptor: int, /) -> None: ...

    def poll(self, timeout: float, most: int, /) -> Events:
        return [(each, poller.READABLE) for each in self._ready.pop(0)] if self._ready else []

    def close(self) -> None: ...


class Numbered:
    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


def test_who_was_not_called_for_a_lack_of_time_is_called_first_by_the_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers and Trio are not put off."""
    times = count(0, 1)
    monkeypatch.setattr(poller, "perf_counter", lambda: next(times))
    called: list[int] = []
    made = Poller(ScriptedSelector((1, 2, 8, 3, 9), (1,)))
    for number in (1, 2, 3):
        made.add(Numbered(number), partial(called.append, number), no_defect)
    made.add(Numbered(8), partial(called.append, 8), no_defect, later=True)
    made.watch_trio(9)
    assert made.poll(0)
    assert called == [1, 8]
    for _ in range(3):
        assert not made.poll(0)
    assert called == [1, 8, 2, 3, 1]


def test_where_all_sockets_had_something_no_other_is_looked_for() -> None:
    """Also where they are removed as they are read, as those of large requests are."""
    selector = ScriptedSelector([1, 2], [3])
    polled = Poller(selector)
    read: list[int] = []

    def take(number: int, watched: Numbered) -> None:
        read.append(number)
        polled.remove(watched)

    for number in (1, 2):
        watched = Numbered(number)
        polled.add(watched, partial(take, number, watched), no_defect)
    polled.poll(0)
    assert read == [1, 2]
    assert selector.poll(0, 1) == [(3, poller.READABLE)], "the next poll's"


def test_a_poll_ends_where_many_tasks_are_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would all go on in one turn of the loop, however long each takes."""
    monkeypatch.setattr(poller, "_MOST_WOKEN", 3)
    made = Poller(ScriptedSelector((1, 2, 3, 4, 5), (1, 2, 3)))
    called: list[int] = []

    def call(number: int) -> None:
        called.append(number)
        made.woken += 1

    for number in range(1, 6):
        made.add(Numbered(number), partial(call, number), no_defect)
    made.poll(0)
    assert called == [1, 2, 3]
    made.poll(0)
    assert called == [1, 2, 3, 4, 5, 1]


@pytest.mark.usefixtures("way")
async def test_woken_tasks_are_counted(pair: Pair) -> None:
    watched, other = pair
    event = trio.Event()

    def wake() -> None:
        watched.recv(100)
        event.set()

    the_poller().add(watched, wake, no_defect)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(event.wait)
        await trio.testing.wait_all_tasks_blocked()
        other.sendall(b"x")
        await event.wait()
        assert the_poller().woken >= 6
    the_poller().remove(watched)


@contextmanager
def polled_by_hand(count: int, *, new: bool) -> Iterator[tuple[Poller, list[socket.socket], list[int]]]:
    """As many sockets, each of which something has come from, and the numbers of those that were called."""
    made, called = Poller(select.epoll(), select.epoll()), list[int]()
    with ExitStack() as stack:
        stack.callback(made.close)
        watched = []
        for number in range(count):
            near, far = (stack.enter_context(each) for each in socket.socketpair())
            far.sendall(b"x")
            watched.append(near)
            made.add(near, partial(_read_one, near, called, number), no_defect, new=new)
        yield made, watched, called


def _read_one(watched: socket.socket, called: list[int], number: int) -> None:
    watched.recv(1)
    called.append(number)


@needs_epoll
def test_newcomers_have_some_places_in_each_poll_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "perf_counter", lambda: 0.0)
    with polled_by_hand(20, new=True) as (made, _, called), ExitStack() as stack:
        known, other = (stack.enter_context(each) for each in socket.socketpair())
        made.add(known, partial(_read_one, known, called, -1), no_defect)
        newcomers: list[int] = []
        for places in (8, 8, 4):
            other.sendall(b"x")
            made.poll(0)
            assert called.pop(0) == -1
            assert len(called) == places
            newcomers += called
            called.clear()
        assert sorted(newcomers) == [*range(20)]


@needs_epoll
def test_one_newcomer_is_called_whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(0, 1)
    monkeypatch.setattr(poller, "perf_counter", lambda: next(times))
    with polled_by_hand(3, new=True) as (made, _, called):
        for number in (1, 2, 3):
            made.poll(0)
            assert len(called) == number


@needs_epoll
def test_who_was_called_is_no_newcomer_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "perf_counter", lambda: 0.0)
    with polled_by_hand(8, new=True) as (made, watched, called), ExitStack() as stack:
        made.poll(0)
        assert len(called) == 8
        made.remove(watched[0])  # from where it is now
        made.add(watched[0], partial(_read_one, watched[0], called, 0), no_defect)
        later = [[stack.enter_context(each) for each in socket.socketpair()] for _ in range(9)]
        for near, far in later:
            far.sendall(b"x")
            made.add(near, partial(_read_one, near, called, -1), no_defect, new=True)
        called.clear()
        made.remove(later[0][0])  # unheard
        for _ in range(3):
            made.poll(0)
        assert called == [-1] * 8


@needs_epoll
@pytest.mark.parametrize("is_closed", [False, True], ids=["removed", "closed"])
def test_a_newcomer_may_go_while_another_is_called(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    monkeypatch.setattr(poller, "perf_counter", lambda: 0.0)
    with polled_by_hand(0, new=True) as (made, _, _), ExitStack() as stack:
        pairs = [[stack.enter_context(each) for each in socket.socketpair()] for _ in range(2)]
        called: list[int] = []

        def call(number: int) -> None:
            called.append(number)
            other = pairs[1 - number][0]
            if is_closed:
                other.close()
            else:
                made.remove(other)

        for number, (near, far) in enumerate(pairs):
            far.sendall(b"x")
            made.add(near, partial(call, number), no_defect, new=True)
        made.poll(0)
        assert len(called) == (2 if is_closed else 1)  # the call of one that is closed sees that itself


@needs_epoll
def test_a_defect_in_the_call_of_a_newcomer_costs_its_socket() -> None:
    with polled_by_hand(0, new=True) as (made, _, _), ExitStack() as stack:
        near, far = (stack.enter_context(each) for each in socket.socketpair())
        failed: list[Exception] = []

        def call() -> None:
            raise ValueError("a defect")

        far.sendall(b"x")
        made.add(near, call, failed.append, new=True)
        made.poll(0)
        made.poll(0)
        assert [str(error) for error in failed] == ["a defect"]
        assert not made.watched
