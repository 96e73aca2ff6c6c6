"""The instance's thread: order, errors, cancelled callers, and its end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import trio
import trio.testing

from backends.instance_thread import Elsewhere, InstanceThread
from tests.backends.helpers import threads_ended


async def test_calls_run_in_one_thread_of_their_own() -> None:
    thread = InstanceThread("one")
    first = await thread.run(threading.get_ident)
    second = await thread.run(threading.get_ident)
    await thread.aclose()
    assert first == second != threading.get_ident()


async def test_arguments_and_results_pass() -> None:
    thread = InstanceThread("pass")
    assert await thread.run(divmod, 17, 5) == (3, 2)
    await thread.aclose()


async def test_the_thread_is_a_daemon_with_the_instances_name() -> None:
    thread = InstanceThread("m_0_1")
    worker = await thread.run(threading.current_thread)
    await thread.aclose()
    assert worker.daemon
    assert worker.name == "m_0_1"


async def test_an_exception_reaches_the_caller_and_the_thread_lives_on() -> None:
    thread = InstanceThread("raise")
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)
    assert await thread.run(lambda: 5) == 5
    await thread.aclose()


async def test_exit_by_the_models_code_is_an_error_of_the_call() -> None:
    """`sys.exit()` in a framework must neither end the thread nor the server."""

    def leave() -> None:
        raise SystemExit(3)

    thread = InstanceThread("exit")
    with pytest.raises(RuntimeError, match="the model's code raised SystemExit: 3"):
        await thread.run(leave)
    assert await thread.run(lambda: 1) == 1
    await thread.aclose()


async def test_calls_of_several_tasks_run_in_order_and_one_at_a_time() -> None:
    thread = InstanceThread("order")
    begun: list[int] = []
    running = threading.Lock()

    def call(number: int) -> None:
        assert running.acquire(blocking=False)
        begun.append(number)
        running.release()

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(thread.run, call, number)
            await trio.testing.wait_all_tasks_blocked()
    await thread.aclose()
    assert begun == list(range(20))


class Gate:
    """A call that blocks its thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.opened.wait(30)
        return "late"


