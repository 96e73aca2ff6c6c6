"""Batches of an instance on a device: an array backend whose arrays are there; host memory stands for the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.array_backend import ArrayBackend
from backends.devices.devices import Devices
from backends.interface import BatchResult, InstanceSpec, ModelSource
from protocol.datatypes import DataType
from protocol.errors import Internal, Overloaded, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.tensors.device_tensor import DeviceTensor, device_tensor
from repository.model_config import InstanceKind, ModelConfig
from repository.pbtxt import parse_pbtxt
from tests.backends.devices.host_runtime import HostRuntime, Pins, on_device, reads_of

CONFIG = parse_pbtxt(
    """
    name: "m" max_batch_size: 8
    input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
    input [ { name: "s" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "t" data_type: TYPE_STRING dims: [ 1 ] } ]
    """,
    source="test",
)


class Doubler(ArrayBackend):
    """y = 2 x on the device; t = s on the host. It knows which inputs it was given in which memory."""

    takes_device_tensors = True

    def load_model(self) -> None:
        self.runtime = HostRuntime()
        devices = Devices(new_runtime=lambda *_: self.runtime, pin=Pins())
        self.device_stream = devices.stream(0, self.spec.config)
        self.seen: list[dict[str, Any]] = []
        self.before: Callable[[dict[str, Any]], None] = lambda inputs: None

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        stream = self.device_stream
        assert stream is not None
        self.seen.append(inputs)
        self.before(inputs)
        stream.synchronize()
        x = inputs["x"]
        assert isinstance(x, DeviceTensor)
        values = np.frombuffer(ctypes.string_at(x.buffer.address, x.byte_size), np.float32).reshape(x.shape)
        doubled = stream.to_device(2 * values)
        strings = inputs.get("s", np.full((x.shape[0], 1), b"", np.object_))
        return {"y": device_tensor("y", DataType.FP32, x.shape, doubled), "t": strings}


def request(*values: float, device: bool = False, **more: Any) -> InferenceRequest:
    """One row for each value."""
    array = np.array([[value, value] for value in values], np.float32)
    tensor = on_device("x", array) if device else Tensor.from_numpy("x", array)
    return InferenceRequest("m", [tensor], **more)


def strings(*texts: bytes) -> Tensor:
    return Tensor.from_numpy("s", np.array([[text] for text in texts], np.object_))


async def loaded(config: ModelConfig = CONFIG) -> Doubler:
    backend = Doubler(InstanceSpec(ModelSource("m", 1, None, config), "m_0", InstanceKind.GPU))  # type: ignore[arg-type]  # nothing is read
    await backend.load()
    return backend


async def forgotten(backend: Doubler) -> None:
    """The instance's thread has let go of its last batch."""
    await backend._thread.run(backend.seen.clear)


def answers(result: BatchResult) -> list[Any]:
    found: list[Any] = []
    for response in result.responses:
        if isinstance(response, ServerError):
            found.append(response)
        else:
            found.append({tensor.name: tensor.as_numpy().tolist() for tensor in response.outputs})
    return found


def output(result: BatchResult, index: int, name: str = "y") -> Tensor:
    response = result.responses[index]
    assert isinstance(response, InferenceResponse)
    return next(tensor for tensor in response.outputs if tensor.name == name)


async def test_a_batch_from_the_host_and_back() -> None:
    """One copy there, one back; strings never leave."""
    backend = await loaded()
    first, second = request(1, 2), request(3)
    first.inputs.append(strings(b"a", b"b"))
    second.inputs.append(strings(b"c"))
    result = await backend.execute([first, second])
    assert answers(result) == [{"y": [[2, 2], [4, 4]], "t": [[b"a"], [b"b"]]}, {"y": [[6, 6]], "t": [[b"c"]]}]
    assert backend.runtime.copied == [24, 24, 24]  # the second is the model's own
    assert not isinstance(output(result, 0), DeviceTensor)
    await backend.unload()


async def test_what_is_on_the_device_stays_there() -> None:
    backend = await loaded()
    asked = request(1, device=True, device_outputs=frozenset({"y"}))
    result = await backend.execute([asked])
    given = asked.inputs[0]
    assert isinstance(given, DeviceTensor)
    assert backend.seen[0]["x"].buffer is given.buffer
    made = output(result, 0)
    assert isinstance(made, DeviceTensor)
    assert (reads_of(given), reads_of(made)) == (0, 0)
    assert made.as_numpy().tolist() == [[2, 2]]  # complete: the stream has been waited for
    await backend.unload()


async def test_a_mixed_batch() -> None:
    """Each request gets its rows where it wants them."""
    backend = await loaded()
    there = frozenset({"y"})
    batch = [request(1), request(2, 3, device=True), request(4, device_outputs=there), request(5, device_outputs=there)]
    result = await backend.execute(batch)
    assert [isinstance(output(result, index), DeviceTensor) for index in range(4)] == [False, False, True, True]
    assert [each["y"] for each in answers(result)] == [[[2, 2]], [[4, 4], [6, 6]], [[8, 8]], [[10, 10]]]
    await backend.unload()


