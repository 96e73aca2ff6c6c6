"""A `model.py` that asks for another round of a request."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from backends.interface import Rescheduled
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.messages import InferenceResponse
from repository.model_config import ModelSequenceBatching, SequenceState
from tests.backends.python.models import CONFIG, MakeBackend, executing, infer, output, request, running

# Requests with a negative number run again.
AGAIN = """
    responses = []
    for request in requests:
        array = request.inputs()[0].as_numpy()
        if array[0, 0] < 0:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            responses.append(None)
        else:
            responses.append(answer(array))
    return responses
"""


async def test_those_that_ask_run_again_and_the_others_are_answered(backend: MakeBackend, tmp_path: Path) -> None:
    async with running(backend(tmp_path, executing(AGAIN))) as model:
        responses = await infer(model, request([1]), request([-1]), request([2]))
        assert [type(response) for response in responses] == [InferenceResponse, Rescheduled, InferenceResponse]
        assert output(responses[2]).tolist() == [[2]]
        assert [type(response) for response in await infer(model, request([-1]))] == [Rescheduled]


RESCHEDULE = "requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            RESCHEDULE + "return [answer(np.ones((1, 1), np.float32))]",
            "Expected a None object in the execute function return list for reschduled request, found type '<class",
        ),
        ("requests[0].set_release_flags(5)", "release flags must be 1 or 2, got 5"),
    ],
)
async def test_what_contradicts_the_flag_fails_the_batch(
    backend: MakeBackend, tmp_path: Path, body: str, message: str
) -> None:
    async with running(backend(tmp_path, executing(body))) as model:
        with pytest.raises(Internal) as caught:
            await infer(model, request([1]))
        assert message in caught.value.message


async def test_returning_nothing_is_enough_where_all_run_again(backend: MakeBackend, tmp_path: Path) -> None:
    async with running(backend(tmp_path, executing(RESCHEDULE))) as model:
        assert [type(response) for response in await infer(model, request([1]))] == [Rescheduled]


async def test_the_outputs_of_states_reach_the_server_though_no_client_may_ask_for_them(
    backend: MakeBackend, tmp_path: Path
) -> None:
    state = SequenceState("S_IN", "S_OUT", DataType.FP32, (1,))
    config = replace(CONFIG, sequence_batching=ModelSequenceBatching(state=(state,)))
    body = """
        tensors = [pb_utils.Tensor(name, requests[0].inputs()[0].as_numpy()) for name in ("OUT", "S_OUT", "OTHER")]
        return [pb_utils.InferenceResponse(tensors)]
    """
    async with running(backend(tmp_path, executing(body), config=config)) as model:
        (response,) = await infer(model, request([1]))
    assert isinstance(response, InferenceResponse)
    assert [tensor.name for tensor in response.outputs] == ["OUT", "S_OUT"]
