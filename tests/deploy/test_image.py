"""A built image, run as the platforms run it: `make test-image`. Needs podman and runc; skipped without an image.

The containers have no network: they are asked by a program that runs in them.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import DEPLOY, read
from tests.deploy.test_image_files import locked
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import eventually
from tests.e2e.test_sagemaker import JSON

IMAGE = os.environ.get("TRIOTON_TEST_IMAGE", "")
PYTHON = "/opt/trioton/bin/python"
MOST_BYTES = 450_000_000
ASK = """
import http.client, sys
port, method, path, body = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
connection.request(method, path, body.encode() or None)
response = connection.getresponse()
print(response.status)
print(response.read().decode("utf-8", "replace"))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.skipif(not IMAGE, reason="needs an image: make test-image"),
    pytest.mark.skipif(not shutil.which("podman"), reason="needs podman"),
]


@pytest.fixture(scope="module", autouse=True)
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Limits of processes that this one may set, and what works without systemd."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    place = tmp_path_factory.mktemp("podman") / "containers.conf"
    place.write_text(
        textwrap.dedent(f"""\
            [containers]
            default_ulimits = {json.dumps([_ulimit(name, kind) for name, kind in limits.items()])}
            [engine]
            cgroup_manager = "cgroupfs"
            events_logger = "file"
            runtime = "runc"
            """)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(place))
        yield


