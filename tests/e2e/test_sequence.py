"""Sequences over real clients: control tensors, state that the server keeps, streams, iterative models."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Array, Client, status_of, tensors
from tests.e2e.repository import save
from tests.e2e.server_process import ServerProcess, eventually

# Far longer than a test: who waits for it has failed.
IDLE_MICROSECONDS = 120_000_000
PATIENCE = 30

CONTROLS = """
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
"""
ZEROS = """
  state [ { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 2 ]
            initial_state { name: "start" data_type: TYPE_INT32 dims: [ 2 ] zero_data: true } } ]
"""
HUNDRED = ZEROS.replace("zero_data: true", 'data_file: "hundred"')

GATED = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    '''Each request names a file: it is answered when that is there, and makes another one when it is seen.'''

    def execute(self, requests):
        responses = []
        for request in requests:
            gate = request.inputs()[0].as_numpy()[0].decode()
            open(gate + ".seen", "w").close()
            while not os.path.exists(gate):
                time.sleep(0.01)
            about = f"{request.correlation_id()} {request.flags()}"
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("ABOUT", np.array([about], np.object_))]))
        return responses
"""

GENERATOR = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    '''One word each round until COUNT words are there, or the file UNTIL, if it is not empty.'''

    def initialize(self, args):
        self.words = {}

    def execute(self, requests):
        time.sleep(0.002)
        return [self.step(request, len(requests)) for request in requests]

    def step(self, request, batch_size):
        id = request.correlation_id()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.words[id] = []
        words = self.words[id]
        words.append(batch_size)
        count, until = (tensor.as_numpy()[0, 0] for tensor in request.inputs())
        if not os.path.exists(until.decode()) if until else len(words) < count:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        del self.words[id]
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORDS", np.array([[len(words), max(words)]], np.int32))])
"""


RUNNING_SUM = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    '''Adds VALUE to the state.'''

    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()
            total = value + pb_utils.get_input_tensor_by_name(request, "SUM").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, total) for name in ("TOTAL", "NEXT")]))
        return responses
"""


def add_summing(model: Path, *, id_type: str, batching: str) -> None:
    """OUTPUT is the sum of a sequence's INPUT, and FLAGS are START, END and READY; ID is the correlation id."""
    element_types = {"STRING": TensorProto.STRING, "UINT64": TensorProto.UINT64}
    nodes = [
        helper.make_node("Add", ["INPUT", "SUM_IN"], ["SUM_OUT"]),
        helper.make_node("Identity", ["SUM_OUT"], ["OUTPUT"]),
        helper.make_node("Cast", ["START"], ["start"], to=TensorProto.INT32),
        helper.make_node("Cast", ["END"], ["end"], to=TensorProto.INT32),
        helper.make_node("Cast", ["READY"], ["ready"], to=TensorProto.INT32),
        helper.make_node("Concat", ["start", "end", "ready"], ["FLAGS"], axis=1),
        helper.make_node("Identity", ["CORRID"], ["ID"]),
    ]
    tensor = helper.make_tensor_value_info
    pair = partial(tensor, elem_type=TensorProto.INT32, shape=["batch", 2])
    inputs = [
        pair("INPUT"),
        pair("SUM_IN"),
        tensor("START", TensorProto.INT32, ["batch", 1]),
        tensor("END", TensorProto.FLOAT, ["batch", 1]),
        tensor("READY", TensorProto.BOOL, ["batch", 1]),
        tensor("CORRID", element_types[id_type], ["batch", 1]),
    ]
    outputs = [
        pair("OUTPUT"),
        pair("SUM_OUT"),
        tensor("FLAGS", TensorProto.INT32, ["batch", 3]),
        tensor("ID", element_types[id_type], ["batch", 1]),
    ]
    save(nodes, inputs, outputs, model / "1" / "model.onnx")
    corrid = f'{{ name: "CORRID" control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{id_type} }} ] }}'
    (model / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 4\ninstance_group [ { count: 2 kind: KIND_CPU } ]\n'
        f"sequence_batching {{ {batching}\n  control_input [ {CONTROLS} {corrid} ] }}\n"
    )


