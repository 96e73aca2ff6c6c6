"""Batches through real worker processes: data, results, errors of requests and of batches."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.errors import KINDS, Internal, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelInput, ModelOutput
from tests.backends.python import models
from tests.backends.python.models import CONFIG, IDENTITY, MakeBackend, executing, infer, output, request, running

PREFIX = "Failed to process the request(s) for model 'm_0', message: "

# The raw tensors go back as they came, whatever their datatype.
ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.echo(t) for t in r.inputs()]) for r in requests]

    def echo(self, tensor):
        if tensor.triton_dtype() == 14:
            return pb_utils.Tensor.from_dlpack(tensor.name(), tensor)
        return pb_utils.Tensor(tensor.name(), tensor.as_numpy())
"""

# Small ones cross in the frames, large ones in shared memory, unless that is switched off.
INLINE = {"inline-tensors": "true"}


def arrays_of_every_datatype(*shape: int) -> list[NDArray[Any]]:
    count = int(np.prod(shape))
    numbers = np.arange(count).reshape(shape)
    arrays: list[NDArray[Any]] = [
        (numbers * 3 % 2).astype(datatype.dtype)
        for datatype in DataType
        if datatype not in (DataType.INVALID, DataType.BYTES, DataType.BF16)
    ]
    texts = np.empty(count, dtype=np.object_)
    texts[:] = [b"\x00\xff" * (index % 5) for index in range(count)]
    return [*arrays, texts.reshape(shape), numbers.astype(ml_dtypes.bfloat16)]


def config_for(arrays: list[NDArray[Any]]) -> Any:
    return msgspec.structs.replace(CONFIG, output=tuple(ModelOutput(name=f"T{i}") for i in range(len(arrays))))


@pytest.mark.parametrize("settings", [{}, INLINE])
@pytest.mark.parametrize("shape", [(1, 3), (2, 40000), (2, 0), (0,), ()], ids=str)
async def test_every_datatype_comes_back_as_it_went(
    backend: MakeBackend, tmp_path: Path, shape: tuple[int, ...], settings: dict[str, str]
) -> None:
    """Small, large, without elements, and without dimensions; in shared memory and without."""
    arrays = arrays_of_every_datatype(*shape)
    sent = [Tensor.from_numpy(f"T{index}", array) for index, array in enumerate(arrays)]
    async with running(backend(tmp_path, ECHO, config=config_for(arrays), settings=settings)) as instance:
        for _ in range(3):  # the first answer comes in the frame, later ones in the segment that was made for it
            [response] = await infer(instance, InferenceRequest("m", sent))
            assert isinstance(response, InferenceResponse)
            for before, after in zip(sent, response.outputs, strict=True):
                assert (after.name, after.datatype, after.shape) == (before.name, before.datatype, before.shape)
                assert bytes(after.data) == bytes(before.data)


