"""The checksum agent in a server: what was changed on the way does not serve, and what serves goes on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs, status_of
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_load_unload import state


def test_a_model_that_was_changed_is_not_loaded(tmp_path: Path) -> None:
    add_add_sub(tmp_path / "add_sub", versions=(1,))
    file = tmp_path / "add_sub" / "1" / "model.onnx"
    whole = file.read_bytes()
    with (tmp_path / "add_sub" / "config.pbtxt").open("a") as config:
        digests = {
            "MD5": hashlib.md5(whole, usedforsecurity=False).hexdigest(),
            "SHA256": hashlib.sha256(whole).hexdigest(),
        }
        config.write('model_repository_agents { agents [ { name: "checksum"\n')
        for name, digest in digests.items():
            config.write(f'parameters {{ key: "{name}:1/model.onnx" value: "{digest}" }}\n')
        config.write("} ] }\n")
    with (
        ServerProcess("--model-control-mode=explicit", repository=tmp_path) as server,
        Client("grpc", server.addresses["grpc"]) as client,
    ):
        client.raw.load_model("add_sub")
        file.write_bytes(whole + b"\0")
        with pytest.raises(InferenceServerException) as raised:
            client.raw.load_model("add_sub")
        assert status_of(raised.value) == "INVALID_ARGUMENT"
        found = hashlib.md5(whole + b"\0", usedforsecurity=False).hexdigest()
        expected = f"Mismatched MD5 hash for file 1/model.onnx, expect: {digests['MD5']}, got: {found}"
        assert expected in str(raised.value)
        assert client.infer("add_sub", add_sub_inputs())["OUTPUT0"].shape == (1, 16)
        client.raw.unload_model("add_sub")
        with pytest.raises(InferenceServerException, match="Mismatched MD5 hash"):
            client.raw.load_model("add_sub")
        assert state(client, "add_sub")[0] == "UNAVAILABLE"
        assert expected in state(client, "add_sub")[1]
        file.write_bytes(whole)
        client.raw.load_model("add_sub")
        assert client.infer("add_sub", add_sub_inputs())["OUTPUT0"].shape == (1, 16)
