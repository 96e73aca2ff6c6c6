"""Several repositories: registered and dropped while the server runs, and namespaces, with NVIDIA's clients."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc  # type: ignore[import-untyped]  # ships no types
import pytest
from tritonclient.utils import InferenceServerException

from protocol.proto import message_class
from tests.e2e.client import Client, status_of
from tests.e2e.generations import ask, write_onnx
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_metrics import scrape


def over_http(server: ServerProcess, method: str, path: str = "", body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.addresses['http']}/v2/repository{path}", method=method, data=data)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error"]


def over_grpc(server: ServerProcess, name: str, **fields: Any) -> Any:
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        call = channel.unary_unary(
            f"/trioton.RepositoryControl/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_class(f"trioton.Repository{name}Response").FromString,
        )
        return call(message_class(f"trioton.Repository{name}Request")(**fields), timeout=30)


@pytest.mark.parametrize("by", ["http", "grpc"])
def test_a_repository_is_registered_and_dropped(tmp_path: Path, by: str) -> None:
    a, b = tmp_path / "a", str(tmp_path / "b")
    write_onnx(a / "m", 1)
    write_onnx(tmp_path / "b" / "m", 2)
    flags = ("--model-control-mode=explicit", "--load-model=m")
    with ServerProcess(*flags, repository=a) as server, Client(by, server.addresses[by]) as client:
        if by == "http":
            assert over_http(server, "POST", "/register", {"path": b, "model_names": {"m": "n"}}) == (200, None)
            assert over_http(server, "POST", "/register", {"path": b}) == (
                400,
                f"model repository '{b}' has already been registered",
            )
        else:
            repository = message_class("trioton.ModelRepository")(path=b, model_names={"m": "n"})
            over_grpc(server, "Register", repository=repository)
            with pytest.raises(grpc.RpcError) as raised:
                over_grpc(server, "Register", repository=repository)
            assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS
        listed = over_http(server, "GET")[1]
        assert listed == [{"path": str(a)}, {"path": b, "model_names": {"m": "n"}}]
        assert [each.path for each in over_grpc(server, "List").repositories] == [str(a), b]
        client.raw.load_model("n")
        assert (ask(client, "m", 5)[0], ask(client, "n", 5)[0]) == (1, 2)
        if by == "http":
            assert over_http(server, "POST", "/unregister", {"path": b}) == (200, None)
        else:
            over_grpc(server, "Unregister", path=b)
        assert ask(client, "n", 6)[0] == 2
        with pytest.raises(InferenceServerException, match="failed to poll from model repository") as refused:
            client.raw.load_model("n")
        assert status_of(refused.value) == "INVALID_ARGUMENT"


def test_outside_explicit_mode_repositories_stay(tmp_path: Path) -> None:
    write_onnx(tmp_path / "a" / "m", 1)
    with ServerProcess("--model-control-mode=poll", repository=tmp_path / "a") as server:
        text = "is not allowed if model control mode is not EXPLICIT"
        assert over_http(server, "POST", "/register", {"path": str(tmp_path)}) == (
            501,
            f"repository registration {text}",
        )
        with pytest.raises(grpc.RpcError) as raised:
            over_grpc(server, "Unregister", path=str(tmp_path / "a"))
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert raised.value.details() == f"repository unregistration {text}"


def test_namespaces(tmp_path: Path) -> None:
    """Equal names in two repositories, in every place where a client meets them."""
    a, b = tmp_path / "a", tmp_path / "b"
    for place, generation in ((a, 1), (b, 2)):
        write_onnx(place / "m", generation)
    write_onnx(b / "only", 3)
    flags = (f"--model-repository={b}", "--model-namespacing=true", "--model-control-mode=explicit")
    with ServerProcess(*flags, "--load-model=*", repository=a) as server:
        for protocol in ("http", "grpc"):
            with Client(protocol, server.addresses[protocol]) as client:
                assert ask(client, "only", 1)[0] == 3
                with pytest.raises(InferenceServerException, match="There are 2 identifiers of model 'm'") as raised:
                    ask(client, "m", 1)
                assert status_of(raised.value) == "INVALID_ARGUMENT"
        with Client("http", server.addresses["http"]) as client:
            index = client.raw.get_model_repository_index()
            assert [(each["namespace"], each["name"]) for each in index] == [
                (str(a), "m"),
                (str(b), "m"),
                (str(b), "only"),
            ]
        with Client("grpc", server.addresses["grpc"]) as client:
            assert (ask(client, f"{a}::m", 1)[0], ask(client, f"{b}::m", 1)[0]) == (1, 2)
            path = f"/models/{quote(f'{b}::m', safe='')}/unload"  # this client would leave the slashes as they are
            assert over_http(server, "POST", path) == (200, None)
            assert ask(client, "m", 1)[0] == 1
        lines = [line for line in scrape(server).splitlines() if line.startswith("nv_inference_request_success{")]
        assert any(f'namespace="{a}"' in line and 'model="m"' in line for line in lines), lines
