"""Who reads a worker's socket while coroutines, threads and the main thread wait for answers: all get theirs."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import trio

from tests.backends.python.pipelines import PLUS_ONE, ask, executing, serving
from tests.backends.python.processes import until

CALL = 'value(await call("plus", [n]).async_exec())[0]'

CALLERS = {
    # Each answers 1 + 2 + … + 10, by calls of a model that adds 1.
    "one after the other": f"""
        class TritonPythonModel:
            async def execute(self, requests):
                return [answer([sum([{CALL} for n in range(10)])]) for r in requests]
    """,
    "a blocking call in a coroutine": f"""
        class TritonPythonModel:
            async def execute(self, requests):
                found = [{CALL} for n in range(5)]
                found += [value(call("plus", [n]).exec())[0] for n in range(5, 8)]
                return [answer([sum(found) + sum([{CALL} for n in range(8, 10)])]) for r in requests]
    """,
    "threads for which a coroutine blocks its loop": f"""
        from concurrent.futures import ThreadPoolExecutor
        class TritonPythonModel:
            async def execute(self, requests):
                found = [{CALL} for n in range(5)]
                with ThreadPoolExecutor(4) as pool:
                    found += pool.map(lambda n: value(call("plus", [n]).exec())[0], range(5, 10))
                return [answer([sum(found)]) for r in requests]
    """,
    "threads beside coroutines": """
        class TritonPythonModel:
            async def execute(self, requests):
                later = [asyncio.to_thread(call("plus", [n]).exec) for n in range(5)]
                later += [call("plus", [n]).async_exec() for n in range(5, 10)]
                found = await asyncio.gather(*later)
                return [answer([sum(value(each)[0] for each in found)]) for r in requests]
    """,
    "a loop that is used again": f"""
        class TritonPythonModel:
            def initialize(self, args):
                self.loop = asyncio.new_event_loop()
            def execute(self, requests):
                async def one(n):
                    return {CALL}
                return [answer([sum(self.loop.run_until_complete(one(n)) for n in range(10))]) for r in requests]
    """,
    "a new loop for each call": f"""
        class TritonPythonModel:
            def execute(self, requests):
                async def one(n):
                    return {CALL}
                return [answer([sum(asyncio.run(one(n)) for n in range(10))]) for r in requests]
    """,
    "a loop in a thread of the model": f"""
        import threading
        class TritonPythonModel:
            def initialize(self, args):
                self.loop = asyncio.new_event_loop()
                threading.Thread(target=self.loop.run_forever, daemon=True).start()
            def execute(self, requests):
                async def all():
                    return sum([{CALL} for n in range(10)])
                return [answer([asyncio.run_coroutine_threadsafe(all(), self.loop).result()]) for r in requests]
    """,
    "a loop in which a call was given up": f"""
        class TritonPythonModel:
            def execute(self, requests):
                async def give_up():
                    call("plus", [1]).async_exec()
                async def all():
                    return sum([{CALL} for n in range(10)])
                asyncio.run(give_up())
                return [answer([asyncio.run(all())]) for r in requests]
    """,
    "a loop that cannot watch sockets": f"""
        class Loop(asyncio.SelectorEventLoop):
            def add_reader(self, fd, callback, *args):
                raise NotImplementedError
        class TritonPythonModel:
            def execute(self, requests):
                async def all():
                    return sum([{CALL} for n in range(10)])
                loop = Loop()
                return [answer([loop.run_until_complete(all())]) for r in requests]
    """,
    "with is_ready": f"""
        class TritonPythonModel:
            def is_ready(self):
                return True
            async def execute(self, requests):
                return [answer([sum([{CALL} for n in range(10)])]) for r in requests]
    """,
    "a stream": """
        class TritonPythonModel:
            async def execute(self, requests):
                found = []
                for n in range(10):
                    async for response in await call("plus", [n]).async_exec(decoupled=True):
                        found += [value(response)[0]] if response.output_tensors() else []
                return [answer([sum(found)]) for r in requests]
    """,
}


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS.keys())
async def test_every_way_to_wait_is_answered(tmp_path: Path, caller: str) -> None:
    """Several batches beside each other, then one after another, and at the end the worker says goodbye by itself."""
    done = tmp_path / "done"
    final = f"    def finalize(self):\n        open({str(done)!r}, 'w').close()\n"
    models = {"plus": executing(PLUS_ONE), "caller": textwrap.dedent(caller) + final}
    async with serving(tmp_path / "models", models) as core:
        async with trio.open_nursery() as nursery:

            async def one() -> None:
                assert (await ask(core, "caller")).tolist() == [55.0]

            for _ in range(3):
                nursery.start_soon(one)
        for _ in range(3):
            await one()
        await trio.sleep(0.25)  # the loop stops to watch
        await one()
        assert await core.check_model_ready("caller")
    assert done.exists()


async def test_a_blocked_loop_that_reads_keeps_nothing_from_the_main_thread(tmp_path: Path) -> None:
    """A coroutine blocks its loop in the middle of its calls; the batch's client goes, and the model is told."""
    blocked, seen = tmp_path / "blocked", tmp_path / "seen"
    caller = f"""
        import os, time
        class TritonPythonModel:
            async def execute(self, requests):
                for n in range(5):
                    await call("plus", [n]).async_exec()
                open({str(blocked)!r}, "w").close()
                from trioton_worker.session import session
                cancelled = requests[0]._record.batch.cancelled
                while not cancelled:  # without asking, which reads
                    time.sleep(0.01)
                open({str(seen)!r}, "w").close()
                return [answer([0.0]) for r in requests]
    """
    async with serving(tmp_path / "models", {"plus": executing(PLUS_ONE), "caller": caller}) as core:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, core, "caller")
                await until(blocked.exists)
                nursery.cancel_scope.cancel()
            await until(seen.exists)
