"""Decoupled models: any number of responses, from any thread, as fast as the client takes them."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trio

from backends.interface import InstanceDied, Rescheduled
from backends.python.worker.trioton_worker.frames import UNTAKEN_RESPONSES
from protocol.errors import Internal, InvalidArgument
from repository.model_config import ModelSequenceBatching
from tests.backends.python.models import (
    DECOUPLED,
    Receiver,
    answers,
    backend,
    executing,
    output,
    parameters,
    request,
    running,
    stream,
)
from tests.backends.python.processes import children, until

# Counts from 0 to the request's number.
COUNT = """
    for r in requests:
        sender = r.get_response_sender()
        for number in range(int(r.inputs()[0].as_numpy()[0, 0])):
            sender.send(answer(np.array([number], np.float32)))
        sender.send(flags=FINAL)
"""

THREADS = """
    def work(r, sender):
        for number in range(int(r.inputs()[0].as_numpy()[0, 0])):
            sender.send(answer(np.array([number], np.float32)))
        sender.send(flags=FINAL)
    for r in requests:
        threading.Thread(target=work, args=(r, r.get_response_sender())).start()
"""

COROUTINE = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*[self.count(r) for r in requests])

    async def count(self, request):
        sender = request.get_response_sender()
        for number in range(int(request.inputs()[0].as_numpy()[0, 0])):
            await asyncio.sleep(0)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("model", [executing(COUNT), executing(THREADS), COROUTINE], ids=["sync", "threads", "async"])
async def test_any_number_of_responses(tmp_path: Path, model: str) -> None:
    """None, one, and many more than may be under way; in order for each request of a batch, and in the next batch."""
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        for counts in ((0, 1, 300), (2,)):
            receivers = await stream(instance, *(request((count,)) for count in counts))
            for count, receiver in zip(counts, receivers, strict=True):
                assert answers(receiver) == list(range(count))
                assert receiver.error is None
                assert not any(response.is_final for response in receiver.responses)


async def test_the_last_response_may_bear_the_flag(tmp_path: Path) -> None:
    """Responses carry the request's id, the model, their parameters, and the outputs that were asked for."""
    model = executing("""
        for r in requests:
            tensors = [pb_utils.Tensor(name, np.ones(3000, np.float64)) for name in ("OUT", "OTHER")]
            r.get_response_sender().send(pb_utils.InferenceResponse(tensors, parameters={"a": 1}), FINAL)
    """)
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        [receiver] = await stream(instance, request(id="seven"))
    [response] = receiver.responses
    assert (response.model_name, response.model_version, response.id) == ("m", 1, "seven")
    assert (response.parameters, response.is_final) == ({"a": 1}, True)
    assert [tensor.name for tensor in response.outputs] == ["OUT"]
    assert output(response).tolist() == [1.0] * 3000


@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "large"])
async def test_a_slow_client_stops_its_own_sender_and_no_other(tmp_path: Path, size: int) -> None:
    """And no more is held for it than it has credit for; the worker takes batches meanwhile."""
    sent = tmp_path / "sent"
    model = executing(f"""
        def work(r, sender):
            for number in range(int(r.inputs()[0].as_numpy()[0, 0])):
                sender.send(answer(np.full([{size}], number, np.float32)))
                if r.request_id() == "slow":
                    with open({str(sent)!r}, "a") as file:
                        file.write("x")
            sender.send(flags=FINAL)
        for r in requests:
            threading.Thread(target=work, args=(r, r.get_response_sender())).start()
    """)
    slow = Receiver(room=3)
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        await instance.execute_decoupled([request((200,), id="slow")], [slow])
        for _ in range(2):
            [quick] = await stream(instance, request((100,)))
            assert [int(output(response)[0]) for response in quick.responses] == list(range(100))
        under_way = sent.stat().st_size
        assert under_way <= 3 + UNTAKEN_RESPONSES
        slow.make_room(6)
        await slow.wait_count(6)
        slow.make_room()
        await slow.ended.wait()
    assert [int(output(response)[0]) for response in slow.responses] == list(range(200))


