"""The life of an array backend: loading, batches with good and bad requests, completion, freeing."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from numpy.typing import NDArray

from backends import instance_batch
from backends.array_backend import ArrayBackend
from backends.interface import InstanceDied
from protocol.datatypes import DataType
from protocol.errors import Cancelled, InvalidArgument, Overloaded, ServerError, Unavailable
from protocol.messages import InferenceRequest, Tensor
from tests.backends.helpers import answer, infer, loaded, objects, request_of, source_of, spec_of

CONFIG = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
UNBATCHED = CONFIG.replace("max_batch_size: 8", "")
STRINGS = CONFIG.replace("TYPE_INT32", "TYPE_STRING")


class Doubling(ArrayBackend):
    """Y = X * 2; refuses negative numbers, breaks on 13, and notes what happened where."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.notes: list[tuple[str, object]] = []
        self.threads: set[int] = set()

    def note(self, what: str, detail: object = None) -> None:
        self.notes.append((what, detail))
        self.threads.add(threading.get_ident())

    def load_model(self) -> None:
        self.note("load")

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        x = inputs["X"]
        self.note("run", x.reshape(-1).tolist())
        if (x < 0).any():
            raise InvalidArgument("X must not be negative")
        if (x == 13).any():
            raise ValueError("unlucky")
        return {"Y": x * np.int32(2)}

    def close_model(self) -> None:
        self.note("close")


class Echo(Doubling):
    """Y = X, for strings too."""

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.note("run", inputs["X"].reshape(-1).tolist())
        return {"Y": inputs["X"]}


class TextEcho(Echo):
    text_strings = True


def number(value: int) -> InferenceRequest:
    return request_of(("X", np.array([[value]], np.int32)))


def text(value: bytes) -> InferenceRequest:
    return request_of(("X", objects(value).reshape(1, 1)))


def values(results: Any) -> list[object]:
    """The Y of each response, or the text of its error."""
    return [
        result.message if isinstance(result, ServerError) else answer(result)["Y"].reshape(-1).tolist()
        for result in results
    ]


async def test_load_run_and_close_happen_in_one_thread_that_is_not_the_loops() -> None:
    async with loaded(Doubling, spec_of(source_of(CONFIG))) as backend:
        assert isinstance(backend, Doubling)
        assert values(await infer(backend, number(1), number(2))) == [[2], [4]]
        assert values(await infer(backend, number(3))) == [[6]]
    assert [what for what, _ in backend.notes] == ["load", "run", "run", "close"]
    assert len(backend.threads) == 1
    assert threading.get_ident() not in backend.threads


async def test_a_batch_is_one_run() -> None:
    async with loaded(Doubling, spec_of(source_of(CONFIG))) as backend:
        assert isinstance(backend, Doubling)
        await infer(backend, number(1), request_of(("X", np.array([[2], [3]], np.int32))), number(4))
        assert backend.notes[-1] == ("run", [1, 2, 3, 4])


async def test_a_refused_batch_is_run_again_so_that_only_the_guilty_fail() -> None:
    async with loaded(Doubling, spec_of(source_of(CONFIG))) as backend:
        results = await infer(backend, number(1), number(-1), number(3))
        assert values(results) == [[2], "X must not be negative", [6]]
        assert values(await infer(backend, number(-5))) == ["X must not be negative"]


async def test_the_death_of_the_instance_fails_the_whole_batch() -> None:
    class Dying(Doubling):
        def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            raise InstanceDied("the device is gone")

    async with loaded(Dying, spec_of(source_of(CONFIG))) as backend:
        with pytest.raises(InstanceDied, match="the device is gone"):
            await infer(backend, number(1), number(2))


async def test_any_other_exception_fails_the_batch_and_the_instance_serves_on() -> None:
    async with loaded(Doubling, spec_of(source_of(CONFIG))) as backend:
        with pytest.raises(ValueError, match="unlucky"):
            await infer(backend, number(1), number(13))
        assert values(await infer(backend, number(1))) == [[2]]


async def test_a_batch_that_needs_more_memory_than_there_is_may_run_in_parts() -> None:
    """What the frameworks raise for want of memory concerns a request only where it still is too much alone."""

    class Hungry(Doubling):
        def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            x = inputs["X"]
            if len(x) > 1 or 99 in x:
                np.empty(10**17, np.uint8)
            return super().run(inputs)

    async with loaded(Hungry, spec_of(source_of(CONFIG))) as backend:
        one, two, large = await infer(backend, number(1), number(2), number(99))
        assert values([one, two]) == [[2], [4]]
        assert isinstance(large, Overloaded)
        assert "model 'm', instance 'm_0_0': no memory left: Unable to allocate" in large.message
        assert values(await infer(backend, number(3))) == [[6]]


