"""A whole server with the flags of gRPC: TLS, shared memory, restrictions, limits, and the metric of refusals."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import trio
import tritonclient.grpc as triton
import trustme
from tritonclient.utils import InferenceServerException, shared_memory

from tests.e2e.repository import add_add_sub
from trioton.flags.fields import read_arguments, rows
from trioton.server import Server, StartError, open_server
from trioton.service_names import address_text
from trioton.settings import Settings

pytestmark = pytest.mark.slow

LOCAL = "127.0.0.1"
ROW = np.arange(16, dtype=np.float32).reshape(1, 16)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_add_sub(tmp_path / "models" / "add_sub", versions=(1,))
    return tmp_path / "models"


def settings(repository: Path, *arguments: str) -> Settings:
    """Settings from arguments as on the command line."""
    local = (f"--http-address={LOCAL}", f"--grpc-address={LOCAL}", "--http-port=0", "--grpc-port=0", "--metrics-port=0")
    everything = (f"--model-repository={repository}", *local, *arguments)
    return Settings(**read_arguments(rows(Settings), everything))


async def use(server: Server, call: Callable[[triton.InferenceServerClient], Any], **options: Any) -> Any:
    def with_client() -> Any:
        with triton.InferenceServerClient(address_text(server.addresses["grpc"]), **options) as client:
            return call(client)

    return await trio.to_thread.run_sync(with_client)


def inputs() -> list[triton.InferInput]:
    made = [triton.InferInput(name, ROW.shape, "FP32") for name in ("INPUT0", "INPUT1")]
    for one in made:
        one.set_data_from_numpy(ROW)
    return made


def infer(client: triton.InferenceServerClient, **options: Any) -> Any:
    return client.infer("add_sub", inputs(), **options).as_numpy("OUTPUT0")


async def test_tls(repository: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert(LOCAL)
    authority.cert_pem.write_to_path(str(tmp_path / "root.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    flags = (
        "--grpc-use-ssl=1",
        f"--grpc-server-cert={tmp_path}/server.pem",
        f"--grpc-server-key={tmp_path}/server.key",
    )
    async with open_server(settings(repository, *flags)) as server:
        found = await use(server, infer, ssl=True, root_certificates=str(tmp_path / "root.pem"))
        np.testing.assert_array_equal(found, 2 * ROW)


async def test_a_certificate_that_is_not_there_keeps_the_server_from_starting(repository: Path) -> None:
    flags = ("--grpc-use-ssl=1", "--grpc-server-cert=/nowhere.pem", "--grpc-server-key=/nowhere.key")
    with pytest.raises(StartError, match=r"cannot read '/nowhere\.pem': No such file"):
        await Server(settings(repository, *flags)).run()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            ("--grpc-use-ssl=1", "--grpc-server-cert=/nowhere.pem", "--grpc-server-key=/n"),
            r"cannot read '/nowhere\.pem'",
        ),
        (
            ("--http-use-ssl=1", "--http-server-cert=/nowhere.pem", "--http-server-key=/n"),
            r"cannot read '/nowhere\.pem'",
        ),
        (("--auth-keys-file=/nowhere.toml",), r"--auth-keys-file: .*nowhere\.toml"),
    ],
)
async def test_files_are_read_before_the_models(
    repository: Path, flags: tuple[str, ...], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Loading them may take long."""
    with caplog.at_level(logging.DEBUG), pytest.raises(StartError, match=text):
        await Server(settings(repository, *flags)).run()
    assert not [record for record in caplog.records if "add_sub" in record.getMessage()]


