"""Workers that are replaced after so many requests, or so much memory, while requests go on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from backends.python import PythonBackend
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig, ModelSequenceBatching
from tests.backends.python.models import (
    CONFIG,
    DECOUPLED,
    Receiver,
    answers,
    backend,
    executing,
    infer,
    output,
    parameters,
    request,
    running,
)
from tests.backends.python.processes import children, until

PID = "return [answer(np.array([[os.getpid()]])) for _ in requests]"


def made(directory: Path, text: str, config: ModelConfig = CONFIG, **others: str) -> PythonBackend:
    return backend(directory, text, config=msgspec.structs.replace(config, parameters=parameters(**others)))


async def pid_of(instance: PythonBackend) -> int:
    [response] = await infer(instance, request())
    return int(output(response).item())


@pytest.mark.parametrize("mode", ["process", "fork"])
async def test_requests_go_on_while_workers_are_replaced(tmp_path: Path, mode: str) -> None:
    """Several callers; none loses a request, and no worker is left."""
    found: list[int] = []
    instance = made(tmp_path, executing(PID), RESTART_AFTER_REQUESTS="5", ISOLATION=mode)

    async def call(instance: PythonBackend) -> None:
        while len(set(found)) < 4:
            found.append(await pid_of(instance))

    async with running(instance), trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call, instance)
    assert not children()
    # In the order in which they served; each has had its requests before the next one came.
    workers = list(dict.fromkeys(found))
    assert all(found.count(pid) >= 5 for pid in workers[:3])


async def test_a_worker_ends_when_it_has_answered_what_it_has(tmp_path: Path) -> None:
    """The replaced one is finalized, and not before its last response; its successor serves meanwhile."""
    go, finalized = tmp_path / "go", tmp_path / "finalized"
    model = executing(f"""
        for request in requests:
            sender = request.get_response_sender()
            def work(request=request, sender=sender):
                while request.request_id() == "long" and not os.path.exists({str(go)!r}):
                    time.sleep(0.001)
                sender.send(answer(np.array([os.getpid()])), flags=FINAL)
            threading.Thread(target=work).start()
    """)
    model += f"    def finalize(self):\n        open({str(finalized)!r}, 'w').close()\n"
    instance = made(tmp_path, model, DECOUPLED, RESTART_AFTER_REQUESTS="1")
    async with running(instance):
        first = Receiver()
        await instance.execute_decoupled([request(id="long")], [first])
        loaded = instance._loaded
        await until(lambda: instance._loaded is not loaded)
        later = Receiver()
        await instance.execute_decoupled([request()], [later])
        await later.ended.wait()
        assert not finalized.exists()
        go.touch()
        await first.ended.wait()
        await until(finalized.exists)
        assert len({*answers(first), *answers(later)}) == 2
    assert not children()


async def test_a_worker_that_has_grown_is_replaced(tmp_path: Path) -> None:
    model = executing("""
        global held
        held = globals().get("held", []) + [np.ones(1 << 21)]  # 16 MiB
        return [answer(np.array([[os.getpid()]])) for _ in requests]
    """)
    instance = made(tmp_path, model, RESTART_AFTER_MEMORY_MIB="256")
    async with running(instance):
        first = await pid_of(instance)
        with trio.fail_after(30):
            while await pid_of(instance) == first:
                pass
    assert not children()


async def test_a_successor_that_fails_leaves_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "broken"
    model = f"import os\nassert not os.path.exists({str(broken)!r})\n" + executing(PID)
    async with running(made(tmp_path, model, RESTART_AFTER_REQUESTS="2")) as instance:
        first = await pid_of(instance)
        broken.touch()
        await infer(instance, request())
        await until(lambda: "its worker cannot be replaced: AssertionError" in caplog.text)
        assert await pid_of(instance) == first
        broken.unlink()
        await infer(instance, request())
        await until(lambda: children() != [first])
        with trio.fail_after(10):
            while await pid_of(instance) == first:
                pass


async def test_unloaded_in_the_middle_of_it_nothing_is_left(tmp_path: Path) -> None:
    started = tmp_path / "started"
    model = f"""
        import os, time
        import numpy as np
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def initialize(self, args):
                if os.path.exists({str(tmp_path / "first")!r}):
                    open({str(started)!r}, "w").close()
                    time.sleep(1000)
                open({str(tmp_path / "first")!r}, "w").close()
            def execute(self, requests):
                return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    async with running(made(tmp_path, model, RESTART_AFTER_REQUESTS="1")) as instance:
        await infer(instance, request())
        await until(started.exists)
        await infer(instance, request())
    assert not children()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"RESTART_AFTER_REQUESTS": "0"}, "RESTART_AFTER_REQUESTS must be at least 1, got 0"),
        ({"RESTART_AFTER_MEMORY_MIB": "x"}, "RESTART_AFTER_MEMORY_MIB: failed to convert 'x'"),
        (
            {"RESTART_AFTER_REQUESTS": "1", "ISOLATION": "threads"},
            "RESTART_AFTER_REQUESTS needs a process for each instance, but ISOLATION is threads",
        ),
    ],
)
async def test_what_cannot_be(tmp_path: Path, others: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        await made(tmp_path, executing(PID), CONFIG, **others).load()
    assert message in failure.value.message


async def test_what_a_model_knows_of_a_sequence_is_not_lost(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, sequence_batching=ModelSequenceBatching())
    with pytest.raises(InvalidArgument, match="cannot be used with sequence_batching"):
        await made(tmp_path, executing(PID), config, RESTART_AFTER_REQUESTS="1").load()