async def test_a_batch_is_answered_request_by_request(backend: MakeBackend, tmp_path: Path) -> None:
    model = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
                b = pb_utils.get_input_tensor_by_name(request, "B")
                total = a if b is None else a + b.as_numpy()
                outputs = [pb_utils.Tensor("SUM", total), pb_utils.Tensor("COUNT", total * 0 + len(requests))]
                responses.append(pb_utils.InferenceResponse(outputs, parameters={"id": request.request_id(), "n": 1}))
            return responses
    """
    config = msgspec.structs.replace(
        CONFIG,
        input=(ModelInput(name="A"), ModelInput(name="B", optional=True)),
        output=(ModelOutput(name="SUM"), ModelOutput(name="COUNT")),
    )

    def numbered(index: int) -> InferenceRequest:
        """Requests of 1 to 4 rows, every other one without its optional input."""
        array = np.full((index % 4 + 1, 2), index, dtype=np.int32)
        names = ("A", "B") if index % 2 else ("A",)
        return InferenceRequest("m", [Tensor.from_numpy(name, array) for name in names], id=f"id{index}")

    async with running(backend(tmp_path, model, config=config)) as instance:
        result = await instance.execute([numbered(index) for index in range(64)])
    for index, response in enumerate(result.responses):
        assert isinstance(response, InferenceResponse)
        assert (response.model_name, response.model_version, response.id) == ("m", 1, f"id{index}")
        assert response.parameters == {"id": f"id{index}", "n": 1}
        expected = np.full((index % 4 + 1, 2), index * (2 if index % 2 else 1), dtype=np.int32)
        np.testing.assert_array_equal(output(response), expected)
        assert (output(response, 1) == 64).all()
    timing = result.timing
    assert min(timing.compute_input_ns, timing.compute_infer_ns, timing.compute_output_ns) > 0


async def test_what_a_request_is_besides_its_tensors_reaches_the_model(backend: MakeBackend, tmp_path: Path) -> None:
    model = executing("""
        r, = requests
        about = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(),
                 sorted(r.requested_output_names()), r.is_cancelled(), r.inputs()[0].shape(), r.inputs()[0].is_cpu()]
        return [answer(np.array([repr(about)], dtype=object))]
    """)
    sent = request((1.0,), id="é", outputs=("OUT",), parameters={"a": "x", "b": 2, "c": True, "d": 0.5})
    sent.sequence_id, sent.sequence_start, sent.sequence_end = "s", True, True
    sent.timeout_microseconds = 77
    config = msgspec.structs.replace(CONFIG, output=(*CONFIG.output, ModelOutput(name="OTHER")))
    async with running(backend(tmp_path, model, config=config)) as instance:
        [full] = await infer(instance, sent)
        [plain] = await infer(instance, request((1.0,)))
    expected = ["é", "s", 3, 77, '{"a": "x", "b": 2, "c": true, "d": 0.5}', ["OUT"], False, [1, 1], True]
    assert output(full)[0].decode() == repr(expected)
    assert output(plain)[0].decode() == repr(["", 0, 0, 0, "{}", ["OTHER", "OUT"], False, [1, 1], True])


async def test_outputs_that_nobody_asked_for_are_dropped(backend: MakeBackend, tmp_path: Path) -> None:
    model = executing("""
        return [pb_utils.InferenceResponse([pb_utils.Tensor(name, np.zeros(1, np.int8)) for name in "ABCD"])
                for _ in requests]
    """)
    config = msgspec.structs.replace(CONFIG, output=tuple(ModelOutput(name=name) for name in "ABC"))
    async with running(backend(tmp_path, model, config=config)) as instance:
        responses = await infer(instance, request(outputs=("C", "A")), request(), request(outputs=("X",)))
    names = [[tensor.name for tensor in r.outputs] for r in responses if isinstance(r, InferenceResponse)]
    assert names == [["A", "C"], ["A", "B", "C"], []]


@pytest.mark.parametrize("settings", [{}, INLINE, {"shm-limit-byte-size": str(12 << 20)}])
async def test_tensors_of_growing_size_cross(backend: MakeBackend, tmp_path: Path, settings: dict[str, str]) -> None:
    """In segments that grow, without any, and in batches of which only one request at a time fits."""
    async with running(backend(tmp_path, executing(IDENTITY), settings=settings)) as instance:
        for size in (10, 1 << 13, 1 << 18, 1 << 21, 5, 1 << 21, 3 << 20):
            array = np.random.default_rng(size).random((1, size), dtype=np.float32)
            responses = await infer(instance, request(array), request(array + 1))
            np.testing.assert_array_equal(output(responses[0]), array)
            np.testing.assert_array_equal(output(responses[1]), array + 1)


async def test_an_answer_stays_as_it_is_when_the_next_batch_runs(backend: MakeBackend, tmp_path: Path) -> None:
    """Outputs are never views of memory that is written to again."""
    async with running(backend(tmp_path, executing(IDENTITY))) as instance:
        for size in (4, 1 << 16, 1 << 19):
            kept = [(await infer(instance, request(np.full((1, size), i, np.float32))))[0] for i in range(6)]
            for index, response in enumerate(kept):
                assert (output(response) == index).all()


RETURNED = {
    "whole": "arrays",
    "of another request": "arrays[::-1]",
    "cut": "[array[:, :20000] for array in arrays]",
    "not in one piece": "[array[:, ::2] for array in arrays]",
    "written to": "[np.negative(array, out=array) for array in arrays]",
    "computed beside": "[arrays[0], -arrays[1]]",
    "small": "[arrays[0], arrays[1][:, :9]]",
    "twice the same": "[arrays[0], arrays[0][:, 10:]]",
}


@pytest.mark.parametrize("kept", ["None", "arrays[1][:, 5:]"])
@pytest.mark.parametrize("returned", RETURNED.values(), ids=RETURNED)
async def test_outputs_that_are_inputs_come_back(
    backend: MakeBackend, tmp_path: Path, returned: str, kept: str
) -> None:
    """They are not copied by the worker, unless the model may write to them later."""
    model = executing(f"""
        arrays = [r.inputs()[0].as_numpy() for r in requests]
        self.kept = {kept}
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in {returned}]
    """)
    rng = np.random.default_rng(5)
    async with running(backend(tmp_path, model)) as instance:
        for _ in range(4):  # the first answer comes in the frame
            sent = [rng.random((1, 40000), dtype=np.float32) for _ in range(2)]
            found = await infer(instance, *map(request, sent))
            arrays = [array.copy() for array in sent]
            for response, array in zip(found, eval(returned, {"arrays": arrays, "np": np}), strict=True):
                np.testing.assert_array_equal(output(response), array)


async def test_large_texts_that_are_inputs_come_back(backend: MakeBackend, tmp_path: Path) -> None:
    config = msgspec.structs.replace(
        CONFIG,
        input=(ModelInput(name="IN", data_type=DataType.BYTES, dims=(-1,)),),
        output=(ModelOutput(name="IN", data_type=DataType.BYTES, dims=(-1,)),),
    )
    model = executing("return [pb_utils.InferenceResponse(r.inputs()) for r in requests]")
    async with running(backend(tmp_path, model, config=config)) as instance:
        for turn in range(3):
            array = np.array([[b"%d" % turn * 100_000, b"x"]], dtype=object)
            [response] = await infer(instance, request(array))
            assert output(response).tolist() == array.tolist()


async def test_a_model_may_keep_its_inputs(backend: MakeBackend, tmp_path: Path) -> None:
    """As tensors, as arrays, as views of arrays, and when `execute` fails: later batches do not write over them."""
    model = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def __init__(self):
            self.kept = []

        def execute(self, requests):
            r, = requests
            tensor = r.inputs()[0]
            turn = len(self.kept)
            self.kept.append([r, tensor, tensor.as_numpy(), tensor.as_numpy()[0, 1:]][turn % 4])
            if turn % 5 == 4:
                raise ValueError("kept all the same")
            seen = [float(self.first(item)) for item in self.kept]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(seen, np.float32))])]

        def first(self, item):
            if isinstance(item, pb_utils.InferenceRequest):
                item = item.inputs()[0]
            if isinstance(item, pb_utils.Tensor):
                item = item.as_numpy()
            return item.reshape(-1)[0]
    """
    async with running(backend(tmp_path, model)) as instance:
        for turn in range(12):
            array = np.full((1, 1 << 15), turn, np.float32)
            if turn % 5 == 4:
                with pytest.raises(Internal, match="kept all the same"):
                    await infer(instance, request(array))
            else:
                [response] = await infer(instance, request(array))
                assert output(response).tolist() == list(range(turn + 1))


