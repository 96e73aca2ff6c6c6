"""Every call of NVIDIA's HTTP client, run as a script against the URL in its argument.

It is a process of its own because the client is built on gevent. It prints what each call gave as one JSON object.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

import numpy as np
import tritonclient.http as client_module
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor


def main(url: str) -> None:
    with client_module.InferenceServerClient(url, concurrency=2) as client:
        found = {}
        for part in (looks, controls, settings, inferences, in_shared_memory, classified, failures):
            found.update(part(client))
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


def settings(client: Any) -> dict[str, Any]:
    """Trace settings are one for all models here; the log's are answered as they are afterwards."""
    return {
        "trace": client.get_trace_settings(),
        "trace_of_model": client.update_trace_settings("echo", {"trace_rate": "7", "trace_level": ["TIMESTAMPS"]}),
        "trace_cleared": client.update_trace_settings(settings={"trace_count": None})["trace_rate"],
        "log": client.get_log_settings(),
        "log_changed": client.update_log_settings({"log_verbose_level": 2, "log_info": False}),
    }


def in_shared_memory(client: Any) -> dict[str, Any]:
    """Numbers and strings into one region, back out of another."""
    numbers = np.arange(16, dtype=np.float32)
    words = np.array(["größe", "", "b"], dtype=np.object_)
    words_size = sum(len(word.encode()) + 4 for word in words)
    inputs = shm.create_shared_memory_region("in", f"/trioton_test_in_{os.getpid()}", 64 + words_size)
    outputs = shm.create_shared_memory_region("out", f"/trioton_test_out_{os.getpid()}", 256)
    try:
        shm.set_shared_memory_region(inputs, [numbers, serialize_byte_tensor(words)])
        client.register_system_shared_memory("in", f"/trioton_test_in_{os.getpid()}", 64 + words_size)
        client.register_system_shared_memory("out", f"/trioton_test_out_{os.getpid()}", 192, offset=64)
        status = client.get_system_shared_memory_status()
        tensors = [client_module.InferInput("A", [16], "FP32"), client_module.InferInput("B", [3], "BYTES")]
        tensors[0].set_shared_memory("in", 64)
        tensors[1].set_shared_memory("in", words_size, offset=64)
        wanted = [client_module.InferRequestedOutput(f"OUT_{name}") for name in "AB"]
        wanted[0].set_shared_memory("out", 64)
        wanted[1].set_shared_memory("out", 128, offset=64)
        result = client.infer("echo", tensors, outputs=wanted)
        got_numbers = shm.get_contents_as_numpy(outputs, np.float32, [16], offset=64)
        got_words = shm.get_contents_as_numpy(outputs, np.object_, [3], offset=128)
        found = {
            "regions": [entry["name"] for entry in status],
            "one_region": client.get_system_shared_memory_status("out"),
            "numbers": bool(np.array_equal(got_numbers, numbers)),
            "words": [word.decode() for word in got_words],
            "in_response": [sorted(output) for output in result.get_response()["outputs"]],
        }
        found["one_region"][0].pop("key")
        client.unregister_system_shared_memory("in")
        found["after_one"] = [entry["name"] for entry in client.get_system_shared_memory_status()]
        client.unregister_system_shared_memory()
        found["after_all"] = client.get_system_shared_memory_status()
        client.unregister_cuda_shared_memory()
        found["cuda"] = client.get_cuda_shared_memory_status()
    finally:
        shm.destroy_shared_memory_region(inputs)
        shm.destroy_shared_memory_region(outputs)
    return {"shared_memory": found}


def classified(client: Any) -> dict[str, Any]:
    scores = np.array([[0.25, 0.5, 0.125]], dtype=np.float32)
    plain = client_module.InferInput("A", scores.shape, "FP32")
    plain.set_data_from_numpy(scores)
    found: list[Any] = []
    for binary in (True, False):
        wanted = client_module.InferRequestedOutput("OUT_A", class_count=2, binary_data=binary)
        result = client.infer("echo", [plain], outputs=[wanted])
        values = result.as_numpy("OUT_A")
        found.append([e.decode() if isinstance(e, bytes) else e for e in values.reshape(-1)])
        assert values.shape == (1, 2)
    return {"classified": found}


def failures(client: Any) -> dict[str, Any]:
    plain = client_module.InferInput("A", [1], "FP32")
    plain.set_data_from_numpy(np.zeros(1, np.float32))
    lost: Any = client_module.InferInput("A", [1], "FP32")
    lost.set_shared_memory("lost", 4)
    calls: dict[str, Any] = {
        "unknown": lambda: client.infer("none", [plain]),
        "decoupled": lambda: client.infer("many", [plain]),
        "lost_region": lambda: client.infer("echo", [lost]),
        "unknown_region": lambda: client.get_system_shared_memory_status("lost"),
        "no_segment": lambda: client.register_system_shared_memory("r", "/trioton_test_none", 8),
        "no_gpu": lambda: client.register_cuda_shared_memory("r", base64.b64encode(bytes(64)), 0, 8),
        "trace_of_unknown": lambda: client.get_trace_settings("none"),
        "log_file": lambda: client.update_log_settings({"log_file": "x"}),
    }
    found: dict[str, list[str]] = {}
    for name, call in calls.items():
        try:
            call()
        except InferenceServerException as exc:
            found[name] = [str(exc.status()), str(exc.message())]
    return {"failures": found}


if __name__ == "__main__":
    main(sys.argv[1])
