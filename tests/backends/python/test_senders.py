"""Response senders of models that are not decoupled: one response for each request, from any thread."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from backends.interface import BatchResult, InstanceDied
from backends.python import PythonBackend
from protocol.errors import Internal, InvalidArgument, NotFound
from protocol.messages import InferenceRequest, InferenceResponse
from repository.model_config import ModelSequenceBatching
from tests.backends.python import models
from tests.backends.python.models import CONFIG, MakeBackend, executing, infer, output, parameters, request, running
from tests.backends.python.processes import children

# Replies by sender where the request says so.
MIXED = """
    responses = []
    for index, r in enumerate(requests):
        how = r.request_id()
        response = answer(np.array([index]))
        if how == "returned":
            responses.append(response)
            continue
        sender = r.get_response_sender()
        if how == "thread":
            threading.Thread(target=lambda s=sender, a=response: (time.sleep(0.01), s.send(a, FINAL))).start()
        elif how == "twice":
            sender.send(response, FINAL)
        elif how == "apart":
            sender.send(response)
            sender.send(flags=FINAL)
        elif how == "error":
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)))
        responses.append(response if how in ("twice", "unused") else None)
    return responses
"""
ALL = ("returned", "thread", "twice", "apart", "error", "unused")


async def test_each_request_is_answered_once_however_it_is_answered(backend: MakeBackend, tmp_path: Path) -> None:
    async with running(backend(tmp_path, executing(MIXED))) as instance:
        for _ in range(2):
            found = await infer(instance, *(request(id=how) for how in ALL))
            assert isinstance(found[4], NotFound)
            assert found[4].message == "no"
            assert [output(response).item() for response in found if response is not found[4]] == [0, 1, 2, 3, 5]
            assert [response.id for response in found if isinstance(response, InferenceResponse)] == [
                how for how in ALL if how != "error"
            ]


async def test_nothing_returned_is_no_answer_and_no_error(backend: MakeBackend, tmp_path: Path) -> None:
    model = executing("for r in requests: r.get_response_sender().send(answer(np.zeros(1)), FINAL)")
    async with running(backend(tmp_path, model)) as instance:
        assert len(await infer(instance, request(), request())) == 2


async def test_a_request_that_is_let_go_is_told_to_its_client(backend: MakeBackend, tmp_path: Path) -> None:
    """The others of the batch are answered."""
    model = executing("""
        requests[1].get_response_sender()
        return [answer(np.zeros(1)), None, None]
    """)
    async with running(backend(tmp_path, model)) as instance:
        first, *others = await infer(instance, request(), request(), request())
    assert isinstance(first, InferenceResponse)
    for error in others:
        assert isinstance(error, Internal)
        assert "has let go of the request without sending its final response" in error.message


async def test_what_was_sent_stays_when_the_batch_fails(backend: MakeBackend, tmp_path: Path) -> None:
    model = executing("""
        requests[0].get_response_sender().send(answer(np.zeros(1)), FINAL)
        raise ValueError("late")
    """)
    async with running(backend(tmp_path, model)) as instance:
        first, second = await infer(instance, request(), request())
    assert isinstance(first, InferenceResponse)
    assert isinstance(second, Internal)
    assert "ValueError: late" in second.message


MISUSES = [
    ("sender.send(answer(np.zeros(1)), 4)", "Unable to send response. Unsupported flag provided."),
    (
        "sender.send()",
        "Inference Response object must be provided when the response flags is set to zero.",
    ),
    (
        "sender.send(answer(np.zeros(1)), FINAL); sender.send(answer(np.zeros(1)))",
        "Unable to send response. Response sender has been closed.",
    ),
    (
        "sender.send(answer(np.zeros(1))); sender.send(answer(np.zeros(1)))",
        "Unable to send response. Non-decoupled model cannot send more than one response.",
    ),
    (
        "sender.send(flags=FINAL)",
        "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
    ),
]


@pytest.mark.parametrize(("body", "text"), MISUSES, ids=[body for body, _ in MISUSES])
async def test_what_is_asked_of_a_sender_wrongly(backend: MakeBackend, tmp_path: Path, body: str, text: str) -> None:
    model = executing(f"""
        sender = requests[0].get_response_sender()
        try:
            {body}
        except pb_utils.TritonModelException as error:
            requests[1].get_response_sender().send(answer(np.array([str(error)], object)), FINAL)
        return [answer(np.zeros(1)), None]
    """)
    async with running(backend(tmp_path, model)) as instance:
        first, second = await infer(instance, request(), request())
    assert isinstance(first, InferenceResponse), "the mistake has closed nothing"
    assert output(second)[0].decode() == text


# Holds back what is called "late" until a request called "go" comes.
LATE = """
    if not hasattr(self, "late"):
        self.late = []
    responses = []
    for r in requests:
        if r.request_id() == "late":
            self.late.append(r.get_response_sender())
            responses.append(None)
        elif r.request_id() == "go":
            responses.append(answer(np.array([len(self.late)])))
            while self.late:
                self.late.pop().send(answer(np.array([-1])), FINAL)
        else:
            responses.append(answer(np.array([1])))
    return responses
