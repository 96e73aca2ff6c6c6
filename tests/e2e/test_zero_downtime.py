"""Models are replaced under constant load from real clients, and no request is lost or answered by the wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.generations import Load, ask, write_onnx, write_python
from tests.e2e.server_process import ServerProcess, eventually

LOADS = 60
POLLED = 40
KINDS = ("file", "version", "config", "file", "python")


def test_a_hundred_reloads_lose_no_request(tmp_path: Path) -> None:
    """By load calls: changed files, versions that come and go, configurations, another backend. Then by polling."""
    model = tmp_path / "m"
    write_onnx(model, 0)
    with ServerProcess("--model-control-mode=explicit", "--load-model=m", repository=tmp_path) as server:
        with Client("grpc", server.addresses["grpc"]) as client, Load("m", server.addresses) as load:
            for generation in range(1, LOADS + 1):
                load.begun = generation
                change(model, generation, KINDS[generation % len(KINDS)])
                client.raw.load_model("m")
                load.done = generation
        check(load, LOADS)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=0.1")
    with ServerProcess(*flags, repository=tmp_path) as server, Client("http", server.addresses["http"]) as client:
        with Load("m", server.addresses, done=LOADS, begun=LOADS) as load:
            for generation in range(LOADS + 1, LOADS + POLLED + 1):
                load.begun = generation
                change(model, generation, KINDS[generation % len(KINDS)])
                assert eventually(lambda wanted=generation: ask(client, "m", 0)[0] == wanted)  # type: ignore[misc]
                load.done = generation
        check(load, POLLED)


def change(model: Path, generation: int, kind: str) -> None:
    """Make the next load one of this kind. Only one version is there in the end, and it has the generation."""
    versions = sorted(int(path.name) for path in model.iterdir() if path.name.isdigit())
    if kind == "python":
        write_python(model, generation)
        remove(model, [version for version in versions if version != 1])
        (model / "1" / "model.onnx").unlink(missing_ok=True)
    elif kind == "version":
        write_onnx(model, generation, version=versions[-1] + 1)
        remove(model, versions)
    else:
        batching = f"response_cache {{ }}\nparameters {{ key: 'g' value {{ string_value: '{generation}' }} }}\n"
        write_onnx(model, generation, version=versions[-1], config=batching if kind == "config" else "")


def remove(model: Path, versions: list[int]) -> None:
    for version in versions:
        for file in (model / str(version)).iterdir():
            file.unlink()
        (model / str(version)).rmdir()


def check(load: Load, reloads: int) -> None:
    assert load.failures == []
    assert all(count > reloads for count in load.answered.values()), load.answered
    assert len(load.seen) > reloads / 2, "clients have seen the generations come and go"
    print(f"{reloads} reloads, answered: {load.answered}, generations seen: {len(load.seen)}")


def test_a_failed_reload_under_load(tmp_path: Path) -> None:
    """What served serves on, and each call is told why."""
    model = tmp_path / "m"
    write_onnx(model, 1)
    with ServerProcess("--model-control-mode=explicit", "--load-model=m", repository=tmp_path) as server:
        with Client("http", server.addresses["http"]) as client, Load("m", server.addresses, done=1, begun=1) as load:
            (model / "1" / "model.onnx").write_bytes(b"no model")
            for _ in range(5):
                with pytest.raises(InferenceServerException, match=r"failed to load 'm'|load failed for model 'm'"):
                    client.raw.load_model("m")
            (entry,) = client.json("get_model_repository_index")
            assert entry["state"] == "READY"
            assert entry["reason"].startswith("serves as it was before the last load, which failed: ")
            assert client.raw.is_server_ready() is True
        assert load.failures == []
        assert load.seen == {1}
