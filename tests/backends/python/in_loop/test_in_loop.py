"""Models in the server's loop: what only they promise, and what they are refused."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio

from backends.interface import BatchResult
from backends.python import PythonBackend
from backends.python.in_loop.loop_tensors import settle
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import ModelOutput
from tests.backends.python import models
from tests.backends.python.models import (
    CONFIG,
    DECOUPLED,
    IDENTITY,
    ClientMemory,
    executing,
    infer,
    output,
    request,
    running,
)
from tests.backends.python.test_services import Server, answered, made

USE = "; use in_process"
CALLS = "The model cannot be allowed to call another model: "


def in_loop(directory: Path, text: str) -> PythonBackend:
    return models.backend(directory, text, isolation="in_loop")


async def test_execute_runs_in_the_thread_of_the_loop_and_the_rest_does_not(tmp_path: Path) -> None:
    model = """
        import threading
        import numpy as np
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def initialize(self, args):
                self.started = threading.get_ident()
            def execute(self, requests):
                found = np.array([self.started, threading.get_ident()])
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", found)]) for _ in requests]
            def is_ready(self):
                return threading.get_ident() != self.started
    """
    async with running(in_loop(tmp_path, model)) as instance:
        started, executed = output((await infer(instance, request()))[0]).tolist()
        assert (started == threading.get_ident(), executed == threading.get_ident()) == (False, True)
        assert await instance.is_ready()


def never(result: object) -> None:
    raise AssertionError("nothing is to come later")


async def test_a_batch_takes_no_turn_of_the_loop(tmp_path: Path) -> None:
    """What `begin` begins it ends, also where the model fails."""
    model = executing(f"if requests[0].request_id(): raise ValueError('no')\n{IDENTITY}")
    async with running(in_loop(tmp_path, model)) as instance:
        good = instance.begin([request((3.0,)), request()], never)
        with pytest.raises(Internal, match="no"):
            instance.begin([request(id="bad")], never)
    assert isinstance(good, BatchResult)
    assert output(good.responses[0]).tolist() == [[3.0]]


async def test_decoupled_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await models.backend(tmp_path, executing(""" + '"pass"' + """), config=DECOUPLED, isolation="in_loop").load()
    assert refused.value.message.startswith("model 'm': ISOLATION is in_loop, which a decoupled model cannot have")
    assert refused.value.message.endswith(USE)


async def test_coroutines_are_refused_before_the_model_is_initialized(tmp_path: Path) -> None:
    model = """
        class TritonPythonModel:
            def initialize(self, args):
                raise ValueError("too late")
            async def execute(self, requests):
                pass
    """
    with pytest.raises(Internal) as refused:
        await in_loop(tmp_path, model).load()
    assert refused.value.message.startswith("model instance 'm_0' has a coroutine as execute")
    assert refused.value.message.endswith(USE)


async def test_a_coroutine_that_nobody_could_foresee_fails_its_batch(tmp_path: Path) -> None:
    model = executing("async def later(): return []\nreturn later()")
    async with running(in_loop(tmp_path, model)) as instance:
        with pytest.raises(Internal, match=r"has a coroutine as execute.*; use in_process$"):
            await infer(instance, request())


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("read(calling(request, 'double').exec())", CALLS),
        (
            "list(calling(request, 'stream').exec(decoupled=True))",
            CALLS,
        ),
        ("calling(request, 'double').async_exec()", CALLS),
        ("pb_utils.load_model('a')", "Failed to load model: "),
        ("pb_utils.unload_model('a')", "Failed to unload model: "),
        ("pb_utils.is_model_ready('a')", "Failed to check model readiness: "),
    ],
)
async def test_nothing_is_waited_for(tmp_path: Path, body: str, problem: str) -> None:
    """It would be for ever: what gives the answer is the loop."""
    model = f"""
class TritonPythonModel:
    def execute(self, requests):
        [request] = requests
        try:
            {body}
        except pb_utils.TritonModelException as error:
            return [answer(str(error))]
"""
    [[text]] = await answered(made(tmp_path, model, "in_loop", Server()))
    assert text.startswith(problem + "it would wait in the server's loop")
    assert text.endswith(USE)


async def test_a_thread_of_the_model_may_call_other_models(tmp_path: Path) -> None:
    """The answer goes to a request that was kept for it."""
    model = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.work, args=(request, request.get_response_sender())).start()
    def work(self, request, sender):
        sender.send(answer(read(calling(request, "double").exec())), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    with trio.fail_after(10):
        assert await answered(made(tmp_path, model, "in_loop", Server())) == [["6.0"]]


async def test_metrics_change_at_once(tmp_path: Path) -> None:
    """Those that the model makes in execute too; what finalizers drop is dropped in a turn of its own."""
    body = """