"""


class Batch:
    """One batch that may be overlapped by others."""

    def __init__(self, instance: PythonBackend, *requests: InferenceRequest) -> None:
        self._instance = instance
        self._requests = requests
        self.freed = trio.Event()
        self.result: BatchResult | None = None

    async def run(self) -> None:
        self.result = await self._instance.execute_overlapping(self._requests, self.freed.set)

    def outputs(self) -> list[float]:
        assert self.result is not None
        return [output(response).item() for response in self.result.responses]


async def test_a_batch_that_waits_for_its_senders_lets_others_through(backend: MakeBackend, tmp_path: Path) -> None:
    """Also those that answer it."""
    async with running(backend(tmp_path, executing(LATE))) as instance:
        late = [Batch(instance, request(id="late"), request()) for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for batch in late:
                nursery.start_soon(batch.run)
                await batch.freed.wait()
                assert batch.result is None
            plain = Batch(instance, request())
            await plain.run()
            assert not plain.freed.is_set()
            assert plain.outputs() == [1]
            last = Batch(instance, request(id="go"))
            await last.run()
            assert last.outputs() == [3]
        assert [batch.outputs() for batch in late] == [[-1, 1]] * 3


async def test_steps_that_wait_for_their_senders_let_those_of_other_sequences_through(
    backend: MakeBackend, tmp_path: Path
) -> None:
    config = replace(CONFIG, sequence_batching=ModelSequenceBatching())
    async with running(backend(tmp_path, executing(LATE), config=config)) as instance, trio.open_nursery() as nursery:
        late = Batch(instance, request(id="late"))
        nursery.start_soon(late.run)
        await late.freed.wait()
        assert late.result is None
        await Batch(instance, request(id="go")).run()


async def test_a_batch_given_up_while_it_waits_leaves_the_instance_usable(backend: MakeBackend, tmp_path: Path) -> None:
    async with running(backend(tmp_path, executing(LATE))) as instance:
        async with trio.open_nursery() as nursery:
            batch = Batch(instance, request(id="late"))
            nursery.start_soon(batch.run)
            await batch.freed.wait()
            nursery.cancel_scope.cancel()
        for expected in (1, 0):  # the late answer goes nowhere
            assert [output(r).item() for r in await infer(instance, request(id="go"))] == [expected]
        assert instance._loaded is not None
        assert not instance._loaded.batches.open.has_any


async def test_a_worker_that_dies_ends_the_batches_that_wait(tmp_path: Path) -> None:
    instance = models.backend(
        tmp_path, executing("os._exit(4) if requests[0].request_id() else setattr(self, 'r', requests)")
    )
    await instance.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(instance.wait_died)

        async def wait() -> None:
            with pytest.raises(InstanceDied, match="exited with code 4"):
                await batch.run()

        batch = Batch(instance, request())
        nursery.start_soon(wait)
        await batch.freed.wait()
        with pytest.raises(InstanceDied, match="exited with code 4"):
            await infer(instance, request(id="die"))
    await instance.unload()
    assert not children()


COUNTING = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    running = 0
    most = 0

    async def execute(self, requests):
        self.running += 1
        self.most = max(self.most, self.running)
        if requests[0].request_id() == "large":
            assert (requests[0].inputs()[0].as_numpy() == 5).all()
        await asyncio.sleep(0.02)
        for r in requests:
            assert (r.inputs()[0].as_numpy() == int(r.request_id() == "large") * 5).all()
        self.running -= 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() + self.most)])
                for r in requests]
"""


@pytest.mark.parametrize("limit", [1, 3])
async def test_coroutines_run_beside_each_other_up_to_a_limit(tmp_path: Path, limit: int) -> None:
    """With inputs and outputs of their own, small and large."""
    config = replace(CONFIG, parameters=parameters(MAX_CONCURRENT_EXECUTE=str(limit)))
    async with running(models.backend(tmp_path, COUNTING, config=config)) as instance:
        large = request([5.0] * 20_000, id="large")
        small = request([0.0])
        batches = [Batch(instance, large if index % 2 else small) for index in range(6)]
        async with trio.open_nursery() as nursery:
            for batch in batches:
                nursery.start_soon(batch.run)
        for index, batch in enumerate(batches):
            assert batch.result is not None
            found = output(batch.result.responses[0])
            assert found.shape == (1, 20_000 if index % 2 else 1)
            assert (found == found[0, 0]).all()
        highest = max(output(b.result.responses[0])[0, 0] - 5 * (i % 2) for i, b in enumerate(batches) if b.result)
        assert highest == limit
        assert any(batch.freed.is_set() for batch in batches) == (limit > 1)


async def test_a_bad_limit_is_refused(tmp_path: Path) -> None:
    config = replace(CONFIG, parameters=parameters(MAX_CONCURRENT_EXECUTE="0"))
    with pytest.raises(InvalidArgument, match="'m': MAX_CONCURRENT_EXECUTE must be at least 1, got 0"):
        await models.backend(tmp_path, COUNTING, config=config).load()