async def test_an_error_ends_its_request(tmp_path: Path) -> None:
    """After the responses before it; what the model sends afterwards is dropped, and the flag is still welcome."""
    model = executing("""
        for r in requests:
            sender = r.get_response_sender()
            sender.send(answer(np.zeros(1)))
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.INVALID_ARG)))
            sender.send(answer(np.ones(1)))
            sender.send(flags=FINAL)
    """)
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        for receiver in await stream(instance, request(), request()):
            assert answers(receiver) == [0.0]
            assert isinstance(receiver.error, InvalidArgument)
            assert receiver.error.message == "no"


PREFIX = "Failed to process the request(s) for model 'm_0', message: "


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise ValueError('bad')", "ValueError: bad\n\nAt:\n"),
        (
            "return []",
            "Python model 'm_0' is using the decoupled mode and the execute function must return None.",
        ),
    ],
)
async def test_a_batch_that_fails_ends_the_requests_that_are_open(tmp_path: Path, body: str, text: str) -> None:
    """Their senders are closed; those that were answered finally are not touched."""
    model = executing(f"""
        if requests[0].request_id() == "again":
            try:
                self.sender.send(flags=FINAL)
            except pb_utils.TritonModelException as error:
                requests[0].get_response_sender().send(answer(np.array([str(error)], object)), FINAL)
            return None
        requests[0].get_response_sender().send(flags=FINAL)
        self.sender = requests[1].get_response_sender()
        self.sender.send(answer(np.zeros(1)))
        {body}
    """)
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        receivers = [Receiver() for _ in range(3)]
        with pytest.raises(Internal) as failure:
            await instance.execute_decoupled([request(), request(), request()], receivers)
        assert failure.value.message.startswith(PREFIX + text)
        assert receivers[0].error is None
        assert [r.error.message for r in receivers[1:] if r.error is not None] == [failure.value.message] * 2
        assert answers(receivers[1]) == [0.0]
        [receiver] = await stream(instance, request(id="again"))
        assert answers(receiver) == [b"Unable to send response. Response sender has been closed."]