def add_growing(model: Path, *, idle: str) -> None:
    """OUTPUT is the sum of all INPUT of a sequence; the state is a list of them, in memory that grows."""
    nodes = [
        helper.make_node("Unsqueeze", ["INPUT", "one"], ["row"]),
        helper.make_node("Concat", ["LOG", "row"], ["LONGER"], axis=1),
        helper.make_node("ReduceSum", ["LONGER", "one"], ["OUTPUT"], keepdims=0),
    ]
    nodes.insert(0, helper.make_node("Constant", [], ["one"], value_ints=[1]))
    tensor = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    inputs = [tensor("INPUT", shape=["batch", 2]), tensor("LOG", shape=["batch", "past", 2])]
    outputs = [tensor("OUTPUT", shape=["batch", 2]), tensor("LONGER", shape=["batch", "past + 1", 2])]
    save(nodes, inputs, outputs, model / "1" / "model.onnx")
    (model / "config.pbtxt").write_text(
        f"""
backend: "onnxruntime"
max_batch_size: 4
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
sequence_batching {{
  {idle}
  state [ {{ input_name: "LOG" output_name: "LONGER" data_type: TYPE_FP32 dims: [ -1, 2 ]
            use_same_buffer_for_input_output: true use_growable_memory: true
            initial_state {{ name: "nothing" data_type: TYPE_FP32 dims: [ 0, 2 ] zero_data: true }} }} ]
}}
model_warmup [ {{ name: "zeros" batch_size: 2
  inputs {{ key: "INPUT" value {{ data_type: TYPE_FP32 dims: [ 2 ] zero_data: true }} }}
  inputs {{ key: "LOG" value {{ data_type: TYPE_FP32 dims: [ 3, 2 ] zero_data: true }} }} }} ]
"""
    )


