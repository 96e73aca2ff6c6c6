"""Models of buckets: loaded, followed as they change, and kept through whatever happens to the store or the server."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import tarfile
import threading
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs
from tests.e2e.generations import STRIDE, write_onnx, write_python
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_repositories import over_http
from tests.emulators import Store, moto, s3_store
from tests.repository.stores import endpoint as endpoints
from tests.repository.stores.endpoint import answer, endpoint

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")
POLL = ("--model-control-mode=poll", "--repository-poll-secs=0.2")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers of the repository `models` in a bucket; all of a test share a cache."""
    with ExitStack() as servers:

        def start(url: str, *flags: str) -> ServerProcess:
            cache = f"--model-repository-cache-dir={tmp_path / 'cache'}"
            return servers.enter_context(ServerProcess(cache, *flags, repository=f"{url}/models"))

        yield start


def generation(client: Client, name: str = "m") -> int:
    """Which of its generations a model answers with; -1 where it does not."""
    try:
        return int(client.infer(name, {"IN": np.zeros((1, 1), np.int64)})["OUT"][0, 0]) // STRIDE
    except InferenceServerException:
        return -1


def cached(root: Path) -> list[Path]:
    return sorted((root / "cache" / "files").glob("*/*"))


def work(root: Path) -> list[str]:
    """What servers have in the cache beside files: parts of files, and folders of models."""
    return [str(path) for kind in ("partial", "models") for path in (root / "cache" / "work").glob(f"*/{kind}/*")]


def test_load_infer_and_reload(store: Store, tmp_path: Path, serve: Callable[..., ServerProcess]) -> None:
    """In each kind of store. Of a changed model only what has changed is downloaded, and nothing by the next server."""
    add_add_sub(tmp_path / "models" / "add_sub", versions=(1, 2))
    write_onnx(tmp_path / "models" / "m", 1)
    store.upload(tmp_path / "models", "models")
    server = serve(store.url, *EXPLICIT)
    for protocol in ("http", "grpc"):
        with Client(protocol, server.addresses[protocol]) as client:
            assert client.infer("add_sub", add_sub_inputs())["OUTPUT0"].shape == (1, 16)
            assert generation(client) == 1
    with Client("grpc", server.addresses["grpc"]) as client:
        before = cached(tmp_path)
        write_onnx(tmp_path / "models" / "m", 2)
        store.upload(tmp_path / "models", "models")
        client.raw.load_model("m")
        assert generation(client) == 2
        assert len(cached(tmp_path)) == len(before) + 1
        client.raw.unload_model("add_sub")
        client.raw.load_model("add_sub")
        assert client.is_ready("add_sub", "2")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert work(tmp_path) == []
    again = serve(store.url, *EXPLICIT)
    with Client("http", again.addresses["http"]) as client:
        assert generation(client) == 2
    assert "downloading" not in again.log


def test_polling_follows_a_bucket(store: Store, tmp_path: Path, serve: Callable[..., ServerProcess]) -> None:
    """Models and versions come, change and go."""
    models = tmp_path / "models"
    write_onnx(models / "m", 1)
    store.upload(models, "models")
    server = serve(store.url, *POLL)
    with Client("http", server.addresses["http"]) as client:
        assert generation(client) == 1
        write_onnx(models / "m", 2)
        write_python(models / "new", 7)
        store.upload(models, "models")
        assert eventually(lambda: (generation(client), generation(client, "new")) == (2, 7))
        write_onnx(models / "m", 3, version=2)
        store.upload(models, "models")
        assert eventually(lambda: generation(client) == 3)
        store.delete("models/m/2/model.onnx")
        assert eventually(lambda: generation(client) == 2)
        for key in store.keys("models/m"):
            store.delete(key)
        assert eventually(lambda: not client.is_ready("m"))
        assert generation(client, "new") == 7
        assert eventually(lambda: len(work(tmp_path)) == 1)  # the folder of the model that is left