async def cancel_after_entry(thread: InstanceThread, gate: Gate) -> None:
    """Cancel a caller whose call has begun; returns at once although the call goes on."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.run, gate)
        await trio.to_thread.run_sync(gate.entered.wait)
        nursery.cancel_scope.cancel()


async def test_the_next_call_waits_for_the_call_of_a_cancelled_caller() -> None:
    thread, gate = InstanceThread("next"), Gate()
    await cancel_after_entry(thread, gate)
    seen: list[bool] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.run, lambda: seen.append(gate.opened.is_set()))
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        gate.opened.set()
    assert seen == [True]
    await thread.aclose()


async def test_a_call_cancelled_before_it_began_is_never_made() -> None:
    thread, gate = InstanceThread("never"), Gate()
    made: list[int] = []
    async with trio.open_nursery() as outer:
        outer.start_soon(thread.run, gate)
        await trio.to_thread.run_sync(gate.entered.wait)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run, lambda: made.append(1))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        gate.opened.set()
    await thread.run(lambda: None)
    await thread.aclose()
    assert made == []


async def test_a_caller_already_cancelled_submits_nothing() -> None:
    thread = InstanceThread("late")
    made: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await thread.run(lambda: made.append(1))
    await thread.run(lambda: None)
    await thread.aclose()
    assert made == []


async def test_closing_makes_the_final_call_last_and_ends_the_thread() -> None:
    thread = InstanceThread("closing")
    order: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.run, lambda: order.append("call"))
        await trio.testing.wait_all_tasks_blocked()
        await thread.aclose(lambda: order.append("final"))
    assert order == ["call", "final"]
    await threads_ended("closing")


async def test_closing_twice_does_nothing_and_a_closed_thread_takes_no_call() -> None:
    thread = InstanceThread("twice")
    finals: list[int] = []
    await thread.aclose(lambda: finals.append(1))
    await thread.aclose(lambda: finals.append(2))
    assert finals == [1]
    with pytest.raises(trio.ClosedResourceError, match="twice"):
        await thread.run(lambda: None)


async def test_closing_a_thread_that_never_ran_starts_none() -> None:
    before = threading.active_count()
    await InstanceThread("idle").aclose()
    assert threading.active_count() == before


async def test_what_the_final_call_raises_is_raised_by_closing() -> None:
    thread = InstanceThread("fatal")
    with pytest.raises(ZeroDivisionError):
        await thread.aclose(lambda: 1 / 0)
    await threads_ended("fatal")


async def test_a_cancelled_close_still_makes_the_final_call_and_ends_the_thread() -> None:
    thread, gate = InstanceThread("cancelled-close"), Gate()
    await cancel_after_entry(thread, gate)
    freed = threading.Event()
    with trio.CancelScope() as scope:
        scope.cancel()
        await thread.aclose(freed.set)
    gate.opened.set()
    await threads_ended("cancelled-close")
    assert freed.is_set()


async def test_an_idle_thread_keeps_nothing_of_the_last_call_alive() -> None:
    class Payload:
        pass

    def take(payload: Payload) -> None:
        pass

    thread = InstanceThread("memory")
    payload = Payload()
    alive = weakref.ref(payload)
    await thread.run(take, payload)
    await thread.run(lambda: None)
    del payload
    gc.collect()
    assert alive() is None
    await thread.aclose()


def test_a_call_that_outlives_the_loop_disturbs_nobody() -> None:
    """The server has ended while a framework still computes: its thread finds no loop to wake, and ends quietly."""
    gate = Gate()
    failures: list[object] = []
    hook: Callable[[threading.ExceptHookArgs], object] = failures.append
    before, threading.excepthook = threading.excepthook, hook

    async def main() -> threading.Thread:
        thread = InstanceThread("outlives")
        worker = await thread.run(threading.current_thread)
        await cancel_after_entry(thread, gate)
        with trio.CancelScope() as scope:
            scope.cancel()
            await thread.aclose()
        return worker

    try:
        worker = trio.run(main)
        gate.opened.set()
        worker.join(30)
    finally:
        threading.excepthook = before
    assert not worker.is_alive()
    assert failures == []


async def test_a_call_goes_on_elsewhere_and_its_caller_gets_what_that_gives() -> None:
    first, second = InstanceThread("first"), InstanceThread("second")

    def begin(divisor: int) -> float | Elsewhere[float]:
        names.append(threading.current_thread().name)
        return Elsewhere(second, lambda: end(divisor))

    def end(divisor: int) -> float:
        names.append(threading.current_thread().name)
        return 1 / divisor

    names: list[str] = []
    assert await first.run(begin, 2) == 0.5
    assert names == ["first", "second"]
    with pytest.raises(ZeroDivisionError):
        await first.run(begin, 0)
    await first.aclose()
    await second.aclose()


async def test_a_call_that_goes_on_elsewhere_ends_without_its_caller() -> None:
    first, second, gate = InstanceThread("first"), InstanceThread("second"), Gate()
    ended: list[int] = []

    def end(number: int) -> None:
        if number == 1:
            gate()
        ended.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run, lambda: Elsewhere(second, lambda: end(1)))
        await trio.to_thread.run_sync(gate.entered.wait)
        nursery.start_soon(first.run, lambda: Elsewhere(second, lambda: end(2)))
        await trio.testing.wait_all_tasks_blocked()
        await first.run(lambda: None)
        nursery.cancel_scope.cancel()
    gate.opened.set()
    await second.run(lambda: None)
    assert ended == [1, 2]
    await first.aclose()
    await second.aclose()


async def test_a_posted_call_is_made_in_its_turn_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    thread = InstanceThread("posted")
    made: list[int] = []
    thread.post(lambda: made.append(1))
    thread.post(lambda: 1 / 0)
    thread.post(lambda: made.append(2))
    assert await thread.run(made.copy) == [1, 2]
    assert "a call beside an instance has failed" in caplog.text
    await thread.aclose()


async def test_joining_waits_for_what_was_asked_for() -> None:
    thread, other = InstanceThread("joined"), InstanceThread("other")
    thread.join()  # it never began
    assert not other.is_closed
    made: list[int] = []
    other.post(lambda: made.append(1))
    other.join()
    assert made == [1]
    assert other.is_closed
    await threads_ended("other")
