"""No more than `shm-limit-byte-size` crosses to a worker at a time: what can never fit is refused, the rest waits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio

from protocol.errors import Internal, InvalidArgument
from protocol.messages import InferenceRequest
from repository.model_config import ModelSequenceBatching
from tests.backends.python.models import (
    CONFIG,
    DECOUPLED,
    IDENTITY,
    Receiver,
    backend,
    executing,
    infer,
    output,
    request,
    running,
    stream,
)
from tests.backends.python.pipelines import Models, ask, serving
from tests.backends.python.pipelines import executing as calling
from tests.backends.python.processes import until

MIB = 1 << 20
LIMIT = {"shm-limit-byte-size": str(MIB)}
TOO_LARGE = r"model 'm': the request's inputs take 2097152 bytes, but at most 1048576 bytes .*shm-limit-byte-size"


def of_size(size: int, value: float = 1.0) -> InferenceRequest:
    return request(np.full((1, size // 4), value, np.float32))


@pytest.mark.parametrize("inline", ["false", "true"])
async def test_a_request_that_never_fits_is_refused_and_the_others_run(tmp_path: Path, inline: str) -> None:
    """Whether tensors cross in shared memory or in messages."""
    settings = {**LIMIT, "inline-tensors": inline}
    async with running(backend(tmp_path, executing(IDENTITY), settings=settings)) as instance:
        for _ in range(2):
            first, large, last = await infer(instance, of_size(400, 1), of_size(2 * MIB), of_size(MIB, 3))
            assert isinstance(large, InvalidArgument)
            with pytest.raises(InvalidArgument, match=TOO_LARGE):
                raise large
            assert (output(first)[0, 0], output(last)[0, 0]) == (1, 3)


async def test_a_batch_that_is_too_large_runs_in_portions(tmp_path: Path) -> None:
    model = executing("return [answer(np.array([[len(requests)]])) for r in requests]")
    async with running(backend(tmp_path, model, settings=LIMIT)) as instance:
        answers = await infer(instance, *[of_size(size) for size in (MIB // 2, MIB // 2, MIB, MIB // 4, MIB // 4)])
    assert [output(answer).item() for answer in answers] == [2, 2, 1, 2, 2]


async def test_a_batch_whose_sequences_must_stay_together_is_refused(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, sequence_batching=ModelSequenceBatching())
    async with running(backend(tmp_path, executing(IDENTITY), config=config, settings=LIMIT)) as instance:
        for answer in await infer(instance, of_size(MIB), of_size(MIB)):
            with pytest.raises(InvalidArgument, match="the inputs of a batch of 2 sequences take 2097152 bytes"):
                raise answer  # type: ignore[misc]  # then the test fails as it should
        assert (output((await infer(instance, of_size(MIB)))[0]) == 1).all()


async def test_outputs_that_are_too_large_fail_for_themselves(tmp_path: Path) -> None:
    """Those of a batch may be more than the limit; those of a request may not."""
    model = executing("return [answer(np.ones((1, int(r.inputs()[0].as_numpy()[0, 0])), np.uint8)) for r in requests]")
    async with running(backend(tmp_path, model, settings=LIMIT)) as instance:
        for _ in range(2):
            sizes = [MIB, MIB, 3 * MIB, 5, MIB // 2]
            answers = await infer(instance, *[request([float(size)]) for size in sizes])
            error = answers.pop(2)
            assert isinstance(error, Internal)
            assert "It takes 3145728 bytes, but at most 1048576" in error.message
            assert [output(answer).size for answer in answers] == [MIB, MIB, 5, MIB // 2]


async def test_a_decoupled_model_is_bounded_as_well(tmp_path: Path) -> None:
    """A response that is too large is an exception of `send`, and the sender goes on."""
    model = executing("""
        for r in requests:
            sender = r.get_response_sender()
            try:
                sender.send(answer(np.zeros(2 * 1048576, np.uint8)))
            except pb_utils.TritonModelException as error:
                sender.send(answer(np.array([str(error)], object)))
            sender.send(flags=FINAL)
    """)
    async with running(backend(tmp_path, model, config=DECOUPLED, settings=LIMIT)) as instance:
        first, large, last = await stream(instance, of_size(MIB), of_size(2 * MIB), of_size(MIB))
    assert isinstance(large.error, InvalidArgument)
    for receiver in (first, last):
        assert receiver.error is None
        assert b"Unable to send response. It takes 2097152 bytes" in output(receiver.responses[0])[0]


async def test_batches_beside_each_other_wait_for_room(tmp_path: Path) -> None:
    """One that does not fit beside those that run waits, and small ones do not pass it."""
    model = f"""
        import asyncio, os
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            async def execute(self, requests):
                name = str(int(requests[0].inputs()[0].as_numpy()[0, 0]))
                open(os.path.join({str(tmp_path)!r}, "began " + name), "w").close()
                while not os.path.exists(os.path.join({str(tmp_path)!r}, "go " + name)):
                    await asyncio.sleep(0.001)
                return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    sizes = {1: MIB // 2, 2: 3 * MIB // 4, 3: 64}
    async with running(backend(tmp_path / "m", model, settings=LIMIT)) as instance, trio.open_nursery() as nursery:

        def began(name: int) -> bool:
            return (tmp_path / f"began {name}").exists()

        for name, size in sizes.items():
            nursery.start_soon(instance.execute_overlapping, [of_size(size, name)], lambda: None)
            await trio.testing.wait_all_tasks_blocked(0.05)
        await until(lambda: began(1))
        assert not began(2)
        assert not began(3)
        (tmp_path / "go 1").touch()
        await until(lambda: began(2) and began(3))
        (tmp_path / "go 2").touch()
        (tmp_path / "go 3").touch()


async def test_one_that_gives_up_waiting_lets_the_others_by(tmp_path: Path) -> None:
    go = tmp_path / "go"
    model = f"""
        import asyncio, os
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            async def execute(self, requests):
                while requests[0].request_id() == "slow" and not os.path.exists({str(go)!r}):
                    await asyncio.sleep(0.001)
                return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    async with running(backend(tmp_path / "m", model, settings=LIMIT)) as instance, trio.open_nursery() as nursery:
        slow = of_size(MIB)
        slow.id = "slow"
        nursery.start_soon(instance.execute_overlapping, [slow], lambda: None)
        await trio.testing.wait_all_tasks_blocked(0.05)
        with trio.move_on_after(0.1) as waiting:
            await infer(instance, of_size(MIB))
        assert waiting.cancelled_caught
        go.touch()
        with trio.fail_after(20):
            await infer(instance, of_size(MIB))


async def test_inputs_that_a_late_batch_holds_count_until_it_is_answered(tmp_path: Path) -> None:
    """A decoupled model whose threads answer later."""
    model = f"""
        import os, threading, time
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def execute(self, requests):
                for r in requests:
                    threading.Thread(target=self.answer, args=(r, r.inputs()[0].as_numpy())).start()
            def answer(self, request, held):
                while not os.path.exists(os.path.join({str(tmp_path)!r}, "go " + str(int(held[0, 0])))):
                    time.sleep(0.001)
                request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    async with running(backend(tmp_path / "m", model, config=DECOUPLED, settings=LIMIT)) as instance:
        receivers = [Receiver() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            with trio.fail_after(20):
                for number in range(2):
                    await instance.execute_decoupled([of_size(MIB // 2, number)], [receivers[number]])
            nursery.start_soon(instance.execute_decoupled, [of_size(MIB // 2, 2)], [receivers[2]])
            await trio.testing.wait_all_tasks_blocked(0.05)
            (tmp_path / "go 2").touch()
            await trio.sleep(0.2)
            assert not any(each.ended.is_set() for each in receivers)
            (tmp_path / "go 0").touch()
            with trio.fail_after(20):
                await receivers[2].ended.wait()
            (tmp_path / "go 1").touch()
            with trio.fail_after(20):
                await receivers[1].ended.wait()


# An ensemble: each output is small enough, both are not.
TWICE = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "MORE" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "same" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } },
  { model_name: "same" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "MORE" } }
] }
"""


async def test_calls_that_are_too_large_are_answered_with_an_error(tmp_path: Path) -> None:
    """In both directions, and the next ones are well."""
    caller = calling("""
        size = 2 * 1048576 // 4
        found = [call("same", np.zeros(size)).exec(), call("large", [size]).exec()]
        found += [call("twice", np.zeros(size * 3 // 8), ("OUT", "MORE")).exec(), call("same", [7]).exec()]
        return [answer(np.array([r.error().message() if r.has_error() else "well" for r in found], object), "TEXT")]
    """)
    models: Models = {
        "same": calling("return [answer(given(r)) for r in requests]"),
        "large": calling("return [answer(np.zeros(int(given(r)[0]), np.float32)) for r in requests]"),
        "caller": (caller, 'output [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]'),
    }
    (tmp_path / "twice" / "1").mkdir(parents=True)
    (tmp_path / "twice" / "config.pbtxt").write_text(TWICE)
    async with serving(tmp_path, models, backend_config={"python": LIMIT}) as core:
        sent, received, both, well = (text.decode() for text in await ask(core, "caller"))
    assert "The inputs of the BLS request take 2097152 bytes, but at most 1048576" in sent
    assert "Unable to send response. It takes 2097152 bytes" in received
    assert "the answer of model 'twice' takes 1572864 bytes, but at most 1048576" in both
    assert well == "well"