async def test_parts_of_a_batch_keep_its_memory_and_nothing_else_does() -> None:
    backend = await loaded()
    there = frozenset({"y"})
    result = await backend.execute([request(1, device_outputs=there), request(2, device_outputs=there)])
    made = output(result, 1)
    del result
    await forgotten(backend)
    assert list(backend.runtime.live.values()) == [16]
    assert made.as_numpy().tolist() == [[4, 4]]
    del made
    assert backend.runtime.live == {}
    await backend.unload()


async def test_unwanted_outputs_are_not_copied() -> None:
    backend = await loaded()
    result = await backend.execute([request(1, requested_outputs=("t",))])
    assert answers(result) == [{"t": [[b""]]}]
    assert backend.runtime.copied == [8, 8]
    await backend.unload()


async def test_a_full_device_fails_what_does_not_fit_alone() -> None:
    """A batch that is too large is tried again one by one; the instance serves on."""
    backend = await loaded()
    backend.runtime.free_bytes = 40
    backend.before = lambda inputs: backend.seen.clear()
    result = await backend.execute([request(1), request(*range(4)), request(2)])
    found = answers(result)
    assert isinstance(found[1], Overloaded)
    assert [found[0]["y"], found[2]["y"]] == [[[2, 2]], [[4, 4]]]
    assert answers(await backend.execute([request(3)]))[0]["y"] == [[6, 6]]
    await forgotten(backend)
    assert backend.runtime.live == {}
    await backend.unload()


async def test_shapes_are_reshaped_and_filled_up() -> None:
    """`reshape` changes no bytes; a shape rule repeats the last row, wherever it is."""
    config = parse_pbtxt(
        """
        name: "m" max_batch_size: 4
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] reshape { shape: [ 1, 2 ] } } ]
        output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] reshape { shape: [ 1, 2 ] } } ]
        parameters { key: "shape_rules" value { string_value: "{\\"batch\\": {\\"buckets\\": [4]}}" } }
        """,
        source="test",
    )
    backend = await loaded(config)
    for device in (False, True):
        result = await backend.execute([request(1), request(2, device=device, device_outputs=frozenset({"y"}))])
        assert backend.seen[-1]["x"].shape == (4, 1, 2)
        assert backend.seen[-1]["x"].as_numpy().reshape(-1).tolist() == [1, 1, 2, 2, 2, 2, 2, 2]
        assert [each["y"] for each in answers(result)] == [[[2, 2]], [[4, 4]]]
    await backend.unload()


async def test_ragged_batches() -> None:
    config = parse_pbtxt(
        """
        name: "m" max_batch_size: 4
        input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
        batch_input [ {
          kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_FP32 source_input: "x"
        } ]
        output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
        batch_output [ { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" } ]
        """,
        source="test",
    )
    backend = await loaded(config)
    ragged = [Tensor.from_numpy("x", np.array([values], np.float32)) for values in ([1, 2], [3])]
    there = frozenset({"y"})
    result = await backend.execute([InferenceRequest("m", [tensor], device_outputs=there) for tensor in ragged])
    assert (backend.seen[0]["x"].shape, backend.seen[0]["ends"].as_numpy().tolist()) == ((3,), [2, 3])
    assert [each["y"] for each in answers(result)] == [[[2, 4]], [[6]]]
    assert not isinstance(output(result, 0), DeviceTensor)  # it is cut on the host
    await backend.unload()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"data_type": DataType.INT32}, "output 'y': the configuration expects TYPE_INT32, the model gave "),
    ({"dims": (3,)}, r"output 'y': the configuration expects shape \[-1, 3\], the model gave \[1, 2\]"),
]


@pytest.mark.parametrize("there", [frozenset({"y"}), frozenset[str]()], ids=["device", "host"])
@pytest.mark.parametrize(("change", "text"), WRONG)
async def test_outputs_that_are_not_as_configured(change: dict[str, Any], text: str, there: frozenset[str]) -> None:
    outputs = (msgspec.structs.replace(CONFIG.output[0], **change),)
    backend = await loaded(msgspec.structs.replace(CONFIG, output=outputs))
    with pytest.raises(Internal, match=text):
        await backend.execute([request(1, device_outputs=there)])
    await backend.unload()


async def test_too_few_rows() -> None:
    backend = await loaded()

    def lose_a_row(inputs: dict[str, Any]) -> None:
        inputs["x"] = inputs["x"].under("x", (1, 2))
        inputs["x"].buffer = inputs["x"].buffer.part(0, 8)

    backend.before = lose_a_row
    batch: Sequence[InferenceRequest] = [request(1, device_outputs=frozenset({"y"})) for _ in range(2)]
    with pytest.raises(ServerError, match="failed to split the output tensor 'y'"):
        await backend.execute(batch)
    await backend.unload()