def test_a_store_that_goes_away_and_comes_back(tmp_path: Path, serve: Callable[..., ServerProcess], s3: Store) -> None:
    """Models serve on, polled or not; a load says why it fails; the index has what was loaded."""
    write_onnx(tmp_path / "models" / "m", 1)
    with ExitStack() as stores:
        store = s3_store(stores.enter_context(moto()), "bucket")
        store.upload(tmp_path / "models", "models")
        explicit, polling = serve(store.url, *EXPLICIT), serve(store.url, *POLL)
        assert explicit.addresses
        assert polling.addresses
    polling.wait_for_line(r"model repository '.*bucket/models' is not polled: .*\(no connection\)")
    for server in (explicit, polling):
        with Client("http", server.addresses["http"]) as client:
            assert generation(client) == 1
            assert client.raw.is_server_ready() is True
            [entry] = client.json("get_model_repository_index")
            assert (entry["name"], entry["state"]) == ("m", "READY")
    with Client("http", explicit.addresses["http"]) as client:
        with pytest.raises(InferenceServerException, match=r"cannot list 'models/m/': the store did not answer"):
            client.raw.load_model("m")
        assert generation(client) == 1


def test_polling_loads_what_could_not_be_downloaded(
    s3: Store, tmp_path: Path, serve: Callable[..., ServerProcess]
) -> None:
    """As soon as it can be, though nothing changes in the bucket."""
    write_onnx(tmp_path / "models" / "m", 1)
    s3.upload(tmp_path / "models", "models")
    is_broken = threading.Event()
    is_broken.set()

    def break_off(request: http.server.BaseHTTPRequestHandler) -> None:
        if is_broken.is_set() and "model.onnx" in request.path:
            answer(503)(request)
        else:
            forward(request, s3)

    with endpoint(break_off) as address:
        server = serve(f"s3://{address.removeprefix('http://')}/bucket", *POLL, "--exit-on-error=false")
        with Client("http", server.addresses["http"]) as client:
            [entry] = client.json("get_model_repository_index")
            assert (entry["state"], entry["reason"][-12:]) == ("UNAVAILABLE", "(status 503)")
            is_broken.clear()
            assert eventually(lambda: generation(client) == 1)
            is_broken.set()
            write_onnx(tmp_path / "models" / "m", 2)
            s3.upload(tmp_path / "models", "models")
            assert eventually(lambda: "(status 503)" in client.json("get_model_repository_index")[0].get("reason", ""))
            assert generation(client) == 1
            is_broken.clear()
            assert eventually(lambda: generation(client) == 2)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("absent", "there is no bucket 'absent' (status 404, NoSuchBucket"),
        ("127.0.0.1:1/bucket", "the store did not answer as it should (no connection)"),
    ],
)
def test_a_start_without_its_bucket(s3: Store, serve: Callable[..., ServerProcess], place: str, expected: str) -> None:
    url = f"s3://{place}" if ":" in place else f"{s3.url.rpartition('/')[0]}/{place}"
    server = serve(url)
    assert server.wait() == 1
    assert f"model repository {url}/models: cannot list 'models/': {expected}" in server.log
    assert "Traceback" not in server.log


