"""States that an instance holds where it computes: on real sessions, on the CPU, where the same code runs as on a GPU.

The models run behind the real sequence batcher, so that states go the way that they go in a server.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import trio
from numpy.typing import NDArray
from onnx import TensorProto, helper

from actors.model.model import Model
from backends.interface import HeldTensor
from backends.onnxruntime import OnnxRuntimeBackend, held_states
from backends.onnxruntime.device_memory import DeviceMemory
from backends.onnxruntime.held_states import Held, keeps_its_place
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.initial_state import read_initial_states
from repository.model_config import InstanceKind
from tests.backends.helpers import loaded, source_of, spec_of
from tests.backends.onnxruntime.onnx_models import Shape, model, node, save, tensor

ONE = "use_same_buffer_for_input_output: true"
GROWABLE = f"{ONE} use_growable_memory: true"


def held(state: Tensor) -> Held:
    assert isinstance(state, HeldTensor)
    assert isinstance(state.held, Held)
    return state.held


def config(
    state: str, *, dims: str = "[ 2 ]", rows: int = 4, oldest: bool = False, outputs: str = "", type: str = "TYPE_FP32"
) -> str:
    strategy = "oldest { max_candidate_sequences: 4 }" if oldest else "direct {}"
    return f"""
backend: "onnxruntime"
max_batch_size: {rows}
input [ {{ name: "X" data_type: {type} dims: {dims} }} ]
output [ {{ name: "Y" data_type: {type} dims: {dims} }} {outputs} ]
sequence_batching {{ max_sequence_idle_microseconds: 60000000 {strategy} {state} }}
"""


def sum_state(options: str = "", type: str = "TYPE_FP32") -> str:
    return f'state {{ input_name: "S" output_name: "NEXT" data_type: {type} dims: [ 2 ] {options} }}'


def log_state(options: str = "", dims: str = "[ -1, 2 ]", initial: str = "[ 0, 2 ]") -> str:
    zero = f'initial_state {{ name: "none" data_type: TYPE_FP32 dims: {initial} zero_data: true }}'
    return f'state {{ input_name: "LOG" output_name: "LONGER" data_type: TYPE_FP32 dims: {dims} {options} {zero} }}'


def summing(datatype: DataType = DataType.FP32) -> Any:
    """NEXT = S + X; Y is the same."""
    shape: Shape = ["rows", 2]
    return model(
        [node("Add", ["S", "X"], ["NEXT"]), node("Identity", ["NEXT"], ["Y"])],
        [tensor("X", shape, datatype), tensor("S", shape, datatype)],
        [tensor("NEXT", shape, datatype), tensor("Y", shape, datatype)],
    )


def logging(*, longer: str | None = "past + 1") -> Any:
    """LONGER = LOG with X behind it, one row more; Y = the sum of all rows."""
    nodes = [
        node("Unsqueeze", ["X", "one"], ["row"]),
        node("Concat", ["LOG", "row"], ["LONGER"], axis=1),
        node("ReduceSum", ["LONGER", "one"], ["Y"], keepdims=0),
    ]
    return model(
        nodes,
        [tensor("X", ["rows", 2]), tensor("LOG", ["rows", "past", 2])],
        [tensor("LONGER", ["rows", longer, 2]), tensor("Y", ["rows", 2])],
        [helper.make_tensor("one", TensorProto.INT64, [1], [1])],
    )


def logging_inside() -> Any:
    """As `logging`, for a LOG of two heads: [rows, 2, past], which grows in its last dimension."""
    nodes = [
        node("Unsqueeze", ["X", "two"], ["column"]),
        node("Concat", ["LOG", "column"], ["LONGER"], axis=2),
        node("ReduceSum", ["LONGER", "two"], ["Y"], keepdims=0),
    ]
    return model(
        nodes,
        [tensor("X", ["rows", 2]), tensor("LOG", ["rows", 2, "past"])],
        [tensor("LONGER", ["rows", 2, "past + 1"]), tensor("Y", ["rows", 2])],
        [helper.make_tensor("two", TensorProto.INT64, [1], [2])],
    )


@dataclass
class Watched:
    """A model behind its sequence batcher; `batches` are the requests and the states of each batch that has run."""

    model: Model
    batches: list[tuple[Sequence[InferenceRequest], list[list[Tensor]]]] = field(default_factory=list)

    async def send(
        self, value: Sequence[float], sequence: int = 1, *, start: bool = False, end: bool = False, outputs: Any = ()
    ) -> InferenceResponse:
        datatype = self.model.config.input[0].data_type
        array = np.array([value], dtype=datatype.dtype)
        request = InferenceRequest(
            "m",
            [Tensor.from_numpy("X", array if self.model.config.is_batching else array[0])],
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
            requested_outputs=outputs,
        )
        return await self.model.infer(request)

    async def total(self, value: float, sequence: int = 1, *, start: bool = False, end: bool = False) -> float:
        """The first number of Y."""
        response = await self.send([value, -value], sequence, start=start, end=end)
        (output,) = response.outputs
        assert output.name == "Y"
        return float(output.as_numpy().reshape(-1)[0])

    @property
    def addresses(self) -> list[int]:
        """Where the first state of the first request of each batch lies afterwards."""
        return [held(states[0][0]).piece.address for _, states in self.batches]


@asynccontextmanager
async def serving(
    made: Any, text: str, directory: Path, *, kind: InstanceKind = InstanceKind.CPU
) -> AsyncIterator[Watched]:
    source = source_of(text, save(made, directory))
    watched: Watched

    class Observed(OnnxRuntimeBackend):
        def run_holding(
            self, inputs: dict[str, NDArray[Any]], requests: Sequence[InferenceRequest]
        ) -> tuple[dict[str, NDArray[Any]], Sequence[Sequence[Tensor]]]:
            outputs, states = super().run_holding(inputs, requests)
            watched.batches.append((list(requests), [list(row) for row in states]))
            return outputs, states

    initial = read_initial_states(directory, source.config)
    watched = Watched(Model(source.config, 1, Observed, [spec_of(source, kind=kind)], initial_states=initial))
    async with trio.open_nursery() as nursery:
        await nursery.start(watched.model.run)
        yield watched
        watched.model.drain()


@pytest.mark.parametrize("options", ["", ONE, GROWABLE], ids=["two buffers", "one buffer", "growable"])
@pytest.mark.parametrize("oldest", [False, True], ids=["direct", "oldest"])
async def test_sums_of_many_sequences_are_the_same_wherever_the_state_lies(
    options: str, oldest: bool, tmp_path: Path
) -> None:
    rng = random.Random(7)
    expected: dict[int, float] = {}

    async def live(watched: Watched, sequence: int) -> None:
        total = 0.0
        for step in range(12):
            value = float(rng.randint(1, 9))
            start = step in (0, 7)  # begins anew in the middle
            total = value if start else total + value
            assert await watched.total(value, sequence, start=start, end=step == 11) == total
            expected[sequence] = total

    async with (
        serving(summing(), config(sum_state(options), oldest=oldest), tmp_path) as watched,
        trio.open_nursery() as nursery,
    ):
        for sequence in range(1, 8):
            nursery.start_soon(live, watched, sequence)
    assert len(expected) == 7
    assert bool(watched.batches) is bool(options)
    if options:
        assert max(len(requests) for requests, _ in watched.batches) > 1


async def test_with_one_buffer_a_state_stays_where_it_is(tmp_path: Path) -> None:
    async with serving(summing(), config(sum_state(ONE)), tmp_path) as watched:
        assert [await watched.total(value, start=value == 1) for value in (1, 2, 3, 4)] == [1, 3, 6, 10]
        assert len(set(watched.addresses)) == 1


async def test_a_state_that_grows_stays_where_it_is_until_its_memory_is_full(tmp_path: Path) -> None:
    text = config(log_state(GROWABLE), dims="[ 2 ]")
    async with serving(logging(), text, tmp_path) as watched:
        totals = [await watched.total(1, start=number == 0) for number in range(700)]
    assert totals == list(range(1, 701))
    sizes = [held(states[0][0]).piece.byte_size for _, states in watched.batches]
    assert len(set(sizes)) == 2  # at first 4096 bytes, and twice as much as is needed when they are full
    assert len(set(watched.addresses)) == 2
    assert watched.batches[-1][1][0][0].shape == (1, 700, 2)


async def test_a_state_that_grows_between_its_rows_changes_places(tmp_path: Path) -> None:
    text = config(log_state(GROWABLE, "[ 2, -1 ]", "[ 2, 0 ]"))
    async with serving(logging_inside(), text, tmp_path) as watched:
        totals = [await watched.total(number, start=number == 1) for number in range(1, 41)]
    assert totals == [sum(range(1, number + 1)) for number in range(1, 41)]
    assert len(set(watched.addresses)) == 2
    assert all(one != other for one, other in zip(watched.addresses, watched.addresses[1:], strict=False))


@pytest.mark.parametrize("options", [ONE, GROWABLE])
async def test_a_state_whose_size_nobody_knows_is_found_memory_by_the_library(options: str, tmp_path: Path) -> None:
    async with serving(logging(longer=None), config(log_state(options)), tmp_path) as watched:
        assert [await watched.total(1, start=number == 0) for number in range(20)] == list(range(1, 21))
    states = [held(states[0][0]) for _, states in watched.batches]
    assert [(state.shape, state.piece.byte_size) for state in states] == [((1, n, 2), 8 * n) for n in range(1, 21)]


@pytest.mark.parametrize("options", [ONE, GROWABLE])
async def test_states_of_a_batch_grow_together(options: str, tmp_path: Path) -> None:
    text = config(log_state(options), oldest=True)
    async with serving(logging(), text, tmp_path) as watched, trio.open_nursery() as nursery:

        async def live(sequence: int) -> None:
            for number in range(30):
                assert await watched.total(sequence, sequence, start=number == 0) == sequence * (number + 1)

        for sequence in range(1, 5):
            nursery.start_soon(live, sequence)
    assert max(len(requests) for requests, _ in watched.batches) > 1


async def test_a_model_without_a_batch_dimension(tmp_path: Path) -> None:
    made = model(
        [node("Concat", ["LOG", "X"], ["LONGER"], axis=0), node("Identity", ["LONGER"], ["Y"])],
        [tensor("X", ["n"]), tensor("LOG", ["past"])],
        [tensor("LONGER", ["past + n"]), tensor("Y", ["past + n"])],
    )
    text = config(log_state(GROWABLE, "[ -1 ]", "[ 1 ]"), dims="[ -1 ]", rows=0)
    async with serving(made, text, tmp_path) as watched:
        logs = [
            (await watched.send(value, start=index == 0)).outputs[0].as_numpy().tolist()
            for index, value in enumerate(([1.0], [2.0, 3.0], [], [4.0]))
        ]
    assert logs == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert len(set(watched.addresses)) == 1


async def test_a_client_may_have_the_state_as_well(tmp_path: Path) -> None:
    text = config(sum_state(ONE), outputs=', { name: "NEXT" data_type: TYPE_FP32 dims: [ 2 ] }')
    async with serving(summing(), text, tmp_path) as watched:
        first = await watched.send([1, 2], start=True)
        second = await watched.send([1, 2], outputs=("NEXT",))
        third = await watched.send([1, 2], outputs=("Y",))
    assert {output.name: output.as_numpy().tolist() for output in first.outputs} == {"Y": [[1, 2]], "NEXT": [[1, 2]]}
    assert {output.name: output.as_numpy().tolist() for output in second.outputs} == {"NEXT": [[2, 4]]}
    assert [output.name for output in third.outputs] == ["Y"]


async def test_two_states_one_with_two_buffers(tmp_path: Path) -> None:
    made = model(
        [
            node("Add", ["S", "X"], ["NEXT"]),
            node("Add", ["T", "one"], ["NEXT_T"]),
            node("Add", ["NEXT", "NEXT_T"], ["Y"]),
        ],
        [tensor(name, ["rows", 2]) for name in ("X", "S", "T")],
        [tensor(name, ["rows", 2]) for name in ("NEXT", "NEXT_T", "Y")],
        [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])],
    )
    other = 'state { input_name: "T" output_name: "NEXT_T" data_type: TYPE_FP32 dims: [ 2 ] }'
    async with serving(made, config(sum_state(ONE) + other), tmp_path) as watched:
        assert [await watched.total(10, start=number == 1) for number in (1, 2, 3)] == [11, 22, 33]
    assert [len(states[0]) for _, states in watched.batches] == [2, 2, 2]


async def test_a_state_that_has_a_value_in_the_file(tmp_path: Path) -> None:
    """The input is an initialiser of the file that may be overridden, and always is."""
    start = helper.make_tensor("S", TensorProto.FLOAT, [1, 2], [100.0, 100.0])
    made = model(
        [node("Add", ["S", "X"], ["NEXT"]), node("Identity", ["NEXT"], ["Y"])],
        [tensor("X", ["rows", 2]), tensor("S", [1, 2])],
        [tensor("NEXT", ["rows", 2]), tensor("Y", ["rows", 2])],
        [start],
    )
    text = config(sum_state(ONE).replace("[ 2 ]", "[ 1, 2 ]"), rows=0, dims="[ -1, 2 ]")
    source = source_of(text, save(made, tmp_path))
    async with loaded(OnnxRuntimeBackend, spec_of(source)) as backend:
        assert isinstance(backend, OnnxRuntimeBackend)
        assert backend.held_inputs == {"S"}


async def test_bf16_states(tmp_path: Path) -> None:
    made = model(
        [
            node("Cast", ["S"], ["s"], to=TensorProto.FLOAT),
            node("Cast", ["X"], ["x"], to=TensorProto.FLOAT),
            node("Add", ["s", "x"], ["sum"]),
            node("Cast", ["sum"], ["NEXT"], to=TensorProto.BFLOAT16),
            node("Cast", ["sum"], ["Y"], to=TensorProto.BFLOAT16),
        ],
        [tensor(name, ["rows", 2], DataType.BF16) for name in ("X", "S")],
        [tensor(name, ["rows", 2], DataType.BF16) for name in ("NEXT", "Y")],
    )
    text = config(sum_state(ONE, "TYPE_BF16"), type="TYPE_BF16")
    async with serving(made, text, tmp_path) as watched:
        assert [await watched.total(0.5, start=number == 0) for number in range(3)] == [0.5, 1.0, 1.5]
    assert held(watched.batches[0][1][0][0]).value.data_type() == "tensor(bfloat16)"
    assert ml_dtypes.bfloat16(1.5) == 1.5


def failing() -> Any:
    """NEXT = S + X; Y = the numbers of a table that X names, so that an X beyond it fails."""
    nodes = [
        node("Cast", ["X"], ["index"], to=TensorProto.INT64),
        node("Gather", ["table", "index"], ["Y"]),
        node("Add", ["S", "X"], ["NEXT"]),
    ]
    shape: Shape = ["rows", 2]
    table = helper.make_tensor("table", TensorProto.FLOAT, [3], [10.0, 11.0, 12.0])
    return model(nodes, [tensor("X", shape), tensor("S", shape)], [tensor("Y", shape), tensor("NEXT", shape)], [table])


@pytest.mark.parametrize("options", ["", ONE], ids=["two buffers", "one buffer"])
async def test_a_request_that_fails_is_the_clients_mistake_and_its_sequence_goes_on(
    options: str, tmp_path: Path
) -> None:
    other = f'state {{ input_name: "T" output_name: "NEXT_T" data_type: TYPE_FP32 dims: [ 2 ] {ONE} }}'
    made = failing()
    made.graph.input.append(tensor("T", ["rows", 2]))
    made.graph.output.append(tensor("NEXT_T", ["rows", 2]))
    made.graph.node.append(node("Identity", ["T"], ["NEXT_T"]))
    async with serving(made, config(sum_state(options) + other), tmp_path) as watched:
        await watched.send([1, 0], start=True)
        with pytest.raises(InvalidArgument, match=r"onnx runtime error 2: .*out of"):
            await watched.send([5, 0])
        response = await watched.send([0, 1])
        assert response.outputs[0].as_numpy().tolist() == [[10, 11]]
    (state,) = [tensor for tensor in watched.batches[-1][1][0] if tensor.name == "NEXT"]
    if not options:  # with two buffers a step that fails has changed nothing
        assert isinstance(state, HeldTensor)
        assert state.held.value.numpy().tolist() == [[1, 1]]


async def test_warm_up_leaves_no_state(tmp_path: Path) -> None:
    text = (
        config(sum_state(ONE))
        + """
