"""`trioton.testing`, used as the author of a `model.py` would."""

from __future__ import annotations

import keyword
import logging
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import trio

import trioton.testing
from protocol.errors import Internal, InvalidArgument, Unsupported
from trioton.testing import Answer, ServerError, open_model, serve_model

pytestmark = pytest.mark.slow

HEAD = """
import sys
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])

class TritonPythonModel:
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
DOUBLE = "return [answer(2 * r.inputs()[0].as_numpy()) for r in requests]"
BATCH_SIZE = "return [answer(np.full((1, 1), len(requests), np.int32)) for r in requests]"
DELAY = {"dynamic_batching": {"max_queue_delay_microseconds": 500_000, "preferred_batch_size": [4]}}


def write(
    folder: Path, body: str, *, config: str = CONFIG, head: str = HEAD, files: dict[str, str] | None = None
) -> Path:
    """A bare model folder; `body` is that of `execute`, or whole methods if it begins with a definition."""
    folder.mkdir(exist_ok=True)
    body = textwrap.dedent(body).strip()
    if not body.startswith(("def ", "async def ", "@")):
        body = "def execute(self, requests):\n" + textwrap.indent(body, "    ")
    (folder / "model.py").write_text(head + textwrap.indent(body, "    ") + "\n")
    (folder / "config.pbtxt").write_text(config)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    return folder


def test_a_request_and_its_answer(tmp_path: Path) -> None:
    """Arrays and lists; the configuration is the completed one, and there are statistics."""
    with serve_model(write(tmp_path / "m", DOUBLE)) as model:
        answer = model.infer({"IN": [[1], [2]]}, id="7")
        assert answer["OUT"].tolist() == [[2], [4]]
        assert (answer["OUT"].dtype.name, answer.request_id, answer.model_version) == ("int32", "7", 1)
        assert model.infer({"IN": np.array([[3]], np.int32)}, outputs=["OUT"]).keys() == {"OUT"}
        assert (model.name, model.config["max_batch_size"], model.is_ready()) == ("m", 8, True)
        assert model.statistics.inference_count == 3


def test_the_model_s_exception_is_the_cause_of_the_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "raise KeyError('no such thing')")
    with serve_model(folder) as model, pytest.raises(ServerError, match="KeyError: 'no such thing'") as raised:
        model.infer({"IN": [[1]]})
    assert isinstance(raised.value.__cause__, KeyError)
    trace = raised.value.__cause__.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    assert trace.tb_frame.f_code.co_filename == str(folder / "model.py")


def test_what_a_server_would_refuse_is_refused(tmp_path: Path) -> None:
    with serve_model(write(tmp_path / "m", DOUBLE)) as model:
        with pytest.raises(InvalidArgument, match="batch-size must be <= 8"):
            model.infer({"IN": np.zeros((9, 1), np.int32)})
        with pytest.raises(InvalidArgument, match="FP64"):
            model.infer({"IN": np.zeros((1, 1))})
        with pytest.raises(InvalidArgument, match="unexpected inference input 'X'"):
            model.infer({"X": np.zeros((1, 1), np.int32)})


def test_the_dynamic_batcher_stands_before_the_model(tmp_path: Path) -> None:
    """As the configuration says, and without one each request is a batch."""
    folder = write(tmp_path / "m", BATCH_SIZE)
    requests = [{"IN": [[i]]} for i in range(4)]
    with serve_model(folder, config=DELAY) as model:
        assert [reply["OUT"].item() for reply in replies(model.infer_many(requests))] == [4] * 4
        assert model.statistics.execution_count == 1
    with serve_model(folder) as model:
        assert [reply["OUT"].item() for reply in replies(model.infer_many(requests))] == [1] * 4


def replies(given: list[Answer | ServerError]) -> list[Answer]:
    assert all(isinstance(each, Answer) for each in given), given
    return [each for each in given if isinstance(each, Answer)]


def test_errors_stand_in_their_places(tmp_path: Path) -> None:
    body = """
    error = pb_utils.TritonError("odd", pb_utils.TritonError.INVALID_ARG)
    return [
        pb_utils.InferenceResponse(error=error) if r.inputs()[0].as_numpy() % 2 else answer(r.inputs()[0].as_numpy())
        for r in requests
    ]
    """
    with serve_model(write(tmp_path / "m", body)) as model:
        first, second = model.infer_many([{"IN": [[1]]}, {"IN": [[2]]}])
    assert isinstance(first, InvalidArgument)
    assert str(first) == "odd"
    assert isinstance(second, Answer)


DECOUPLED = """
for r in requests:
    sender = r.get_response_sender()
    count = r.inputs()[0].as_numpy().item()
    for i in range(abs(count)):
        sender.send(answer(np.array([[i]], np.int32)))
    if count < 0:
        error = pb_utils.TritonError("too few")
        sender.send(pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    else:
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_a_decoupled_model(tmp_path: Path) -> None:
    config = CONFIG + "model_transaction_policy { decoupled: true }"
    with serve_model(write(tmp_path / "m", DECOUPLED, config=config)) as model:
        assert [each["OUT"].item() for each in model.stream({"IN": [[50]]})] == list(range(50))
        assert model.stream({"IN": [[0]]}) == []
        with pytest.raises(ServerError, match="too few"):
            model.stream({"IN": [[-2]]})
        with pytest.raises(Unsupported, match="decoupled"):
            model.infer({"IN": [[1]]})


def test_strings_and_parameters(tmp_path: Path) -> None:
    body = """
    return [
        pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", np.array([[r.inputs()[0].as_numpy().item().decode().upper()]], object))],
            parameters={"got": r.parameters()},
        )
        for r in requests
    ]
    """
    folder = write(tmp_path / "m", body, config=CONFIG.replace("TYPE_INT32", "TYPE_STRING"))
    with serve_model(folder) as model:
        reply = model.infer({"IN": [["ä"]]}, parameters={"a": 1})
        assert reply["OUT"].tolist() == [["Ä".encode()]]
        assert reply.parameters == {"got": '{"a": 1}'}
        assert model.infer({"IN": np.array([["b"]])})["OUT"].tolist() == [[b"B"]]


def test_a_model_of_coroutines(tmp_path: Path) -> None:
    """Its loop ends with it."""
    body = """
    async def execute(self, requests):
        import asyncio
        await asyncio.sleep(0)
        return [answer(2 * r.inputs()[0].as_numpy()) for r in requests]
    """
    before = threading.active_count()
    with serve_model(write(tmp_path / "m", body)) as model:
        assert [each["OUT"].item() for each in replies(model.infer_many([{"IN": [[i]]} for i in range(5)]))] == [
            0, 2, 4, 6, 8,
        ]  # fmt: skip
    for thread in threading.enumerate():
        if thread.name == "execute":
            thread.join(10)
    assert threading.active_count() <= before + 1  # a thread of Trio's own may wait for its next work


SEQUENCE = """
def initialize(self, args):
    self.sums = {}

def execute(self, requests):
    responses = []
    for r in requests:
        if r.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.sums[r.correlation_id()] = 0
        self.sums[r.correlation_id()] += r.inputs()[0].as_numpy()
        responses.append(answer(self.sums[r.correlation_id()]))
    return responses
"""


def test_sequences(tmp_path: Path) -> None:
    with serve_model(write(tmp_path / "m", SEQUENCE, config=CONFIG + "sequence_batching { oldest { } }")) as model:
        model.infer({"IN": [[1]]}, sequence_id=1, sequence_start=True)
        model.infer({"IN": [[10]]}, sequence_id=2, sequence_start=True)
        assert model.infer({"IN": [[2]]}, sequence_id=1, sequence_end=True)["OUT"].item() == 3
        with pytest.raises(InvalidArgument, match="sequence"):
            model.infer({"IN": [[2]]}, sequence_id=3)


def test_a_model_that_exits_takes_the_test_not_with_it(tmp_path: Path) -> None:
    """As any exception: its caller is told, and the instance goes on."""
    body = """
    if requests[0].inputs()[0].as_numpy().item() == 0:
        sys.exit(3)
    return [answer(r.inputs()[0].as_numpy()) for r in requests]
    """
    with serve_model(write(tmp_path / "m", body)) as model:
        with pytest.raises(Internal, match="SystemExit: 3"):
            model.infer({"IN": [[0]]})
        assert model.is_ready()
        assert model.infer({"IN": [[5]]})["OUT"].item() == 5


@pytest.mark.parametrize(
    ("body", "cause", "text"),
    [
        ("def initialize(self, args):\n    raise OSError('no weights')", OSError, "OSError: no weights"),
        ("@staticmethod\ndef auto_complete_config(config):\n    raise LookupError('x')", LookupError, "LookupError: x"),
        ("no_such_name\ndef f(): pass", NameError, "NameError: name 'no_such_name' is not defined"),
    ],
)
def test_a_model_that_does_not_load(tmp_path: Path, body: str, cause: type[Exception], text: str) -> None:
    folder = write(tmp_path / "m", "pass")
    (folder / "model.py").write_text(HEAD + textwrap.indent(body, "    ") + "\n")
    with pytest.raises(ServerError) as raised, serve_model(folder):
        pass
    assert text in str(raised.value)
    assert isinstance(raised.value.__cause__, cause)


def test_no_model_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no model in it"), serve_model(tmp_path):
        pass


def test_a_test_that_fails_inside_the_block_fails_as_itself(tmp_path: Path) -> None:
    """And the model is finalized."""
    body = f"def execute(self, requests): {DOUBLE}\ndef finalize(self): open({str(tmp_path / 'ended')!r}, 'w').close()"
    folder = write(tmp_path / "m", body)
    with pytest.raises(ZeroDivisionError), serve_model(folder) as model:
        model.infer({"IN": [[1 // 0]]})
    assert (tmp_path / "ended").exists()


def test_files_beside_the_model_are_those_of_this_test(tmp_path: Path) -> None:
    """Two models with helpers of one name after another, and nothing is left on the path."""
    path = list(sys.path)
    head = "import number_helper\n" + HEAD
    body = "return [answer(np.full((1, 1), number_helper.NUMBER, np.int32)) for r in requests]"
    for number in (1, 2):
        files = {"number_helper.py": f"NUMBER = {number}"}
        folder = write(tmp_path / f"m{number}", body, head=head, files=files)
        with serve_model(folder) as model:
            assert model.infer({"IN": [[0]]})["OUT"].item() == number
    assert sys.path == path
    assert "number_helper" not in sys.modules


ENSEMBLE = (
    CONFIG.replace('backend: "python"', 'platform: "ensemble"')
    + """
ensemble_scheduling { step [
  { model_name: "first" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } },
  { model_name: "second" model_version: -1
    input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } }
] }
"""
)


def test_an_ensemble_of_models_in_this_process(tmp_path: Path) -> None:
    first = write(tmp_path / "first", DOUBLE)
    second = write(tmp_path / "second", "return [answer(1 + r.inputs()[0].as_numpy()) for r in requests]")
    (tmp_path / "both" / "1").mkdir(parents=True)
    (tmp_path / "both" / "config.pbtxt").write_text(ENSEMBLE)
    with serve_model(tmp_path / "both", models=[first, second]) as model:
        assert model.infer({"IN": [[5]]})["OUT"].item() == 11


def test_two_models_at_once(tmp_path: Path) -> None:
    """Each asks its own folder."""
    body = "return [answer(np.full((1, 1), len(pb_utils.get_model_dir()), np.int32)) for r in requests]"
    short, long = write(tmp_path / "m", body), write(tmp_path / "mmm", body)
    with serve_model(short) as one, serve_model(long) as other:
        assert one.infer({"IN": [[0]]})["OUT"].item() == len(str(short))
        assert other.infer({"IN": [[0]]})["OUT"].item() == len(str(long))


def test_what_a_model_says(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "m", f"pb_utils.Logger.log_warn('to the log')\nprint('to the screen')\n{DOUBLE}")
    with caplog.at_level(logging.WARNING), serve_model(folder) as model:
        model.infer({"IN": [[0]]})
    assert "m_0: to the log" in caplog.text
    assert "to the screen" in capfd.readouterr().out


def test_a_model_can_be_patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in this process."""
    body = "import keyword\nreturn [answer(np.full((1, 1), len(keyword.kwlist), np.int32)) for r in requests]"
    with serve_model(write(tmp_path / "m", body)) as model:
        assert model.infer({"IN": [[0]]})["OUT"].item() == len(keyword.kwlist)
        monkeypatch.setattr(keyword, "kwlist", ["a"] * 42)
        assert model.infer({"IN": [[0]]})["OUT"].item() == 42


async def test_pytest_s_own_exceptions_pass(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="enough"):
        async with open_model(write(tmp_path / "m", DOUBLE)):
            pytest.skip("enough")


async def test_on_trio(tmp_path: Path) -> None:
    """The same with `async` and `await`; a request that is cancelled is given up."""
    body = """
    if requests[0].inputs()[0].as_numpy().item() == 0:
        while not requests[0].is_cancelled():
            pass
    return [answer(r.inputs()[0].as_numpy()) for r in requests]
    """
    async with open_model(write(tmp_path / "m", body)) as model:
        with trio.move_on_after(0.05) as scope:
            await model.infer({"IN": [[0]]})
        assert scope.cancelled_caught
        assert (await model.infer({"IN": [[4]]}))["OUT"].item() == 4
        with pytest.raises(InvalidArgument):
            await model.infer({})
        assert await model.is_ready()
    with pytest.raises(ValueError, match="is a repository of models"):
        async with open_model(tmp_path):
            pass


def test_a_model_s_object_by_itself(tmp_path: Path) -> None:
    """With the arguments of `initialize`, and requests that the test makes."""
    import triton_python_backend_utils as pb_utils

    body = """
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        return [answer(2 * r.inputs()[0].as_numpy()) for r in requests]
    """
    folder = write(tmp_path / "m", body)
    model = trioton.testing.model_class(folder)()
    model.initialize(trioton.testing.initialize_arguments(folder, model_instance_kind="GPU"))
    assert (model.args["model_name"], model.args["model_instance_kind"]) == ("m", "GPU")
    assert '"max_batch_size": 8' in model.args["model_config"]
    request = pb_utils.InferenceRequest(
        model_name="m", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", np.array([[4]], np.int32))]
    )
    (response,) = model.execute([request])
    assert pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy().tolist() == [[8]]
    with pytest.raises(ValueError, match="is a repository of models"):
        trioton.testing.model_class(tmp_path)


OUTSIDE = """
import numpy as np
import pytest
import trioton.testing

@pytest.fixture(scope="module")
def model():
    with trioton.testing.serve_model("mine") as served:
        yield served

def test_right(model):
    assert model.infer({"IN": np.array([[4]], np.int32)})["OUT"].tolist() == [[8]]

def test_wrong(model):
    model.infer({"IN": np.array([[-4]], np.int32)})
"""


def test_a_plain_pytest_run_elsewhere(tmp_path: Path) -> None:
    """Without the plug-in for Trio, warnings as errors; a failing test shows the model's own line."""
    write(tmp_path / "mine", f"if requests[0].inputs()[0].as_numpy() < 0: raise ValueError('below zero')\n{DOUBLE}")
    (tmp_path / "test_mine.py").write_text(OUTSIDE)
    command = [sys.executable, "-m", "pytest", "-p", "no:trio", "-p", "no:cacheprovider", "-W", "error", "test_mine.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "1 failed, 1 passed" in run.stdout
    assert "raise ValueError('below zero')" in run.stdout
    assert "The above exception was the direct cause" in run.stdout