def add_python(model: Path, code: str, config: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(code)
    (model / "config.pbtxt").write_text(f'backend: "python"\ninstance_group [ {{ kind: KIND_CPU }} ]\n{config}')


@pytest.fixture(scope="module")
def sequence_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("sequences")
    idle = f"max_sequence_idle_microseconds: {IDLE_MICROSECONDS}"
    add_summing(repository / "direct", id_type="UINT64", batching=f"{idle} {ZEROS}")
    add_summing(
        repository / "oldest",
        id_type="STRING",
        batching=f"oldest {{ max_candidate_sequences: 8 }} {idle} {HUNDRED}",
    )
    (repository / "oldest" / "initial_state").mkdir()
    (repository / "oldest" / "initial_state" / "hundred").write_bytes(np.array([100, 100], np.int32).tobytes())
    add_summing(
        repository / "hasty",
        id_type="UINT64",
        batching=f"max_sequence_idle_microseconds: 1 {ZEROS}",
    )
    add_growing(repository / "growing", idle=idle)
    add_python(
        repository / "running_sum",
        RUNNING_SUM,
        f"max_batch_size: 4\nsequence_batching {{ {idle}\n"
        'state [ { input_name: "SUM" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 1 ] '
        "use_same_buffer_for_input_output: true } ] }\n"
        'input [ { name: "VALUE" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "TOTAL" data_type: TYPE_FP32 dims: [ 1 ] } ]\n',
    )
    add_python(
        repository / "gated",
        GATED,
        f"sequence_batching {{ {idle} }}\n"
        'input [ { name: "GATE" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "ABOUT" data_type: TYPE_STRING dims: [ 1 ] } ]\n',
    )
    add_python(
        repository / "generator",
        GENERATOR,
        "max_batch_size: 8\nsequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 8 } }\n"
        'input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }, '
        '{ name: "UNTIL" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "WORDS" data_type: TYPE_INT32 dims: [ 2 ] } ]\n',
    )
    with ServerProcess(repository=repository) as process:
        yield process


@pytest.fixture(scope="module", params=["http", "grpc"])
def sequences(sequence_server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, sequence_server.addresses[request.param]) as made:
        yield made


@pytest.fixture(scope="module")
def anywhere(sequence_server: ServerProcess) -> Iterator[Client]:
    """For any thread, which tritonclient's HTTP client is not."""
    with Client("grpc", sequence_server.addresses["grpc"]) as made:
        yield made


def pair(value: int) -> dict[str, Array]:
    return {"INPUT": np.array([[value, -value]], np.int32)}


def test_two_sequences_side_by_side(sequences: Client) -> None:
    """Each has a sum of its own, and the model is told where each begins and ends, and which it is."""
    steps = [
        (71, 1, True, False),
        (72, 10, True, False),
        (71, 2, False, False),
        (72, 20, False, True),
        (71, 3, False, True),
    ]
    answers = [
        sequences.infer("direct", pair(value), sequence_id=id, sequence_start=start, sequence_end=end)
        for id, value, start, end in steps
    ]
    assert [int(answer["OUTPUT"][0, 0]) for answer in answers] == [1, 10, 3, 30, 6]
    assert [int(answer["ID"][0, 0]) for answer in answers] == [71, 72, 71, 72, 71]
    assert [answer["FLAGS"][0].tolist() for answer in answers] == [
        [int(start), int(end), 1] for _, _, start, end in steps
    ]
    assert all("SUM_OUT" not in answer for answer in answers)


def test_ids_as_text_and_a_state_from_a_file(sequences: Client) -> None:
    id = f"größe over {sequences.protocol}"
    for value, start, end, expected in ((1, True, False, 101), (2, False, False, 103), (1, True, True, 101)):
        answer = sequences.infer("oldest", pair(value), sequence_id=id, sequence_start=start, sequence_end=end)
        assert answer["OUTPUT"][0, 0] == expected
        assert answer["ID"][0, 0] == id.encode()


@pytest.mark.parametrize(
    ("model", "id", "header"), [("direct", 83, "83"), ("oldest", b"a/b", "a/b"), ("oldest", b"7", '"7"')]
)
def test_the_id_in_a_header(sequences: Client, model: str, id: int | bytes, header: str) -> None:
    """It stands for the parameter, which may say the same beside it."""
    headers = {"x-sequence-id": header}
    own = id if isinstance(id, int) else id.decode()
    named: dict[str, Any] = {"sequence_id": own}
    for start, end, more in ((True, False, named), (False, False, {}), (False, True, named)):
        answer = sequences.infer(model, pair(1), headers=headers, sequence_start=start, sequence_end=end, **more)
        assert answer["ID"][0, 0] == id
    with pytest.raises(InferenceServerException, match=r"disagree: got .* and '84'; leave one out") as raised:
        sequences.infer(model, pair(1), headers=headers, sequence_id=84, sequence_start=True)
    assert status_of(raised.value) == "INVALID_ARGUMENT"


def test_the_id_in_the_metadata_of_a_stream(sequence_server: ServerProcess) -> None:
    """It is that of all requests on the stream, but for those that name another: they fail, and the stream goes on."""
    stream = StreamOf(sequence_server.addresses["grpc"], headers={"x-sequence-id": "85"})
    stream.send("direct", pair(1), sequence_id=85, sequence_start=True)
    stream.send("direct", pair(1), sequence_id=86, sequence_start=True)
    stream.send("direct", pair(2))
    assert stream.answer().as_numpy("OUTPUT")[0, 0] == 1
    with pytest.raises(InferenceServerException, match="disagree"):
        stream.answer()
    assert stream.answer().as_numpy("OUTPUT")[0, 0] == 3
    stream.close()


@pytest.mark.parametrize(
    ("model", "more", "text"),
    [
        ("direct", {}, "must specify a non-zero or non-empty correlation ID"),
        ("direct", {"sequence_id": 999}, "for sequence 999 to model 'direct' must specify the START flag on the first"),
        (
            "direct",
            {"sequence_id": "a", "sequence_start": True},
            "data-type is 'BYTES', but model 'direct' expects 'UINT64'",
        ),
        (
            "oldest",
            {"sequence_id": 1, "sequence_start": True},
            "data-type is 'UINT64', but model 'oldest' expects 'BYTES'",
        ),
    ],
)
def test_what_is_no_part_of_a_sequence_is_the_clients_fault(
    sequences: Client, model: str, more: dict[str, Any], text: str
) -> None:
    with pytest.raises(InferenceServerException, match=text) as raised:
        sequences.infer(model, pair(1), **more)
    assert status_of(raised.value) == "INVALID_ARGUMENT"


def test_a_batch_of_more_than_one_and_a_tensor_of_the_servers_are_refused(sequences: Client) -> None:
    with pytest.raises(InferenceServerException, match="must specify batch-size 1 due to requirements of sequence"):
        sequences.infer("direct", {"INPUT": np.zeros((2, 2), np.int32)}, sequence_id=5, sequence_start=True)
    with pytest.raises(InferenceServerException, match="unexpected inference input 'START' for model 'direct'"):
        sequences.infer("direct", {**pair(1), "START": np.ones((1, 1), np.int32)}, sequence_id=5)
    with pytest.raises(InferenceServerException, match="unexpected inference output 'SUM_OUT' for model 'direct'"):
        sequences.infer("direct", pair(1), outputs=["SUM_OUT"], sequence_id=5, sequence_start=True)


def test_a_sequence_that_falls_idle_is_over(sequences: Client) -> None:
    sequences.infer("hasty", pair(1), sequence_id=6, sequence_start=True)

    def is_over() -> bool:
        try:
            sequences.infer("hasty", pair(1), sequence_id=6)
        except InferenceServerException as error:
            return "must specify the START flag" in str(error)
        return False

    assert eventually(is_over)


class StreamOf:
    """A gRPC stream on which requests leave without waiting for answers; these come in order."""

    def __init__(self, address: str, headers: dict[str, str] | None = None) -> None:
        self._client = Client("grpc", address)
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.raw.start_stream(lambda result, error: self._answers.put((result, error)), headers=headers)

    def send(self, model: str, inputs: dict[str, Array], **more: Any) -> None:
        self._client.raw.async_stream_infer(model, tensors(self._client.api, inputs), **more)

    def answer(self) -> Any:
        result, error = self._answers.get(timeout=PATIENCE)
        if error is not None:
            raise error
        return result

    def close(self, *, cancel: bool = False) -> None:
        self._client.raw.stop_stream(cancel_requests=cancel)
        self._client.raw.close()


def test_sequences_over_one_stream(sequence_server: ServerProcess) -> None:
    """Sent without waiting, and still each in order; an error ends neither the stream nor the other sequence."""
    stream = StreamOf(sequence_server.addresses["grpc"])
    count = 40
    for number in range(count):
        for id in (501, 502):
            flags = {"sequence_start": number == 0, "sequence_end": number == count - 1}
            stream.send("direct", pair(number * id), sequence_id=id, **flags)
    stream.send("direct", pair(1), sequence_id=501)
    found: dict[int, list[int]] = {501: [], 502: []}
    for _ in range(2 * count):
        result = stream.answer()
        found[int(result.as_numpy("ID")[0, 0])].append(int(result.as_numpy("OUTPUT")[0, 0]))
    sums = np.cumsum(np.arange(count))
    assert found == {id: (id * sums).tolist() for id in found}
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        stream.answer()
    stream.close()


def test_a_python_model_with_state(sequences: Client) -> None:
    """For a model.py the server keeps it, and asking for one buffer makes no difference."""
    steps = [(81, 1), (82, 10), (81, 2), (82, 20), (81, 3)]
    answers = [
        sequences.infer(
            "running_sum",
            {"VALUE": np.array([[value]], np.float32)},
            sequence_id=id,
            sequence_start=value in (1, 10),
            sequence_end=value in (3, 20),
        )
        for id, value in steps
    ]
    assert [list(answer) for answer in answers] == [["TOTAL"]] * 5
    assert [float(answer["TOTAL"][0, 0]) for answer in answers] == [1, 10, 3, 30, 6]


def test_states_that_grow_in_their_memory(sequence_server: ServerProcess) -> None:
    """Beside each other, so that they share batches, and one that is longer than the others and runs alone."""
    stream = StreamOf(sequence_server.addresses["grpc"])
    lengths = {601: 30, 602: 30, 603: 300}
    for number in range(max(lengths.values())):
        for id, length in lengths.items():
            if number < length:
                row = {"INPUT": np.array([[id, number]], np.float32)}
                flags = {"sequence_start": number == 0, "sequence_end": number == length - 1}
                stream.send("growing", row, sequence_id=id, request_id=str(id), **flags)
    found: dict[int, list[list[float]]] = {id: [] for id in lengths}
    for _ in range(sum(lengths.values())):
        result = stream.answer()
        found[int(result.get_response().id)].append(result.as_numpy("OUTPUT")[0].tolist())
    assert found == {
        id: [[id * (number + 1), number * (number + 1) / 2] for number in range(length)]
        for id, length in lengths.items()
    }
    stream.close()


def gate(path: Path) -> dict[str, Array]:
    return {"GATE": np.array([str(path).encode()], np.object_)}


def test_a_client_that_vanishes_frees_its_slot(
    sequence_server: ServerProcess, anywhere: Client, tmp_path: Path
) -> None:
    """The model has one slot. Who comes next is answered as soon as the batch that runs has ended; the requests that
    the other had sent ahead never run."""

    def failed() -> int:
        (model,) = anywhere.json("get_inference_statistics", "gated")["model_stats"]
        return int(model["inference_stats"]["fail"].get("count", 0))

    failed_before = failed()
    stream = StreamOf(sequence_server.addresses["grpc"])
    first, never, other = tmp_path / "first", tmp_path / "never", tmp_path / "other"
    other.touch()
    stream.send("gated", gate(first), sequence_id=1, sequence_start=True)
    stream.send("gated", gate(never), sequence_id=1)
    assert eventually(Path(f"{first}.seen").exists)
    stream.close(cancel=True)
    assert eventually(lambda: failed() > failed_before)  # the server has heard of it: else the next one would run

    answers: queue.Queue[Any] = queue.Queue()

    def ask() -> None:
        answers.put(anywhere.infer("gated", gate(other), sequence_id=2, sequence_start=True, sequence_end=True))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    first.touch()
    assert answers.get(timeout=PATIENCE)["ABOUT"][0] == b"2 3"
    asking.join(PATIENCE)
    assert not Path(f"{never}.seen").exists()
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        anywhere.infer("gated", gate(other), sequence_id=1)


def test_new_requests_join_an_iterative_models_rounds(anywhere: Client, tmp_path: Path) -> None:
    """A short request is answered while a long one runs, in batches with it."""
    done = tmp_path / "done"

    def words(count: int, until: str = "") -> dict[str, Array]:
        return {"COUNT": np.array([[count]], np.int32), "UNTIL": np.array([[until.encode()]], np.object_)}

    long: queue.Queue[Any] = queue.Queue()
    thread = threading.Thread(target=lambda: long.put(anywhere.infer("generator", words(0, str(done)))), daemon=True)
    thread.start()

    def joins() -> bool:
        count, batch_size = anywhere.infer("generator", words(5))["WORDS"][0].tolist()
        assert count == 5
        return bool(batch_size == 2)

    assert eventually(joins)
    assert long.empty()
    done.touch()
    count, batch_size = long.get(timeout=PATIENCE)["WORDS"][0].tolist()
    thread.join(PATIENCE)
    assert count > 5
    assert batch_size == 2


def test_the_server_tells_that_it_knows_sequences(sequences: Client) -> None:
    assert "sequence" in sequences.json("get_server_metadata")["extensions"]
    config = sequences.json("get_model_config", "direct")
    config = config.get("config", config)
    assert config["sequence_batching"]["state"][0]["input_name"] == "SUM_IN"