model_warmup [ { name: "zeros" batch_size: 2 count: 2
  inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }
  inputs { key: "S" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } } ]
"""
    )
    directory = save(summing(), tmp_path)
    source = source_of(text, directory)
    async with loaded(OnnxRuntimeBackend, spec_of(source)) as backend:
        zeros = np.zeros((1, 2), np.float32)
        request = InferenceRequest("m", [Tensor.from_numpy("X", zeros), Tensor.from_numpy("S", zeros)])
        result = await backend.execute([request, request])
    assert [
        [output.name for output in response.outputs]
        for response in result.responses
        if isinstance(response, InferenceResponse)
    ] == [["Y"], ["Y"]]


async def test_a_request_without_its_state_is_told_what_is_missing(tmp_path: Path) -> None:
    source = source_of(config(sum_state(ONE)), save(summing(), tmp_path))
    async with loaded(OnnxRuntimeBackend, spec_of(source)) as backend:
        zeros = Tensor.from_numpy("X", np.zeros((1, 2), np.float32))
        result = await backend.execute([InferenceRequest("m", [zeros])])
    (error,) = result.responses
    assert isinstance(error, ServerError)
    assert "S" in str(error)


def compressing(axis: int) -> Any:
    """NEXT = S without the rows or columns where X is not positive; Y = X."""
    nodes = [
        node("Gather", ["X", "zero"], ["one"], axis=1 - axis),
        node("Greater", ["one", "nothing"], ["chosen"]),
        node("Compress", ["S", "chosen"], ["NEXT"], axis=axis),
        node("Identity", ["X"], ["Y"]),
    ]
    zeros = [
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("nothing", TensorProto.FLOAT, [], [0.0]),
    ]
    outputs = [tensor("NEXT", ["some", "many"]), tensor("Y", ["rows", 2])]
    return model(nodes, [tensor("X", ["rows", 2]), tensor("S", ["rows", 2])], outputs, zeros)


async def test_a_state_of_another_shape_than_configured_is_no_mistake_of_the_client(tmp_path: Path) -> None:
    async with serving(compressing(axis=1), config(sum_state(ONE)), tmp_path) as watched:
        await watched.send([1, 1], start=True)
        with pytest.raises(Internal, match=r"'NEXT' .* has shape \{1,2\} but the computed output shape .* \{1,1\}"):
            await watched.send([1, -1])


async def test_a_batch_whose_states_are_too_few(tmp_path: Path) -> None:
    source = source_of(config(sum_state(ONE)), save(compressing(axis=0), tmp_path))
    async with loaded(OnnxRuntimeBackend, spec_of(source)) as backend:
        state = Tensor.from_numpy("S", np.zeros((1, 2), np.float32))
        requests = [
            InferenceRequest("m", [Tensor.from_numpy("X", np.array([row], np.float32)), state], sequence_id=1)
            for row in ([1, 1], [-1, -1])
        ]
        result = await backend.execute(requests)
    first, second = result.responses
    assert isinstance(first, InferenceResponse)
    assert isinstance(second, Internal)


async def test_states_of_strings_go_through_the_server_and_cannot_grow(tmp_path: Path) -> None:
    made = model(
        [node("Identity", ["S"], ["NEXT"]), node("Identity", ["X"], ["Y"])],
        [tensor("X", ["rows", 2]), tensor("S", ["rows", 2], DataType.BYTES)],
        [tensor("NEXT", ["rows", 2], DataType.BYTES), tensor("Y", ["rows", 2])],
    )
    directory = save(made, tmp_path)
    async with loaded(
        OnnxRuntimeBackend, spec_of(source_of(config(sum_state(ONE, "TYPE_STRING")), directory))
    ) as backend:
        assert isinstance(backend, OnnxRuntimeBackend)
        assert not backend.held_inputs
    growable = source_of(config(sum_state(GROWABLE, "TYPE_STRING")), directory)
    with pytest.raises(
        InvalidArgument, match="model 'm': 'use_growable_memory' of state input 'S' needs a model whose"
    ):
        async with loaded(OnnxRuntimeBackend, spec_of(growable)):
            pass


@pytest.mark.parametrize(
    ("present", "following", "keeps"),
    [
        ((1, 3, 4), (1, 3, 4), True),
        ((1, 3, 4), (1, 4, 4), True),
        ((1, 3, 4), (1, 2, 4), True),
        ((1, 3, 4), (1, 3, 5), False),
        ((2, 3, 4), (2, 4, 4), False),
        ((3,), (4,), True),
        ((1, 1, 4), (1, 1, 5), True),
        ((1, 3, 4), (1, 4, 5), False),
    ],
)
def test_keeps_its_place(present: tuple[int, ...], following: tuple[int, ...], keeps: bool) -> None:
    assert keeps_its_place(present, following) is keeps


class Elsewhere(DeviceMemory):
    """Host memory that counts as that of another device, so that the library has to copy it."""

    def __init__(self, session: Any, **where: Any) -> None:
        super().__init__(session, **where)
        self.is_host = False


@pytest.mark.parametrize("options", [ONE, GROWABLE])
@pytest.mark.parametrize("oldest", [False, True], ids=["direct", "oldest"])
async def test_on_another_device_only_the_library_copies(
    options: str, oldest: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a GPU needs but the GPU: here the library's function for copies between devices is stood in for, which
    refuses copies within the host."""
    copied: list[int] = []

    def copy_tensors(sources: Sequence[Any], targets: Sequence[Any]) -> None:
        for source, target in zip(sources, targets, strict=True):
            assert source.shape() == target.shape()
            assert source.data_type() == target.data_type() == "tensor(uint8)"
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.shape()[0])
            copied.append(source.shape()[0])

    monkeypatch.setattr(held_states, "DeviceMemory", Elsewhere)
    monkeypatch.setattr(onnxruntime, "copy_tensors", copy_tensors)
    text = config(
        log_state(options), oldest=oldest, outputs=', { name: "LONGER" data_type: TYPE_FP32 dims: [ -1, 2 ] }'
    )
    async with serving(logging(), text, tmp_path) as watched, trio.open_nursery() as nursery:

        async def live(sequence: int) -> None:
            for step in range(12):
                response = await watched.send([sequence, 0], sequence, start=step in (0, 5), end=step == 11)
                found = {output.name: output.as_numpy()[0] for output in response.outputs}
                length = step + 1 if step < 5 else step - 4
                assert found["Y"].tolist() == [sequence * length, 0]
                assert found["LONGER"].tolist() == [[sequence, 0]] * length

        for sequence in range(1, 7):
            nursery.start_soon(live, sequence)
    assert max(len(requests) for requests, _ in watched.batches) > 1
    assert copied


@pytest.mark.gpu
@pytest.mark.skipif("CUDAExecutionProvider" not in onnxruntime.get_available_providers(), reason="needs a GPU")
async def test_on_a_gpu_states_stay_there(tmp_path: Path) -> None:
    for number, options in enumerate(("", ONE, GROWABLE)):
        async with (
            serving(
                logging(), config(log_state(options), oldest=True), tmp_path / str(number), kind=InstanceKind.GPU
            ) as watched,
            trio.open_nursery() as nursery,
        ):

            async def live(sequence: int, watched: Watched = watched) -> None:
                for step in range(30):
                    assert await watched.total(sequence, sequence, start=step == 0) == sequence * (step + 1)

            for sequence in range(1, 5):
                nursery.start_soon(live, sequence)
        assert {held(states[0][0]).value.device_name() for _, states in watched.batches} == {"cuda"}