def test_a_start_with_a_wrong_key(
    new_store: Callable[[str], Store], serve: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_store("as").url
    monkeypatch.setenv("AZURE_STORAGE_KEY", "AAAA")
    server = serve(url)
    assert server.wait() == 1
    assert "was denied (status 403, AuthorizationFailure" in server.log
    assert "AAAA" not in server.log


def test_what_is_no_url_of_a_store() -> None:
    with ServerProcess(repository="s3://") as server:
        assert server.wait() == 1
    assert "--model-repository: expected s3://bucket/path, s3://host:port/bucket/path" in server.log


def test_the_credential_file(
    s3: Store, tmp_path: Path, serve: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is taken before the environment."""
    write_onnx(tmp_path / "models" / "m", 1)
    s3.upload(tmp_path / "models", "models")
    asked: set[str] = set()

    def note(request: http.server.BaseHTTPRequestHandler) -> None:
        asked.add(request.headers["Authorization"].partition("Credential=")[2].partition("/")[0])
        forward(request, s3)

    with endpoint(note) as address:
        url = f"s3://{address.removeprefix('http://')}/bucket"
        file = tmp_path / "credentials.json"
        file.write_text(f'{{"s3": {{"{url}": {{"key_id": "of-the-file", "secret_key": "x", "region": "eu-west-1"}}}}}}')
        monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(file))
        server = serve(url)
        with Client("http", server.addresses["http"]) as client:
            assert generation(client) == 1
    assert asked == {"of-the-file"}


def forward(request: http.server.BaseHTTPRequestHandler, store: Store, *, limit: int | None = None) -> None:
    """Answer as a store of S3 does, whatever the bucket is called here; or with the first bytes of it only."""
    address, _, bucket = store.url.replace("s3://", "http://").rpartition("/")
    endpoints.forward(request, address + request.path.replace("/bucket", f"/{bucket}", 1), limit=limit)


def test_kill_in_the_middle_of_a_download(s3: Store, tmp_path: Path, serve: Callable[..., ServerProcess]) -> None:
    """Nothing that is half there is ever taken for whole, and the next server leaves no stray file."""
    model = tmp_path / "models" / "m"
    write_onnx(model, 1)
    (model / "1" / "weights").write_bytes(os.urandom(40_000_000))
    s3.upload(tmp_path / "models", "models")
    released, hangs = threading.Event(), threading.Semaphore(0)

    def half(request: http.server.BaseHTTPRequestHandler) -> None:
        if released.is_set() or "weights" not in request.path:
            forward(request, s3)
            return
        forward(request, s3, limit=1_000_000)
        hangs.release()
        released.wait(60)

    with endpoint(half) as address:
        url = f"s3://{address.removeprefix('http://')}/bucket"
        server = serve(url)
        for _ in range(3):  # the parts of the file
            assert hangs.acquire(timeout=60)
        assert eventually(lambda: len(cached(tmp_path)) == 2)
        assert len(work(tmp_path)) == 2
        server.signal(signal.SIGKILL)
        server.wait()
        released.set()
        again = serve(url)
        with Client("http", again.addresses["http"]) as client:
            assert generation(client) == 1
    again.wait_for_line(r"downloading 'm' from .*: 1 files, 40\.0 MB")
    [folder] = work(tmp_path)
    assert (Path(folder) / "m" / "1" / "weights").read_bytes() == (model / "1" / "weights").read_bytes()
    again.signal(signal.SIGTERM)
    assert again.wait() == 0
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name != "files"] == ["lock", "work"]
    assert list((tmp_path / "cache" / "work").iterdir()) == []
    assert len(cached(tmp_path)) == 3


def test_a_stop_in_the_middle_of_a_download(s3: Store, tmp_path: Path, serve: Callable[..., ServerProcess]) -> None:
    """Does not wait for a store that hangs."""
    write_onnx(tmp_path / "models" / "m", 1)
    s3.upload(tmp_path / "models", "models")
    hangs, released = threading.Event(), threading.Event()

    def hang(request: http.server.BaseHTTPRequestHandler) -> None:
        if "model.onnx" in request.path:
            hangs.set()
            released.wait(60)
        forward(request, s3)

    with endpoint(hang) as address:
        server = serve(f"s3://{address.removeprefix('http://')}/bucket")
        assert hangs.wait(60)
        server.signal(signal.SIGTERM)
        server.wait()
        released.set()
    assert work(tmp_path) == []
    assert "Traceback" not in server.log


def test_a_stop_while_a_listing_hangs(s3: Store, tmp_path: Path, serve: Callable[..., ServerProcess]) -> None:
    write_onnx(tmp_path / "models" / "m", 1)
    s3.upload(tmp_path / "models", "models")
    is_serving, hangs, released = threading.Event(), threading.Event(), threading.Event()

    def hang(request: http.server.BaseHTTPRequestHandler) -> None:
        if is_serving.is_set():
            hangs.set()
            released.wait(60)
        forward(request, s3)

    with endpoint(hang) as address:
        server = serve(f"s3://{address.removeprefix('http://')}/bucket", *POLL)
        assert server.addresses
        is_serving.set()
        assert hangs.wait(60)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        released.set()


def test_a_bucket_is_registered_and_dropped(store: Store, tmp_path: Path) -> None:
    """While the server runs, with a model under another name."""
    write_onnx(tmp_path / "models" / "m", 1)
    write_onnx(tmp_path / "local" / "m", 2)
    store.upload(tmp_path / "models", "models")
    url = f"{store.url}/models"
    flags = (f"--model-repository-cache-dir={tmp_path / 'cache'}", *EXPLICIT)
    with (
        ServerProcess(*flags, repository=tmp_path / "local") as server,
        Client("http", server.addresses["http"]) as http,
    ):
        assert over_http(server, "POST", "/register", {"path": f"{store.url}absent/models"})[0] == 400
        assert over_http(server, "POST", "/register", {"path": url, "model_names": {"m": "n"}}) == (200, None)
        again = over_http(server, "POST", "/register", {"path": f"{url}/"})
        assert again == (400, f"model repository '{url}/' has already been registered")
        assert over_http(server, "GET")[1][1] == {"path": url, "model_names": {"m": "n"}}
        http.raw.load_model("n")
        assert (generation(http), generation(http, "n")) == (2, 1)
        assert over_http(server, "POST", "/unregister", {"path": url}) == (200, None)
        with pytest.raises(InferenceServerException, match="failed to poll from model repository"):
            http.raw.load_model("n")
        http.raw.unload_model("n")
        assert eventually(lambda: work(tmp_path) == [])


LABELS = "first\nsecond\n"
PYTHON_CONFIG = """
backend: "python" max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "EXECUTION_ENV_PATH" value: { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }
model_warmup [ { name: "file" batch_size: 1
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "pair" } } } ]
model_repository_agents { agents [
  { name: "checksum" parameters { key: "MD5:labels.txt" value: "LABELS" } } ] }
