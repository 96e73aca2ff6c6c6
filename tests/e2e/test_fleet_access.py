"""A fleet with TLS, keys and restricted APIs, and one that is scaled by its load."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
import trustme
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.client import Client
from tests.e2e.fleet_process import FleetProcess, needs_haproxy
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import eventually

pytestmark = [needs_haproxy, pytest.mark.slow]

FLEET_KEY, CALLER_KEY = "fleet-key-" + "f" * 32, "caller-key-" + "c" * 32
KEYS = f"""
[keys.fleet]
key = "{FLEET_KEY}"
allow = ["all"]
[keys.caller]
key = "{CALLER_KEY}"
allow = ["inference", "metadata"]
"""
ONES = np.ones((1, 16), np.float32)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[FleetProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    certificate = authority.issue_cert("127.0.0.1")
    chain, private = folder / "chain.pem", folder / "private.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    private.write_bytes(certificate.private_key_pem.bytes())
    (folder / "keys.toml").write_text(KEYS)
    (folder / "keys.toml").chmod(0o600)
    (folder / "key").write_text(f"{FLEET_KEY}\n")
    add_add_sub(folder / "models" / "add_sub", versions=(1,))
    tls = [
        flag
        for word in ("http", "grpc")
        for flag in (f"--{word}-use-ssl=true", f"--{word}-server-cert={chain}", f"--{word}-server-key={private}")
    ]
    access = (
        f"--auth-keys-file={folder / 'keys.toml'}",
        f"--fleet-key-file={folder / 'key'}",
        '--http-restricted-api=health,model-repository:admin=it\'s 100% "mine"',
    )
    flags = ("--model-control-mode=explicit", "--load-model=add_sub", "--replicas=2", "--slow-start-secs=0")
    with FleetProcess(folder / "models", *tls, *access, *flags) as fleet:
        yield fleet


def ask(
    fleet: FleetProcess, authority: trustme.CA, path: str, body: object, headers: dict[str, str]
) -> tuple[int, Any]:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"https://{fleet.addresses['http']}{path}", data, headers, method="POST")
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_requests_come_over_tls_with_their_keys(guarded: FleetProcess, authority: trustme.CA) -> None:
    tensor = {"datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}
    body = {"inputs": [{"name": name, **tensor} for name in ("INPUT0", "INPUT1")]}
    path = "/v2/models/add_sub/infer"
    status, answer = ask(guarded, authority, path, body, {"authorization": f"Bearer {CALLER_KEY}"})
    assert (status, answer["outputs"][0]["data"]) == (200, [2.0] * 16)
    assert ask(guarded, authority, path, body, {})[0] == 401


def test_replicas_check_who_may_load(guarded: FleetProcess, authority: trustme.CA) -> None:
    path, admin = "/v2/repository/index", {"admin": 'it\'s 100% "mine"'}
    assert ask(guarded, authority, path, {}, {"authorization": f"Bearer {CALLER_KEY}", **admin})[0] == 403
    assert ask(guarded, authority, path, {}, {"authorization": f"Bearer {FLEET_KEY}"})[0] == 403
    status, index = ask(guarded, authority, path, {}, {"authorization": f"Bearer {FLEET_KEY}", **admin})
    assert (status, index[0]["state"]) == (200, "READY")


def test_grpc_comes_over_tls(guarded: FleetProcess, authority: trustme.CA) -> None:
    roots = authority.cert_pem.bytes()
    address = guarded.addresses["grpc"]
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(roots)) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelMetadataRequest(name="add_sub")
        answer = stub.ModelMetadata(request, metadata=[("authorization", f"Bearer {CALLER_KEY}")])
        assert answer.name == "add_sub"
        with pytest.raises(grpc.RpcError) as raised:
            stub.RepositoryIndex(
                service_pb2.RepositoryIndexRequest(), metadata=[("authorization", f"Bearer {CALLER_KEY}")]
            )
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        index = stub.RepositoryIndex(
            service_pb2.RepositoryIndexRequest(), metadata=[("authorization", f"Bearer {FLEET_KEY}")]
        )
        assert [each.name for each in index.models] == ["add_sub"]


def test_the_fleet_wants_its_key(guarded: FleetProcess) -> None:
    assert guarded.call("GET", "/v2/fleet")[0] == 401


def test_only_loads_have_large_bodies(guarded: FleetProcess) -> None:
    status, answer = guarded.call("POST", "/v2/fleet/scale", {"replicas": "4" * (2 << 20)})
    assert (status, "expected 1048576 at most" in answer["error"]) == (413, True)


def test_a_large_load_is_refused_before_it_has_come(guarded: FleetProcess, authority: trustme.CA) -> None:
    """It announces a gigabyte, and sends none of it."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    host, port = guarded.addresses["http"].split(":")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
    connection.putrequest("POST", "/v2/repository/models/add_sub/load")
    connection.putheader("content-length", str(1 << 30))
    connection.putheader("admin", 'it\'s 100% "mine"')
    connection.putheader("authorization", f"Bearer {CALLER_KEY}")
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()


def test_a_load_over_grpc_is_refused_by_its_key(guarded: FleetProcess, authority: trustme.CA) -> None:
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with grpc.secure_channel(guarded.addresses["grpc"], credentials) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.RepositoryModelLoadRequest(model_name="add_sub")
        with pytest.raises(grpc.RpcError) as raised:
            stub.RepositoryModelLoad(request, metadata=[("authorization", f"Bearer {CALLER_KEY}")])
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        stub.RepositoryModelLoad(request, metadata=[("authorization", f"Bearer {FLEET_KEY}")])


def test_it_is_scaled_by_its_queue(tmp_path: Path) -> None:
    copy_python_model("slow", tmp_path)
    scaling = ("--scale-by=queue", "--scale-target=2", "--scale-interval-secs=0.5", "--max-replicas=2")
    cooldown = ("--scale-up-cooldown-secs=1", "--scale-down-cooldown-secs=5", "--slow-start-secs=0")
    with FleetProcess(tmp_path, *scaling, *cooldown, "--replicas=1") as fleet:
        fleet.wait_for_replicas(1)
        stop = threading.Event()
        threads = [threading.Thread(target=_keep_asking, args=(fleet.addresses["http"], stop)) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            assert eventually(lambda: len(fleet.replicas()) == 2), fleet.status()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        fleet.wait_for_line("scaling from 1 to 2 replicas .* above the target of 2")
        assert eventually(lambda: len(fleet.status()["replicas"]) == 1), fleet.status()
        fleet.wait_for_line("scaling from 2 to 1 replicas .* below the target of 2")


def _keep_asking(address: str, stop: threading.Event) -> None:
    seconds, value = np.full(1, 0.2, np.float32), np.ones(1, np.int64)
    with Client("http", address) as client:
        while not stop.is_set():
            client.infer("slow", {"SECONDS": seconds, "VALUE": value})