async def test_a_coroutine_that_fails_ends_its_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where Triton only logs it."""
    model = """
    import asyncio

    class TritonPythonModel:
        async def execute(self, requests):
            await asyncio.sleep(0)
            raise asyncio.CancelledError("gone") if requests[0].request_id() else ValueError("bad")
    """
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        for id, text in (("", "ValueError: bad"), ("x", "CancelledError: gone")):
            receiver = Receiver()
            with suppress(Internal):  # if it has failed already
                await instance.execute_decoupled([request(id=id)], [receiver])
            await receiver.ended.wait()
            assert receiver.error is not None
            assert receiver.error.message.startswith(PREFIX + text)
    assert any("Traceback" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "requests[0].get_response_sender().send(answer(np.zeros(1)))",
        "threading.Thread(target=lambda sender: time.sleep(0.01), args=(requests[0].get_response_sender(),)).start()",
        "self.kept = requests; self.kept.clear()",
    ],
)
async def test_a_request_that_is_let_go_is_told_to_its_client(tmp_path: Path, body: str) -> None:
    """Without a final flag its client would wait for ever."""
    async with running(backend(tmp_path, executing(body), config=DECOUPLED)) as instance:
        [receiver] = await stream(instance, request())
    assert isinstance(receiver.error, Internal)
    assert "has let go of the request without sending its final response" in receiver.error.message


async def test_a_last_response_that_cannot_be_packed_is_not_the_end(tmp_path: Path) -> None:
    """Another one may follow; where none does, the client is told."""
    model = executing(
        """
        class Mute:
            def __str__(self):
                raise ValueError("nothing to say")
        def work(sender, has_another):
            try:
                sender.send(answer(np.array([Mute()], object)), FINAL)
            except ValueError:
                if has_another:
                    sender.send(answer(np.zeros(1)), FINAL)
        for r in requests:
            threading.Thread(target=work, args=(r.get_response_sender(), r.request_id() == "another")).start()
    """
    )
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        told, answered = await stream(instance, request(), request(id="another"))
    assert told.error is not None
    assert "has let go of the request without sending its final response" in told.error.message
    assert (answers(answered), answered.error) == ([0.0], None)


async def test_what_is_asked_of_a_sender_wrongly(tmp_path: Path) -> None:
    model = executing(
        """
        texts = []
        def misuse(*arguments, **more):
            try:
                sender.send(*arguments, **more)
            except (pb_utils.TritonModelException, TypeError) as error:
                texts.append(str(error))
        for r in requests:
            sender = r.get_response_sender()
            misuse(answer(np.zeros(1)), 2)
            misuse()
            misuse("text")
            sender.send(answer(np.zeros(1)), FINAL)
            misuse(answer(np.zeros(1)))
            misuse(flags=FINAL)
        open("%s", "w").write("|".join(texts))
    """
        % (tmp_path / "texts")
    )
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        await stream(instance, request())
    assert (tmp_path / "texts").read_text().split("|") == [
        "Unable to send response. Unsupported flag provided.",
        "Inference Response object must be provided when the response flags is set to zero.",
        "InferenceResponseSender.send: expected an InferenceResponse, found type <class 'str'>",
        "Unable to send response. Response sender has been closed.",
        "Unable to send response. Response sender has been closed.",
    ]


@pytest.mark.parametrize("when", ["before", "while it runs", "while it waits for credit"])
async def test_a_client_that_goes_is_seen_by_the_model(tmp_path: Path, when: str) -> None:
    """By the sender and by the request, also while nothing else happens; the other request of the batch goes on."""
    model = executing(f"""
        gone, stays = requests
        sender, other = gone.get_response_sender(), stays.get_response_sender()
        if {when!r} == "while it waits for credit":
            for number in range(500):
                sender.send(answer(np.zeros(1)))
        sender.send(answer(np.ones(1)))
        while not sender.is_cancelled():
            assert not stays.is_cancelled() and not other.is_cancelled()
            time.sleep(0.001)
        assert gone.is_cancelled()
        sender.send(answer(np.ones(1)))
        sender.send(flags=FINAL)
        other.send(answer(np.array([7])), FINAL)
    """)
    going, staying = Receiver(is_cancelled=when == "before", room=4), Receiver()
    requests = [request(id="going"), request(id="staying")]

    def go() -> None:
        going.is_cancelled = True
        going.make_room()
        instance.cancel(requests[0])
        instance.cancel(requests[0])

    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance, trio.open_nursery() as nursery:
        nursery.start_soon(instance.execute_decoupled, requests, [going, staying])
        if when != "before":
            await going.wait_count(1 if when == "while it runs" else 4)
            go()
        await staying.ended.wait()
        await going.ended.wait()
    assert answers(staying) == [7]
    assert (going.error, staying.error) == (None, None)


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
async def test_a_worker_that_dies_ends_every_stream(tmp_path: Path, end: str) -> None:
    """Those of the running batch, and those that were left to threads by earlier ones."""
    model = executing(f"""
        sender = requests[0].get_response_sender()
        sender.send(answer(np.zeros(1)))
        if requests[0].request_id() == "die":
            {end}
        threading.Thread(target=lambda: (time.sleep(1000), sender), daemon=True).start()
    """)
    instance = backend(tmp_path, model, config=DECOUPLED)
    await instance.load()
    left, last = Receiver(), Receiver()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(instance.wait_died)
        await instance.execute_decoupled([request()], [left])
        with pytest.raises(InstanceDied):
            await instance.execute_decoupled([request(id="die")], [last])
        await left.ended.wait()
    for receiver in (left, last):
        assert answers(receiver) == [0.0]
        assert isinstance(receiver.error, InstanceDied)
        assert "model instance 'm_0' died: its worker process " in receiver.error.message
    await instance.unload()
    assert not children()


async def test_a_worker_that_answers_without_credit_is_killed(tmp_path: Path) -> None:
    model = executing("""
        from trioton_worker import senders
        senders.Reply._wait_credit = lambda self: None
        sender = requests[0].get_response_sender()
        for _ in range(100):
            sender.send(answer(np.zeros(1)))
        time.sleep(1000)
    """)
    instance = backend(tmp_path, model, config=DECOUPLED)
    await instance.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(instance.wait_died)
        with pytest.raises(InstanceDied, match="it sent more responses to a request than it had credit for"):
            await instance.execute_decoupled([request()], [Receiver(room=2)])
    await instance.unload()


async def test_coroutines_run_beside_each_other_up_to_a_limit(tmp_path: Path) -> None:
    """The batch after that waits."""
    config = msgspec.structs.replace(DECOUPLED, parameters=parameters(MAX_CONCURRENT_EXECUTE="2"))
    model = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        running = 0
        go = None

        async def execute(self, requests):
            self.go = self.go or asyncio.Event()
            self.running += 1
            if requests[0].request_id() == "go":
                self.go.set()
            await self.go.wait()
            most = self.running
            await asyncio.sleep(0.01)
            self.running -= 1
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([most]))])
            requests[0].get_response_sender().send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    receivers = [Receiver() for _ in range(4)]
    async with running(backend(tmp_path, model, config=config)) as instance, trio.open_nursery() as nursery:
        for receiver, id in zip(receivers, ("", "go", "", ""), strict=True):
            await instance.execute_decoupled([request(id=id)], [receiver])
        for receiver in receivers:
            await receiver.ended.wait()
        nursery.cancel_scope.cancel()
    assert max(answers(receiver)[0] for receiver in receivers) == 2


@pytest.mark.parametrize("name", ["execute", "begin"])
async def test_any_number_of_coroutines_run_beside_each_other(tmp_path: Path, name: str) -> None:
    """A batch is only begun, so the last one may be what all others wait for; also where a method that is called
    `execute` only returns the coroutine of another."""
    model = f"""
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        running = 0
        go = None

        def execute(self, requests):
            return self.begin(requests)

        async def {name}(self, requests):
            self.go = self.go or asyncio.Event()
            self.running += 1
            if requests[0].request_id() == "go":
                self.go.set()
            await self.go.wait()
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.running]))])
            requests[0].get_response_sender().send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    count = 100
    receivers = [Receiver() for _ in range(count)]
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance, trio.open_nursery() as nursery:
        for index, receiver in enumerate(receivers):
            await instance.execute_decoupled([request(id="go" if index == count - 1 else "")], [receiver])
        for receiver in receivers:
            await receiver.ended.wait()
        nursery.cancel_scope.cancel()
    assert [answers(receiver) for receiver in receivers] == [[count]] * count