async def test_inputs_may_be_written_to(backend: MakeBackend, tmp_path: Path) -> None:
    model = executing("""
        for r in requests:
            r.inputs()[0].as_numpy()[...] += 1
        return [answer(r.inputs()[0].as_numpy()) for r in requests]
    """)
    async with running(backend(tmp_path, model)) as instance:
        for size in (4, 1 << 16):
            sent = request(np.zeros((1, size), np.float32))
            assert (output((await infer(instance, sent))[0]) == 1).all()
            assert (sent.inputs[0].as_numpy() == 0).all()


async def test_an_error_of_one_request_leaves_the_others_alone(backend: MakeBackend, tmp_path: Path) -> None:
    """Every code becomes the error of the same kind, with its message unchanged."""
    model = executing("""
        codes = [None, "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
                 "ALREADY_EXISTS", "CANCELLED"]
        return [
            answer(np.ones(1, np.float32)) if code is None else
            pb_utils.InferenceResponse(error=pb_utils.TritonError("no: " + code, getattr(pb_utils.TritonError, code)))
            for code in codes
        ]
    """)
    async with running(backend(tmp_path, model)) as instance:
        first, *errors = await infer(instance, *(request() for _ in range(9)))
    assert output(first).tolist() == [1.0]
    for error in errors:
        assert isinstance(error, ServerError)
        assert type(error) is KINDS[error.kind]
        assert error.message == f"no: {error.kind}"
    assert len({type(error) for error in errors}) == 8


