"""Every call of NVIDIA's HTTP client that exists here, run as a script against the URL in its argument.

It is a process of its own because the client is built on gevent. It prints what each call gave as one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tritonclient.http as client_module
from tritonclient.utils import InferenceServerException


def main(url: str) -> None:
    with client_module.InferenceServerClient(url, concurrency=2) as client:
        found = {**looks(client), **controls(client), **inferences(client), **failures(client)}
    json.dump(found, sys.stdout)


def looks(client: Any) -> dict[str, Any]:
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": [
            client.is_model_ready("echo"),
            client.is_model_ready("echo", "1"),
            client.is_model_ready("wait"),
        ],
        "server": client.get_server_metadata()["name"],
        "metadata": client.get_model_metadata("with space", "1")["inputs"],
        "config": client.get_model_config("echo")["max_batch_size"],
        "statistics": [
            client.get_inference_statistics(*arguments)["model_stats"][0]["inference_count"]
            for arguments in ((), ("echo",), ("echo", "1"))
        ],
    }


def controls(client: Any) -> dict[str, Any]:
    client.load_model("plain")
    client.load_model("made", config='{"backend":"python"}', files={"file:1/model.py": b"\x00code"})
    client.unload_model("plain")
    client.unload_model("made", unload_dependents=True)
    return {"index": [entry["name"] for entry in client.get_model_repository_index()]}


def tensors() -> dict[str, tuple[str, Any]]:
    numbers = np.array([[0, 1, 2], [3, 4, 5]])
    names = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
    arrays: dict[str, tuple[str, Any]] = {name: (name, numbers.astype(name.lower())) for name in names}
    arrays["BOOL"] = ("BOOL", numbers % 2 == 0)
    arrays["FP16"] = ("FP16", numbers.astype(np.float16))
    arrays["FP32"] = ("FP32", numbers.astype(np.float32))
    arrays["FP64"] = ("FP64", numbers.astype(np.float64))
    arrays["BYTES"] = ("BYTES", np.array([["a", "größe"], ["", "b c"]], dtype=np.object_))
    return arrays


def inferences(client: Any) -> dict[str, Any]:
    """Which combinations of input and output encoding, and of compression, gave back what was sent."""
    good: list[str] = []
    for binary in (True, False):
        for algorithm in (None, "gzip", "deflate"):
            names = [name for name in tensors() if binary or name != "FP16"]  # the client has no FP16 in JSON
            inputs, outputs = [], []
            for name in names:
                datatype, array = tensors()[name]
                inputs.append(client_module.InferInput(name, array.shape, datatype))
                inputs[-1].set_data_from_numpy(array, binary_data=binary)
                outputs.append(client_module.InferRequestedOutput(f"OUT_{name}", binary_data=binary))
            result = client.infer(
                "echo",
                inputs,
                outputs=outputs,
                request_id="42",
                parameters={"custom": 5},
                priority=2,
                timeout=1000,
                sequence_id=9,
                sequence_start=True,
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            for name in names:
                sent, got = tensors()[name][1], result.as_numpy(f"OUT_{name}")
                if name == "BYTES":
                    got = np.array([e.decode() if isinstance(e, bytes) else e for e in got.reshape(-1)], object)
                    got = got.reshape(sent.shape)
                assert np.array_equal(got, sent), (name, got)
            assert result.get_response()["id"] == "42"
            good.append(f"{'binary' if binary else 'json'} {algorithm}")
    array = np.arange(4, dtype=np.float32)
    plain = client_module.InferInput("A", array.shape, "FP32")
    plain.set_data_from_numpy(array)
    result = client.async_infer("echo", [plain]).get_result()
    assert np.array_equal(result.as_numpy("OUT_A"), array)
    return {"good": good, "default_outputs": [output["name"] for output in result.get_response()["outputs"]]}


def failures(client: Any) -> dict[str, list[str]]:
    plain = client_module.InferInput("A", [1], "FP32")
    plain.set_data_from_numpy(np.zeros(1, np.float32))
    wanted = client_module.InferRequestedOutput("OUT_A", class_count=3)
    calls = {
        "unknown": lambda: client.infer("none", [plain]),
        "classification": lambda: client.infer("echo", [plain], outputs=[wanted]),
        "trace": client.get_trace_settings,
        "log": client.get_log_settings,
        "system": client.get_system_shared_memory_status,
        "cuda": client.get_cuda_shared_memory_status,
    }
    found: dict[str, list[str]] = {}
    for name, call in calls.items():
        try:
            call()
        except InferenceServerException as exc:
            found[name] = [str(exc.status()), str(exc.message())]
    return found


if __name__ == "__main__":
    main(sys.argv[1])