@pytest.mark.parametrize("form", ["async def execute", "def execute"])
async def test_steps_of_other_sequences_run_beside_a_coroutine(tmp_path: Path, form: str) -> None:
    """What counts as the end of a step is that of its coroutine, not of its responses."""
    config = msgspec.structs.replace(DECOUPLED, sequence_batching=ModelSequenceBatching())
    model = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        go = None

        async def execute(self, requests):
            self.go = self.go or asyncio.Event()
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1.0]))])
            requests[0].get_response_sender().send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            if requests[0].request_id() == "go":
                self.go.set()
            await self.go.wait()
    """
    if form == "def execute":  # it is seen only when it has run
        model = model.replace("async def execute(", "async def run(")
        model += "    def execute(self, requests):\n            return self.run(requests)\n"
    freed, ended, receivers = trio.Event(), trio.Event(), [Receiver(), Receiver()]
    async with running(backend(tmp_path, model, config=config)) as instance, trio.open_nursery() as nursery:

        async def run_first() -> None:
            await instance.execute_decoupled_overlapping([request()], receivers[:1], freed.set)
            ended.set()

        nursery.start_soon(run_first)
        await freed.wait()
        await receivers[0].ended.wait()
        assert not ended.is_set()
        await instance.execute_decoupled_overlapping([request(id="go")], receivers[1:], lambda: None)
        await ended.wait()
        nursery.cancel_scope.cancel()
    assert [answers(receiver) for receiver in receivers] == [[1.0], [1.0]]


async def test_steps_without_a_coroutine_run_one_batch_after_the_other(tmp_path: Path) -> None:
    config = msgspec.structs.replace(DECOUPLED, sequence_batching=ModelSequenceBatching())
    model = executing("requests[0].get_response_sender().send(answer(np.zeros(1)), FINAL)")
    freed, receiver = trio.Event(), Receiver()
    async with running(backend(tmp_path, model, config=config)) as instance:
        for _ in range(2):
            await instance.execute_decoupled_overlapping([request()], [receiver], freed.set)
            assert not freed.is_set()


async def test_a_round_of_an_iterative_sequence_ends_without_an_answer(tmp_path: Path) -> None:
    """Responses may be sent in each round."""
    config = msgspec.structs.replace(DECOUPLED, sequence_batching=ModelSequenceBatching(iterative_sequence=True))
    model = executing("""
        for r in requests:
            sender = r.get_response_sender()
            sender.send(answer(np.zeros(1)))
            if r.request_id() == "again":
                r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(flags=FINAL)
    """)
    async with running(backend(tmp_path, model, config=config)) as instance:
        receivers = [Receiver(), Receiver()]
        await instance.execute_decoupled([request(id="again"), request()], receivers)
        assert [answers(receiver) for receiver in receivers] == [[0.0], [0.0]]
        assert isinstance(receivers[0].error, Rescheduled)
        assert receivers[1].error is None


async def test_many_responses_leave_the_worker_no_larger(tmp_path: Path) -> None:
    """Nothing is kept of what was sent."""
    model = executing("""
        import resource
        sender = requests[0].get_response_sender()
        for number in range(2000):
            sender.send(answer(np.zeros(2500)))
            if number == 200:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        sender.send(answer(np.array([grown])), FINAL)
    """)
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        receiver = Receiver()
        await instance.execute_decoupled([request()], [receiver])
        await receiver.ended.wait()
    assert len(receiver.responses) == 2001
    assert output(receiver.responses[-1]).item() < 8000, "KiB, of 40 MB that were sent"


async def test_the_log_level_follows_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Verbose messages cross only while somebody wants them; a change is known with the next batch."""
    model = executing("""
        pb_utils.Logger.log_verbose("batch " + requests[0].request_id())
        requests[0].get_response_sender().send(flags=FINAL)
    """)
    log = logging.getLogger("trioton.model.m")
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        for level, id in ((logging.INFO, "1"), (logging.DEBUG, "2"), (logging.INFO, "3")):
            caplog.set_level(level, log.name)
            await stream(instance, request(id=id))
    assert [record.getMessage() for record in caplog.records if record.name == log.name] == ["m_0: batch 2"]


async def test_nothing_is_left_of_streams_that_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither with the server nor in the worker."""
    caplog.set_level(logging.INFO)
    model = executing("""
        for r in requests:
            sender = r.get_response_sender()
            sender.send(answer(np.zeros(1)))
            sender.send(flags=FINAL)
        from trioton_worker.session import session
        here = session()
        print(f"left: {len(here.replying)} {len(here.executing)}")
    """)
    async with running(backend(tmp_path, model, config=DECOUPLED)) as instance:
        for _ in range(3):
            await stream(instance, request(), request())
        assert instance._loaded is not None
        await until(lambda: not instance._loaded.batches.open.has_any)  # type: ignore[union-attr]
    assert [record.getMessage() for record in caplog.records] == ["m_0: left: 1 1"] * 3
