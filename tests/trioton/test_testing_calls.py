"""`trioton.testing` with models that call other models, which the test gives."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import trio

from protocol.errors import Internal
from tests.backends.onnxruntime.onnx_models import identity, save
from tests.trioton.test_testing import CONFIG, DECOUPLED, DOUBLE, replies, write
from trioton.testing import ServerError, open_model, serve_model

pytestmark = pytest.mark.slow

FAILING = "raise LookupError('no such row')"
CALL = """
made = []

def call(name, array, **more):
    request = pb_utils.InferenceRequest(
        model_name=name, requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", array)], **more
    )
    return request

def value(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
"""


def caller(folder: Path, body: str, *, config: str = CONFIG, files: dict[str, str] | None = None) -> Path:
    head = "import asyncio\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n" + CALL
    head += "\ndef answer(array):\n    return pb_utils.InferenceResponse([pb_utils.Tensor('OUT', array)])\n"
    return write(folder, body, config=config, head=head + "\nclass TritonPythonModel:\n", files=files)


CALL_ONE = "return [answer(1 + value(call('other', r.inputs()[0].as_numpy()).exec())) for r in requests]"


def test_a_call(tmp_path: Path) -> None:
    """Through the other model's own scheduler and configuration."""
    other = write(tmp_path / "other", DOUBLE, config=CONFIG.replace("max_batch_size: 8", "max_batch_size: 2"))
    model = caller(tmp_path / "m", CALL_ONE)
    with serve_model(model, models=[other]) as served:
        assert served.infer({"IN": [[5]]})["OUT"].item() == 11
        assert [each["OUT"].item() for each in replies(served.infer_many([{"IN": [[i]]} for i in range(4)]))] == [
            1, 3, 5, 7,
        ]  # fmt: skip
        with pytest.raises(ServerError, match="batch-size must be <= 2 for 'other'"):
            served.infer({"IN": np.zeros((3, 1), np.int32)})


def test_a_call_of_a_model_of_another_backend(tmp_path: Path) -> None:
    body = """
    (r,) = requests
    array = r.inputs()[0].as_numpy().astype(np.float32)
    inputs = [pb_utils.Tensor("X", array)]
    request = pb_utils.InferenceRequest(model_name="network", requested_output_names=["Y"], inputs=inputs)
    found = pb_utils.get_output_tensor_by_name(request.exec(), "Y").as_numpy()
    return [answer(found.astype(np.int32))]
    """
    network = save(identity([None, 1]), tmp_path / "network")
    with serve_model(caller(tmp_path / "m", body), models=[network]) as model:
        assert model.infer({"IN": [[6]]})["OUT"].tolist() == [[6]]


async def test_calls_of_coroutines_meet_in_the_other_s_batch(tmp_path: Path) -> None:
    body = """
    async def execute(self, requests):
        numbers = [call("other", np.full((1, 1), i, np.int32)).async_exec() for i in range(4)]
        found = [value(each).item() for each in await asyncio.gather(*numbers)]
        return [answer(np.full((1, 1), sum(found), np.int32)) for r in requests]
    """
    sizes = "return [answer(np.full((1, 1), len(requests), np.int32)) for r in requests]"
    batching = CONFIG + "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 10000000 }"
    other = write(tmp_path / "other", sizes, config=batching)
    async with open_model(caller(tmp_path / "m", body), models=[other]) as model:
        assert (await model.infer({"IN": [[0]]}))["OUT"].item() == 16


def test_a_stream_of_responses(tmp_path: Path) -> None:
    body = """
    (request,) = requests
    responses = call("other", request.inputs()[0].as_numpy()).exec(decoupled=True)
    numbers = [value(each).item() for each in responses if each.output_tensors()]
    return [answer(np.full((1, 1), sum(numbers), np.int32))]
    """
    other = write(tmp_path / "other", DECOUPLED, config=CONFIG + "model_transaction_policy { decoupled: true }")
    with serve_model(caller(tmp_path / "m", body), models=[other]) as model:
        assert model.infer({"IN": [[5]]})["OUT"].item() == 0 + 1 + 2 + 3 + 4


def test_the_exception_of_the_other_model(tmp_path: Path) -> None:
    """The caller's text tells of it, so a test that fails shows both."""
    with (
        serve_model(caller(tmp_path / "m", CALL_ONE), models=[write(tmp_path / "other", FAILING)]) as model,
        pytest.raises(Internal, match="LookupError: no such row") as raised,
    ):
        model.infer({"IN": [[1]]})
    cause = raised.value.__cause__
    assert type(cause).__name__ == "TritonModelException"
    assert cause is not None
    assert isinstance(cause.__cause__, LookupError)


def test_a_model_that_was_not_given(tmp_path: Path) -> None:
    with serve_model(caller(tmp_path / "m", CALL_ONE)) as model, pytest.raises(ServerError, match="'other'"):
        model.infer({"IN": [[1]]})


def test_the_other_model_may_be_loaded_again(tmp_path: Path) -> None:
    """By the model under test, which asks for its state as well."""
    body = """
    before = pb_utils.is_model_ready("other")
    pb_utils.unload_model("other")
    pb_utils.load_model("other")
    ready = [before, pb_utils.is_model_ready("other")]
    return [answer(np.full((1, 1), sum(ready), np.int32)) for r in requests]
    """
    with serve_model(caller(tmp_path / "m", body), models=[write(tmp_path / "other", DOUBLE)]) as model:
        assert model.infer({"IN": [[1]]})["OUT"].item() == 2


async def test_a_caller_who_leaves_ends_the_calls_made_for_it(tmp_path: Path) -> None:
    waiting = """
    while not requests[0].is_cancelled():
        pass
    open("{seen}", "w").close()
    return [answer(r.inputs()[0].as_numpy()) for r in requests]
    """
    other = write(tmp_path / "other", waiting.format(seen=tmp_path / "seen"))
    async with open_model(caller(tmp_path / "m", CALL_ONE), models=[other]) as model:
        with trio.move_on_after(0.2) as scope:
            await model.infer({"IN": [[0]]})
        assert scope.cancelled_caught
        with trio.fail_after(20):
            while not await trio.Path(tmp_path / "seen").exists():  # noqa: ASYNC110 (a file has no event)
                await trio.sleep(0.01)


def test_each_model_has_its_own_helpers(tmp_path: Path) -> None:
    """Files of one name beside two models, of which one calls the other."""
    body = """
    import number_helper
    from number_helper import NUMBER
    return [answer(np.full((1, 1), 10 * number_helper.NUMBER + NUMBER, np.int32)) for r in requests]
    """
    calling = """
    import number_helper
    from number_helper import NUMBER
    called = [call("one", r.inputs()[0].as_numpy()).exec() for r in requests]
    found = [pb_utils.get_output_tensor_by_name(each, "OUT").as_numpy() for each in called]
    return [answer(np.full((1, 1), 100 * each.item() + 10 * number_helper.NUMBER + NUMBER, np.int32)) for each in found]
    """
    one = write(tmp_path / "one", body, files={"number_helper.py": "NUMBER = 1"})
    two = caller(tmp_path / "two", calling, files={"number_helper.py": "NUMBER = 2"})
    for _ in range(2):
        with serve_model(two, models=[one]) as model:
            assert model.infer({"IN": [[0]]})["OUT"].item() == 1122
    assert "number_helper" not in sys.modules


@pytest.mark.parametrize("isolation", ["process", "threads", "fork", "in_process", "in_loop"])
def test_whatever_the_isolation(tmp_path: Path, isolation: str) -> None:
    """All run here; where instances would share a module, they do, and a forked one is told so."""
    body = """
    def initialize(self, args):
        made.append(args["model_instance_name"])
        self.text = "m"

    def after_fork(self, args):
        self.text = "forked"

    def execute(self, requests):
        return [answer(np.array([[len(made), len(self.text)]], np.int32)) for r in requests]
    """
    config = CONFIG.replace('"OUT" data_type: TYPE_INT32 dims: [ 1 ]', '"OUT" data_type: TYPE_INT32 dims: [ 2 ]')
    config += f'parameters {{ key: "ISOLATION" value {{ string_value: "{isolation}" }} }}'
    config += "instance_group { count: 2 kind: KIND_CPU }"
    with serve_model(caller(tmp_path / "m", body, config=config)) as model:
        made, length = model.infer({"IN": [[0]]})["OUT"][0].tolist()
    assert made == (2 if isolation in ("threads", "in_process", "in_loop") else 1)
    assert length == len("forked" if isolation == "fork" else "m")