class TritonPythonModel:
    def execute(self, requests):
        self.counter = pb_utils.MetricFamily("count", "text", pb_utils.MetricFamily.COUNTER)
        self.metric = self.counter.Metric(labels={"a": "b"})
        self.metric.increment(2)
        before = self.metric.value()
        self.metric.increment(0.5)
        gauge = pb_utils.MetricFamily("gauge", "text", pb_utils.MetricFamily.GAUGE)
        gauge.Metric().set(0.5)
        histogram = pb_utils.MetricFamily("histogram", "text", c_python_backend_utils.MetricKind.HISTOGRAM)
        histogram.Metric(buckets=[1.0, 2.0]).observe(1.5)
        return [answer(f"{before} {self.metric.value()}")]
"""
    server = Server()
    assert await answered(made(tmp_path, body, "in_loop", server)) == [["2.0 2.5"]]
    assert server.families["count"].metrics[0].done[:2] == [("increment", 2), ("increment", 0.5)]
    for name, change in (("gauge", ("set", 0.5)), ("histogram", ("observe", 1.5))):
        assert server.families[name].metrics[0].done == [change, ("close", 0)]


async def test_what_the_model_logs_does_not_wait_for_its_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """More than a socket would hold."""
    caplog.set_level(logging.DEBUG, "trioton.model.m")
    model = executing("for i in range(2000): pb_utils.Logger.log_verbose('x' * 1000)\n" + IDENTITY)
    async with running(in_loop(tmp_path, model)) as instance:
        with trio.fail_after(30):
            await infer(instance, request())
        assert len([each for each in caplog.records if each.name == "trioton.model.m"]) == 2000
        caplog.clear()
        caplog.set_level(logging.INFO, "trioton.model.m")
        await infer(instance, request())
    assert not [each for each in caplog.records if each.name == "trioton.model.m"]


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("size", [4, 1 << 16])
@pytest.mark.parametrize(
    "kept",
    [
        "self.kept = array",
        "self.kept = response.output_tensors()[0].as_numpy()",
        "self.kept = responses[0].output_tensors()[0].as_numpy().reshape(-1)",
        "self.kept = memoryview(array)",
        "self.kept = r.inputs()[0].as_numpy(); responses = [answer(self.kept)]",
        "self.kept = r.inputs()[0].as_numpy()[:, 1:]; responses = [answer(r.inputs()[0].as_numpy())]",
        "self.kept = np.zeros_like(array); responses = [answer(self.kept[:, :])]",
    ],
)
async def test_a_model_may_write_to_what_it_has_returned(tmp_path: Path, size: int, kept: str, is_shared: bool) -> None:
    model = executing(f"""
        [r] = requests
        if hasattr(self, "kept"):
            np.asarray(self.kept)[...] = 9
            return [answer(np.zeros(1))]
        array = np.zeros_like(r.inputs()[0].as_numpy())
        response = answer(array)
        responses = [response]
        {kept}
        return responses
    """)
    async with running(in_loop(tmp_path, model)) as instance:
        zeros = request(np.zeros((1, size), np.float32))
        if is_shared:
            zeros.inputs[0] = ClientMemory.tensor("IN", zeros.inputs[0].as_numpy())
        [first] = await infer(instance, zeros)
        await infer(instance, request())
        assert (output(first) == 0).all()
        assert (zeros.inputs[0].as_numpy() == 0).all()


def test_only_what_nobody_else_has_is_handed_on_without_a_copy() -> None:
    tensors = [Tensor("OUT", DataType.FP32, (5000,), b"") for _ in range(7)]
    held, foreign = np.ones(5000, np.float32), bytearray(np.ones(5000, np.float32).tobytes())
    watched = np.ones(5001, np.float32)
    watcher = weakref.ref(watched)
    arrays = [np.ones(5000, np.float32), held, held[:], np.ones(6000, np.float32)[1000:]]
    arrays += [np.frombuffer(foreign, np.float32)[:], np.frombuffer(memoryview(foreign), np.float32)[:], watched[1:]]
    del watched
    settle(list(zip(tensors, [arrays.pop(0) for _ in tensors], strict=True)))
    kinds = [type(tensor.data) for tensor in tensors]
    assert kinds == [memoryview, bytes, bytes, memoryview, bytes, bytes, bytes]
    assert watcher() is None
    assert all((tensor.as_numpy() == 1).all() for tensor in tensors)


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_large_input_that_is_returned_is_copied_once(tmp_path: Path, is_shared: bool) -> None:
    """On its way in: the model's copy is then the output's."""
    async with running(in_loop(tmp_path, executing(IDENTITY))) as instance:
        for size, kind in ((1 << 16, memoryview), (4, bytes)):
            ones = np.ones((1, size), np.float32)
            asked = request(ones)
            if is_shared:
                asked.inputs[0] = ClientMemory.tensor("IN", ones)
            [response] = await infer(instance, asked)
            assert (output(response) == 1).all()
            assert type(response.outputs[0].data) is kind  # type: ignore[union-attr]  # seen above


async def test_a_caller_that_went_before_its_batch_is_seen(tmp_path: Path) -> None:
    model = executing("return [answer(np.array([r.is_cancelled() for r in requests])) for _ in requests]")
    async with running(in_loop(tmp_path, model)) as instance:
        gone, there = request(), request()
        instance.cancel(gone)
        assert output((await infer(instance, there, gone))[0]).tolist() == [False, True]
        assert output((await infer(instance, gone))[0]).tolist() == [False]


async def test_requests_of_several_schemas_in_one_batch(tmp_path: Path) -> None:
    model = executing(
        "return [answer(np.array([len(t.name()) for t in r.inputs()] + r.inputs()[0].shape())) for r in requests]"
    )
    async with running(in_loop(tmp_path, model)) as instance:
        one, two = np.ones((1, 3), np.float32), np.ones((2, 70_000), np.int64)
        both = InferenceRequest("m", [Tensor.from_numpy("IN", one), Tensor.from_numpy("OTHER", two)])
        nothing = Tensor("IN", DataType.FP32, (1, 0), b"")
        found = await infer(
            instance, request(one), request(one), both, request(two), request(two), InferenceRequest("m", [nothing])
        )
    assert [output(each).tolist() for each in found] == [
        [2, 1, 3],
        [2, 1, 3],
        [2, 5, 1, 3],
        [2, 2, 70_000],
        [2, 2, 70_000],
        [2, 1, 0],
    ]


async def test_a_tensor_of_another_size_than_its_shape_is_refused(tmp_path: Path) -> None:
    async with running(in_loop(tmp_path, executing(IDENTITY))) as instance:
        with pytest.raises(Internal, match="not as many bytes as its datatype and shape need"):
            await infer(instance, InferenceRequest("m", [Tensor("IN", DataType.FP32, (1, 2), bytes(7))]))
        await infer(instance, request())


async def test_text_that_no_client_could_be_sent_is_mended(tmp_path: Path) -> None:
    model = executing("""
        bad = chr(0xd800)
        error = pb_utils.InferenceResponse(error=pb_utils.TritonError(bad))
        return [pb_utils.InferenceResponse([], parameters={bad: bad}), error]
    """)
    async with running(in_loop(tmp_path, model)) as instance:
        first, second = await infer(instance, request(), request())
    assert getattr(first, "parameters") == {"?": "?"}  # noqa: B009 (it may be an error, for mypy)
    assert getattr(second, "message") == "?"  # noqa: B009


async def test_a_slow_model_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.python.in_loop.loop_batches.SLOW_SECONDS", 0.0)
    async with running(in_loop(tmp_path, executing(IDENTITY))) as instance:
        for _ in range(2):
            await infer(instance, request())
    [said] = [each.getMessage() for each in caplog.records if "in the server's loop" in each.getMessage()]
    assert said.startswith("model instance 'm_0': execute took ")


async def test_requests_leave_no_circles(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, output=(ModelOutput(name="OUT"),))
    instance = models.backend(tmp_path, executing(IDENTITY), config=config, isolation="in_loop")
    async with running(instance):
        await infer(instance, request())
        gc.collect()
        gc.disable()
        try:
            for size in (4, 1 << 16):
                await infer(instance, *[request(np.ones((1, size), np.float32)) for _ in range(8)])
            assert gc.collect() == 0
        finally:
            gc.enable()