async def test_a_raise_fails_the_batch_and_not_the_instance(
    backend: MakeBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients get the exception and its place, the log gets the whole traceback."""
    model = executing("""
        if requests[0].request_id() == "bad":
            return [helper(r) for r in requests]
        return [answer(r.inputs()[0].as_numpy()) for r in requests]
    """)
    model += """
def helper(request):
    raise ValueError("cannot do \\ud800 this")
"""
    async with running(backend(tmp_path, model)) as instance:
        with pytest.raises(Internal) as failure:
            await infer(instance, request(id="bad"), request())
        [response] = await infer(instance, request((5.0,)))
    message = failure.value.message
    path = tmp_path / "1" / "model.py"
    assert message.startswith(f"{PREFIX}ValueError: cannot do ? this\n\nAt:\n  {path}(")
    assert [line.rpartition(" ")[2] for line in message.splitlines()[3:5]] == ["helper", "<listcomp>"]
    assert "trioton_worker" not in message
    assert output(response).tolist() == [[5.0]]
    assert any("Traceback" in record.message and "ValueError" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 5", "Expected a list in the execute return, found type '<class 'int'>'."),
        (
            "return [answer(np.ones(1, np.int8))]",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:1\n",
        ),
        (
            "return ['x', 'y']",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'.",
        ),
        ("return [answer(np.ones(1, np.complex64))] * 2", "TritonModelException: NumPy dtype is not supported."),
        (
            "return [requests[0].get_response_sender()] * 2",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class '",
        ),
    ],
)
async def test_a_wrong_result_fails_the_batch(backend: MakeBackend, tmp_path: Path, body: str, message: str) -> None:
    async with running(backend(tmp_path, executing(body))) as instance:
        for _ in range(2):
            with pytest.raises(Internal) as failure:
                await infer(instance, request(), request())
            assert failure.value.message.startswith(PREFIX + message)


async def test_a_model_without_execute_says_so(backend: MakeBackend, tmp_path: Path) -> None:
    async with running(backend(tmp_path, "class TritonPythonModel: pass")) as instance:
        with pytest.raises(Internal) as failure:
            await infer(instance, request())
    path = tmp_path / "1" / "model.py"
    assert failure.value.message == f"{PREFIX}Python model {path} does not implement `execute` method."


async def test_execute_may_be_a_coroutine(tmp_path: Path) -> None:
    """All batches run on one event loop, whose tasks go on between them."""
    model = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        queue = None

        async def execute(self, requests):
            if self.queue is None:
                self.queue = asyncio.Queue()
                self.task = asyncio.ensure_future(self.feed())
            await asyncio.sleep(0)
            numbers = [await self.queue.get() for _ in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([n]))]) for n in numbers]

        async def feed(self):
            for number in range(100):
                await self.queue.put(number)
    """
    async with running(models.backend(tmp_path, model)) as instance:
        answers = [output(r).item() for _ in range(3) for r in await infer(instance, request(), request())]
    assert answers == [0, 1, 2, 3, 4, 5]


async def test_the_logger_and_print_reach_the_servers_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    model = executing("""
        pb_utils.Logger.log("one")
        pb_utils.Logger.log_warn("two")
        pb_utils.Logger.log_error("three")
        pb_utils.Logger.log_verbose("four")
        print("to stdout")
        print("to stderr", file=sys.stderr)
        os.system("echo from a child")
        return [answer(r.inputs()[0].as_numpy()) for r in requests]
    """)
    async with running(models.backend(tmp_path, model)) as instance:
        await infer(instance, request())
    records = [record for record in caplog.records if record.name == "trioton.model.m"]
    found = {record.getMessage(): record for record in records}
    levels = {text: found[f"m_0: {text}"].levelname for text in ("one", "two", "three", "four")}
    assert levels == {"one": "INFO", "two": "WARNING", "three": "ERROR", "four": "DEBUG"}
    assert (found["m_0: one"].pathname, found["m_0: one"].lineno) == (str(tmp_path / "1" / "model.py"), 13)
    assert {"m_0: to stdout", "m_0: to stderr", "m_0: from a child"} <= found.keys()


async def test_a_bad_bytes_tensor_is_the_clients_mistake_or_the_batchs_failure(
    backend: MakeBackend, tmp_path: Path
) -> None:
    """What the edges let through of a broken BYTES tensor fails in `as_numpy`, and nowhere else."""
    broken = Tensor("IN", DataType.BYTES, (1,), b"\x09\x00\x00\x00abc")
    async with running(backend(tmp_path, executing(IDENTITY))) as instance:
        with pytest.raises(Internal, match="Invalid bytes tensor data: string extends beyond buffer"):
            await infer(instance, InferenceRequest("m", [broken]))
        assert output((await infer(instance, request((1.0,))))[0]).tolist() == [[1.0]]


async def test_parameters_that_do_not_fit_are_the_models_error(backend: MakeBackend, tmp_path: Path) -> None:
    model = executing("return [pb_utils.InferenceResponse([], parameters={'big': 1 << 70})]")
    async with running(backend(tmp_path, model)) as instance:
        with pytest.raises(Internal, match="does not fit 64 bits"):
            await infer(instance, request())