async def test_shared_memory(repository: Path) -> None:
    """Inputs and an output in one region, through the real core."""
    name, size = f"trioton_test_{uuid.uuid4().hex}", ROW.nbytes

    def call(client: triton.InferenceServerClient) -> None:
        handle = shared_memory.create_shared_memory_region("region", f"/{name}", 3 * size)
        try:
            shared_memory.set_shared_memory_region(handle, [ROW, ROW])
            client.register_system_shared_memory("region", f"/{name}", 3 * size)
            made = [triton.InferInput(one, ROW.shape, "FP32") for one in ("INPUT0", "INPUT1")]
            for position, one in enumerate(made):
                one.set_shared_memory("region", size, offset=position * size)
            wanted = triton.InferRequestedOutput("OUTPUT0")
            wanted.set_shared_memory("region", size, offset=2 * size)
            client.infer("add_sub", made, outputs=[wanted])
            found = shared_memory.get_contents_as_numpy(handle, np.float32, ROW.shape, offset=2 * size).copy()
            np.testing.assert_array_equal(found, 2 * ROW)
        finally:
            shared_memory.destroy_shared_memory_region(handle)

    async with open_server(settings(repository, "--allow-client-shm=true")) as server:
        await use(server, call)


async def test_restrictions_and_keys_hold_for_grpc(repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.alice]\nkey = "a-key-of-enough-characters"\nallow = ["inference"]\n')
    flags = ("--grpc-restricted-protocol=inference:user=ann", f"--auth-keys-file={keys}")
    bearer = {"authorization": "Bearer a-key-of-enough-characters"}

    def call(client: triton.InferenceServerClient) -> Any:
        with pytest.raises(InferenceServerException, match="a valid key is needed"):
            infer(client)
        with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-user'"):
            infer(client, headers=bearer)
        return infer(client, headers={**bearer, "triton-grpc-protocol-user": "ann"})

    async with open_server(settings(repository, *flags)) as server:
        np.testing.assert_array_equal(await use(server, call), 2 * ROW)


async def test_refusals_are_in_the_metrics(repository: Path) -> None:
    def call(client: triton.InferenceServerClient) -> None:
        with pytest.raises(InferenceServerException, match="larger than the server's limit of 100 bytes") as caught:
            infer(client)
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"

    async with open_server(settings(repository, "--grpc-max-message-size=100")) as server:
        await use(server, call)
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://{address_text(server.addresses['metrics'])}/metrics")).text
        (line,) = [line for line in text.splitlines() if line.startswith("trioton_limit_refusals_total{")]
        assert all(part in line for part in ('protocol="grpc"', 'limit="max_message_size"')), line
        assert line.endswith((" 1", " 1.0"))


async def test_two_servers_share_a_port(repository: Path) -> None:
    async with open_server(settings(repository, "--reuse-grpc-port=true")) as first:
        port = first.addresses["grpc"][1]
        async with open_server(settings(repository, "--reuse-grpc-port=true", f"--grpc-port={port}")) as second:
            assert second.addresses["grpc"][1] == port
            np.testing.assert_array_equal(await use(second, infer), 2 * ROW)


NAMES = [
    "",
    "..",
    "../add_sub",
    "add_sub/../add_sub",
    "/etc",
    "add_sub\0",
    "\0",
    "a" * 5000,
    "add_sub/1",
    "%2e%2e",
    "ü\n",
]


@pytest.mark.parametrize("name", NAMES)
async def test_names_that_lead_out_of_the_repository(name: str, repository: Path) -> None:
    """Unknown, or no names at all; the server goes on."""

    def call(client: triton.InferenceServerClient) -> None:
        mine: list[Callable[[], Any]] = [
            lambda: client.get_model_metadata(name),
            lambda: client.get_model_config(name),
            lambda: client.infer(name, inputs()),
            lambda: client.load_model(name),
            lambda: client.load_model(name, config="{}", files={f"file:{name}/model.py": b"x"}),
            lambda: client.load_model("new", config="{}", files={f"file:1/{name}/../../x": b"x"}),
        ]
        for ask in mine:
            with pytest.raises(InferenceServerException) as caught:
                ask()
            assert caught.value.status() in ("StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND"), str(caught.value)
        client.unload_model(name)
        assert not client.is_model_ready(name)
        assert client.is_model_ready("add_sub")

    flags = ("--model-control-mode=explicit", "--load-model=add_sub")
    async with open_server(settings(repository, *flags)) as server:
        await use(server, call)