async def test_memory_that_is_used_up_around_a_run_fails_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with loaded(Doubling, spec_of(source_of(CONFIG))) as backend:
        with monkeypatch.context() as patched:
            patched.setattr(instance_batch.HostWork, "scatter", lambda *_: np.empty(10**17, np.uint8))
            with pytest.raises(Overloaded, match="no memory left"):
                await infer(backend, number(1))
        assert values(await infer(backend, number(3))) == [[6]]


async def test_memory_that_is_used_up_at_load() -> None:
    class Large(Doubling):
        def load_model(self) -> None:
            np.empty(10**17, np.uint8)

    backend = Large(spec_of(source_of(CONFIG)))
    with pytest.raises(Overloaded, match="failed to load model 'm': no memory left: Unable to allocate"):
        await backend.load()
    await backend.unload()


async def test_without_batching_each_request_is_a_run_of_its_own() -> None:
    async with loaded(Doubling, spec_of(source_of(UNBATCHED))) as backend:
        assert isinstance(backend, Doubling)
        requests = [request_of(("X", np.array([value], np.int32))) for value in (1, -2, 3)]
        assert values(await infer(backend, *requests)) == [[2], "X must not be negative", [6]]
        assert [detail for what, detail in backend.notes if what == "run"] == [[1], [-2], [3]]


async def test_strings_are_bytes_unless_the_backend_takes_text() -> None:
    async with loaded(Echo, spec_of(source_of(STRINGS))) as backend:
        assert isinstance(backend, Echo)
        assert values(await infer(backend, text(b"\xff"))) == [[b"\xff"]]
        assert backend.notes[-1] == ("run", [b"\xff"])
    async with loaded(TextEcho, spec_of(source_of(STRINGS))) as backend:
        assert isinstance(backend, TextEcho)
        assert values(await infer(backend, text("é".encode()))) == [["é".encode()]]
        assert backend.notes[-1] == ("run", ["é"])


async def test_a_request_with_broken_data_fails_alone_and_never_reaches_the_model() -> None:
    broken = InferenceRequest("m", [Tensor("X", DataType.BYTES, (1, 1), b"\x05\0\0\0a")])
    async with loaded(TextEcho, spec_of(source_of(STRINGS))) as backend:
        assert isinstance(backend, TextEcho)
        first, second, third, fourth = values(await infer(backend, text(b"a"), broken, text(b"\xff"), text(b"b")))
        assert (first, fourth) == ([b"a"], [b"b"])
        assert "extends past the end" in str(second)
        assert "not valid UTF-8" in str(third)
        assert backend.notes[-1] == ("run", ["a", "b"])
        runs = len(backend.notes)
        assert len(values(await infer(backend, broken, broken))) == 2
        assert len(backend.notes) == runs


async def test_an_absent_optional_input_is_left_out() -> None:
    class Names(Doubling):
        def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            return {"Y": np.array([[len(inputs)]], np.int32)}

    config = CONFIG + 'input [ { name: "W" data_type: TYPE_INT32 dims: [ 1 ] optional: true } ]'
    one = np.array([[1]], np.int32)
    async with loaded(Names, spec_of(source_of(config))) as backend:
        assert values(await infer(backend, request_of(("X", one)))) == [[1]]
        assert values(await infer(backend, request_of(("X", one), ("W", one)))) == [[2]]


async def test_the_phases_of_a_batch_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock moves only in `run`, so all the time must be the inference's."""
    now = [0]

    class Slow(Doubling):
        def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            now[0] += 500
            return super().run(inputs)

    monkeypatch.setattr(instance_batch, "monotonic_ns", lambda: now[0])
    async with loaded(Slow, spec_of(source_of(CONFIG))) as backend:
        timing = (await backend.execute([number(1), number(2)])).timing
    assert (timing.compute_input_ns, timing.compute_infer_ns, timing.compute_output_ns) == (0, 500, 0)


async def test_a_cancelled_execute_leaves_the_instance_able_to_take_the_next_batch() -> None:
    entered, opened = threading.Event(), threading.Event()

    class Slow(Doubling):
        def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            entered.set()
            assert opened.wait(30)
            return super().run(inputs)

    async with loaded(Slow, spec_of(source_of(CONFIG))) as backend:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.execute, [number(1)])
            await trio.to_thread.run_sync(entered.wait)
            nursery.cancel_scope.cancel()
        opened.set()
        assert values(await infer(backend, number(2))) == [[4]]


