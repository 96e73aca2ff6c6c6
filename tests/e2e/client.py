"""NVIDIA's `tritonclient`, HTTP and gRPC behind one face."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

Array: TypeAlias = NDArray[Any]
Inputs: TypeAlias = Mapping[str, Array]

CONCURRENCY = 16


class Client:
    """`api` is the client module, `raw` its client object; the two modules name everything alike."""

    def __init__(self, protocol: str, address: str) -> None:
        self.protocol = protocol
        self.address = address
        self.api: Any = importlib.import_module(f"tritonclient.{protocol}")
        more = {"concurrency": CONCURRENCY} if protocol == "http" else {}
        self.raw: Any = self.api.InferenceServerClient(address, **more)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.raw.close()

    def tensors(self, inputs: Inputs, **how: Any) -> list[Any]:
        return tensors(self.api, inputs, **how)

    def infer(self, model: str, inputs: Inputs, *, outputs: Sequence[str] = (), **more: Any) -> dict[str, Array]:
        """Run a model; answers its outputs by name. `more` is passed on to the client."""
        wanted = [self.api.InferRequestedOutput(name) for name in outputs] or None
        result = self.raw.infer(model, self.tensors(inputs), outputs=wanted, **more)
        return outputs_of(result)

    def is_ready(self, model: str, version: str = "") -> bool:
        """Whether a version serves; a version that is not there does not."""
        return bool(self.raw.is_model_ready(model, version))

    def json(self, method: str, *arguments: Any, **more: Any) -> Any:
        """What a call that is not an inference answers, in JSON's types over either protocol."""
        if self.protocol == "grpc":
            more["as_json"] = True
        return getattr(self.raw, method)(*arguments, **more)


def tensors(api: Any, inputs: Inputs, **how: Any) -> list[Any]:
    """The client's input objects; `how` is passed on to `set_data_from_numpy`."""
    made = []
    for name, array in inputs.items():
        tensor = api.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, **how)
        made.append(tensor)
    return made


def outputs_of(result: Any) -> dict[str, Array]:
    response = result.get_response()
    names = (
        [output["name"] for output in response["outputs"]]
        if isinstance(response, dict)
        else [output.name for output in response.outputs]
    )
    return {name: result.as_numpy(name) for name in names}


def status_of(error: InferenceServerException) -> str:
    """The status in gRPC's words; HTTP's codes are translated by the table of the protocol's reference."""
    status = str(error.status())
    return HTTP_STATUS.get(status, status.removeprefix("StatusCode."))


HTTP_STATUS = {
    "400": "INVALID_ARGUMENT",
    "404": "NOT_FOUND",
    "413": "RESOURCE_EXHAUSTED",
    "500": "INTERNAL",
    "501": "UNIMPLEMENTED",
    "503": "UNAVAILABLE",
}


def add_sub_inputs(rows: int = 1, *, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {f"INPUT{i}": random.random((rows, 16), dtype=np.float32) for i in (0, 1)}


def slow_inputs(value: int, seconds: float) -> dict[str, Array]:
    return {"SECONDS": np.array([seconds], np.float32), "VALUE": np.array([value], np.int64)}