"""
PYTHON = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
from helper import FACTOR

class TritonPythonModel:
    def initialize(self, args):
        self.seen = []
        assert sys.prefix.startswith(args["model_repository"]) or "environments" in sys.prefix, sys.prefix

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        self.seen += [each.tolist() for each in inputs]
        assert self.seen[0] == [[3.0, 4.0]], "not warmed up"
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each * np.float32(FACTOR))]) for each in inputs]
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [
  { model_name: "scaled" model_version: -1
    input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Z" } },
  { model_name: "scaled" model_version: -1
    input_map { key: "IN" value: "Z" } output_map { key: "OUT" value: "Y" } } ] }
"""


def test_a_model_with_all_that_may_lie_in_its_folder(
    s3: Store, tmp_path: Path, serve: Callable[..., ServerProcess]
) -> None:
    """Helper files, a packed environment, labels with their digest, warm-up data, an ensemble's empty version."""
    model = tmp_path / "models" / "scaled"
    for name, text in {
        "config.pbtxt": PYTHON_CONFIG.replace("LABELS", hashlib.md5(LABELS.encode()).hexdigest()),
        "labels.txt": LABELS,
        "1/model.py": PYTHON,
        "1/helper.py": "FACTOR = 3",
    }.items():
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text(text)
    (model / "warmup").mkdir()
    (model / "warmup" / "pair").write_bytes(np.array([3, 4], np.float32).tobytes())
    venv.create(tmp_path / "env", symlinks=True)
    [site_packages] = (tmp_path / "env").glob("lib/python*/site-packages")
    (site_packages / "numpy.pth").write_text(str(Path(np.__file__).parents[1]))
    with tarfile.open(model / "env.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "env", ".")
    s3.upload(tmp_path / "models", "models")
    s3.put("models/twice/config.pbtxt", ENSEMBLE.encode())
    s3.put_raw("models/twice/1/", b"")
    environments = f"--backend-config=python,env-cache-directory={tmp_path / 'environments'}"
    server = serve(s3.url, environments, "--model-control-mode=explicit", "--load-model=twice")
    with Client("grpc", server.addresses["grpc"]) as client:
        assert client.infer("twice", {"X": np.array([[1, 2]], np.float32)})["Y"].tolist() == [[9.0, 18.0]]
        wanted = [client.api.InferRequestedOutput("OUT", class_count=1)]
        inputs = client.tensors({"IN": np.array([[1, 2]], np.float32)})
        labelled = client.raw.infer("scaled", inputs, outputs=wanted).as_numpy("OUT")
        assert labelled.tolist() == [[b"6.000000:1:second"]]
        s3.put("models/scaled/1/helper.py", b"FACTOR = 5")
        client.raw.load_model("scaled")
        assert client.infer("twice", {"X": np.array([[1, 2]], np.float32)})["Y"].tolist() == [[25.0, 50.0]]
    [download] = [line for line in server.log.splitlines() if "downloading 'scaled'" in line][-1:]
    assert ": 1 files, " in download