def _ulimit(name: str, kind: int) -> str:
    hard = resource.getrlimit(kind)[1]
    most = 4096 if hard < 0 else min(hard, 4096)
    return f"{name}={most}:{most}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One in the server's process, and one in a worker."""
    folder = tmp_path_factory.mktemp("models")
    add_add_sub(folder / "add_sub", versions=(1,))
    copy_python_model("slow", folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for parent in folder.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return folder


def podman(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["podman", *words]
    # It leaves a file where it is started when a container was killed for its memory.
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tempfile.gettempdir())
    assert done.returncode == 0 or not check, done.stderr
    return done


def run(*words: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """A program to its end."""
    return podman("run", "--rm", *COMMON, *options, IMAGE, *words, check=False)


COMMON = ("--pull=never", "--no-healthcheck", "--network=none")
# What a restricted pod has: no root, no capability, nothing that can be written to.
RESTRICTED = (
    "--user=1000",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--read-only",
    "--read-only-tmpfs=false",
)


@dataclass(frozen=True)
class Container:
    name: str

    def ask(self, port: int, method: str, path: str, body: str = "") -> tuple[int, str]:
        """A request from within; 0 where nobody answers."""
        done = podman("exec", self.name, PYTHON, "-c", ASK, str(port), method, path, body, check=False)
        status, _, text = done.stdout.partition("\n")
        return (int(status), text.strip()) if done.returncode == 0 else (0, done.stderr)

    def is_ready(self, port: int, path: str = "/v2/health/ready") -> Callable[[], bool]:
        return lambda: self.ask(port, "GET", path)[0] == 200

    def stop(self) -> int:
        """By SIGTERM; answers the exit code."""
        podman("stop", "--time=40", self.name)
        return int(podman("inspect", self.name, "--format={{.State.ExitCode}}").stdout)

    @property
    def log(self) -> str:
        done = podman("logs", self.name)
        return done.stdout + done.stderr


@contextmanager
def running(
    *words: str, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Container]:
    variables = [f"--env={name}={value}" for name, value in (environment or {}).items()]
    name = podman("run", "--detach", *COMMON, *options, *variables, IMAGE, *words).stdout.strip()
    container = Container(name)
    try:
        yield container
    except BaseException:
        print(container.log)
        raise
    finally:
        podman("rm", "--force", "--time=0", name)


def test_its_size() -> None:
    (told,) = json.loads(podman("image", "inspect", IMAGE).stdout)
    if told["Labels"]["trioton.flavour"] == "cpu":
        assert told["Size"] <= MOST_BYTES


def test_what_it_says_of_itself() -> None:
    (told,) = json.loads(podman("image", "inspect", IMAGE).stdout)
    assert told["User"] == "1000:0"
    assert told["Config"]["StopSignal"] == "SIGTERM"
    labels = told["Labels"]
    assert labels["com.amazonaws.sagemaker.capabilities.accept-bind-to-port"] == "true"
    assert labels["org.opencontainers.image.version"] in run("trioton", "version").stdout


def test_its_bill_of_materials() -> None:
    """It has what is installed, with the versions of the lock."""
    (told,) = json.loads(podman("image", "inspect", IMAGE).stdout)
    versions = locked(told["Labels"]["trioton.flavour"])
    sbom = json.loads(run("cat", "/opt/trioton/share/trioton/sbom.cdx.json").stdout)
    assert sbom["bomFormat"] == "CycloneDX"
    found = {each["name"].lower().replace("_", "-"): each["version"] for each in sbom["components"]}
    assert {"numpy", "trio", "msgspec"} <= found.keys()
    assert "pip" not in found
    wrong = {name for name, version in found.items() if name != "trioton" and version not in versions.get(name, ())}
    assert wrong == set()


@pytest.mark.parametrize("runtime", ["cluster-serving-runtime.yaml", "triton-image.yaml"])
@pytest.mark.parametrize("more", [(), ("--tmpfs=/tmp:size=64m",)], ids=["nothing writable", "tmp"])
def test_as_kserve_runs_it(runtime: str, more: Sequence[str], models: Path) -> None:
    """With its arguments, user, capabilities and limits; what it serves and its root are read-only."""
    (manifest,) = read(DEPLOY / "kserve" / runtime)
    (container,) = manifest["spec"]["containers"]
    context: dict[str, Any] = container["securityContext"]
    assert context["runAsUser"] == 1000
    assert context["capabilities"] == {"drop": ["ALL"]}
    options = (*RESTRICTED, *more, "--memory=2g", f"--volume={models}:/mnt/models:ro")
    with running(*container["args"], options=options) as server:
        assert eventually(server.is_ready(8080))
        status, text = server.ask(8080, "POST", "/v2/models/add_sub/infer", JSON.decode())
        assert (status, json.loads(text)["outputs"][0]["data"][:3]) == (200, [0.0, 2.0, 4.0])
        rows = [("SECONDS", "FP32", 0.01), ("VALUE", "INT64", 7)]
        inputs = [{"name": name, "datatype": kind, "shape": [1], "data": [value]} for name, kind, value in rows]
        status, text = server.ask(8080, "POST", "/v2/models/slow/infer", json.dumps({"inputs": inputs}))
        assert (status, json.loads(text)["outputs"][0]["data"]) == (200, [7])
        assert podman("exec", server.name, PYTHON, "-c", "import os; print(os.getuid())").stdout == "1000\n"
        assert server.stop() == 0
        assert "Traceback" not in server.log


def test_any_number_will_do_for_a_user(models: Path) -> None:
    """As OpenShift chooses one."""
    options = ("--user=1000680000:0", *RESTRICTED[1:], f"--volume={models}:/models:ro")
    with running("trioton", "serve", "/models", options=options) as server:
        assert eventually(server.is_ready(8000))
        assert podman("exec", server.name, "/opt/trioton/bin/healthy").returncode == 0
        assert server.stop() == 0


def test_no_shell_is_needed(models: Path) -> None:
    """Those of the base are hidden."""
    hidden = [f"--volume=/dev/null:/usr/bin/{shell}:ro" for shell in ("dash", "bash")]
    options = (*RESTRICTED, *hidden, f"--volume={models}:/models:ro")
    assert run("/bin/sh", "-c", "true", options=options).returncode == 127
    with running("--model-repository=/models", options=options) as server:
        assert eventually(server.is_ready(8000))
        assert server.stop() == 0


def test_a_memory_limit_holds() -> None:
    taking = run(PYTHON, "-c", "x = bytearray(1 << 29); print(len(x))", options=("--memory=100m", "--memory-swap=100m"))
    assert (taking.returncode, taking.stdout) == (137, "")


def test_sigterm_before_it_listens() -> None:
    """Also the first process of a container ends by it."""
    with running("trioton", "serve", "/models", options=RESTRICTED) as server:
        assert server.stop() in (0, 1)


def test_as_sagemaker_runs_it(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "add_sub", tmp_path / "model" / "add_sub")
    options = ("--user=0", f"--volume={tmp_path / 'model'}:/opt/ml/model:ro")
    with running("serve", options=options) as server:
        assert eventually(server.is_ready(8080, "/ping"))
        assert server.ask(8080, "POST", "/invocations", JSON.decode())[0] == 200
        assert server.stop() == 0


def test_as_vertex_ai_runs_it(models: Path) -> None:
    """By variables, without arguments."""
    environment = {
        "AIP_MODE": "PREDICTION",
        "AIP_HTTP_PORT": "8080",
        "AIP_HEALTH_ROUTE": "/health",
        "AIP_PREDICT_ROUTE": "/predict",
        "AIP_STORAGE_URI": "/artifacts",
    }
    with running(
        "--vertex-ai-default-model=add_sub", options=[f"--volume={models}:/artifacts:ro"], environment=environment
    ) as server:
        assert eventually(server.is_ready(8080, "/health"))
        assert server.ask(8080, "POST", "/predict", JSON.decode())[0] == 200
        assert server.stop() == 0