class Interruptible(Doubling):
    """Its runs hang until they are interrupted or let go."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.entered, self.left, self.interrupted = threading.Event(), threading.Event(), False

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        outputs = super().run(inputs)
        self.entered.set()
        assert self.left.wait(30)
        if self.interrupted:
            raise RuntimeError("interrupted")
        return outputs

    def interrupt(self) -> None:
        self.note("interrupt")
        self.interrupted = True
        self.left.set()

    def resume(self) -> None:
        self.note("resume")
        self.interrupted = False


async def run_and_cancel(backend: Interruptible, requests: list[InferenceRequest], gone: list[int]) -> list[object]:
    """Run a batch whose callers go one after the other; what it answers."""
    answers: list[object] = []

    async def run() -> None:
        answers.extend(await infer(backend, *requests))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.to_thread.run_sync(backend.entered.wait)
        for index in gone:
            backend.cancel(requests[index])
            if index != gone[-1]:
                assert not backend.left.is_set()
        if not backend.interrupted:
            backend.left.set()
    return answers


async def test_a_batch_is_interrupted_when_the_last_of_its_callers_has_gone() -> None:
    """It is not run again one by one, and the next batch runs as any."""
    async with loaded(Interruptible, spec_of(source_of(CONFIG))) as backend:
        assert isinstance(backend, Interruptible)
        found = await run_and_cancel(backend, [number(1), number(2)], [1, 1, 0])
        assert [type(each) for each in found] == [Cancelled, Cancelled]
        assert [what for what, _ in backend.notes] == ["load", "run", "interrupt", "resume"]
        assert values(await infer(backend, number(3))) == [[6]]


async def test_a_batch_runs_on_for_those_that_are_left() -> None:
    async with loaded(Interruptible, spec_of(source_of(CONFIG))) as backend:
        assert isinstance(backend, Interruptible)
        await run_and_cancel(backend, [number(1), number(2)], [0])
        backend.cancel(number(1))  # of no batch here
        assert "interrupt" not in [what for what, _ in backend.notes]


async def test_a_batch_whose_callers_go_before_it_begins_is_not_run() -> None:
    async with loaded(Interruptible, spec_of(source_of(CONFIG))) as backend:
        assert isinstance(backend, Interruptible)
        ahead = number(5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(infer, backend, number(1))
            await trio.to_thread.run_sync(backend.entered.wait)
            nursery.start_soon(infer, backend, ahead)
            await trio.testing.wait_all_tasks_blocked()
            backend.cancel(ahead)
            backend.left.set()
        assert [detail for what, detail in backend.notes if what == "run"] == [[1]]
        assert "interrupt" not in [what for what, _ in backend.notes]


async def test_an_instance_that_is_stopped_interrupts_its_batch() -> None:
    async with loaded(Interruptible, spec_of(source_of(CONFIG))) as backend:
        assert isinstance(backend, Interruptible)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.execute, [number(1)])
            await trio.to_thread.run_sync(backend.entered.wait)
            nursery.cancel_scope.cancel()
        assert backend.left.is_set()


async def test_a_failed_load_closes_nothing_and_ends_the_thread() -> None:
    class Broken(Doubling):
        def load_model(self) -> None:
            self.note("load")
            raise Unavailable("no such file")

    backend = Broken(spec_of(source_of(CONFIG)))
    with pytest.raises(Unavailable, match="no such file"):
        await backend.load()
    await backend.unload()
    assert [what for what, _ in backend.notes] == ["load"]
    with pytest.raises(trio.ClosedResourceError):
        await backend.execute([number(1)])


async def test_unloading_after_a_cancelled_load_waits_for_the_thread_and_frees() -> None:
    entered, opened = threading.Event(), threading.Event()

    class Slow(Doubling):
        def load_model(self) -> None:
            entered.set()
            assert opened.wait(30)
            super().load_model()

    backend = Slow(spec_of(source_of(CONFIG)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.load)
        await trio.to_thread.run_sync(entered.wait)
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.unload)
        await trio.testing.wait_all_tasks_blocked()
        opened.set()
    assert [what for what, _ in backend.notes] == ["load", "close"]


async def test_a_framework_missing_at_load_says_what_to_install() -> None:
    class Missing(Doubling):
        def load_model(self) -> None:
            __import__("a_framework_that_is_not_there")

    backend = Missing(spec_of(source_of(CONFIG + 'backend: "strange"')))
    with pytest.raises(Unavailable, match="model 'm' needs the Python package 'a_framework_that_is_not_there'"):
        await backend.load()
    await backend.unload()
