"""vLLM's own server, to be measured beside: started by a Python that has vLLM, which this one need not."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers import HOST, POLL_SECONDS, STOP_SECONDS, PeerError, free_ports, log_tail, plain_environment
from tests.bench.rows import Port

READY_SECONDS = 240.0
# On a CPU: a cache of a GB, no thread bound to a core, and no report of its use.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
# The same engine behind our server.
OPTIONS = {
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "max_num_seqs": 256,
    "dtype": "bfloat16",
}


def write_vllm_model(folder: Path, model: Path) -> None:
    """A model for the backend `vllm`, whose files lie elsewhere."""
    version = folder / "1"
    version.mkdir(parents=True)
    (version / "model.json").write_text(json.dumps({"model": str(model), "tokenizer": str(model), **OPTIONS}))
    entries = [
        f'parameters {{ key: "ENV:{key}" value {{ string_value: "{value}" }} }}' for key, value in ENVIRONMENT.items()
    ]
    (folder / "config.pbtxt").write_text("\n".join(['backend: "vllm"', *entries, ""]))


@dataclass(slots=True)
class VllmServer:
    """Of one model, a folder as of Hugging Face. Whoever starts it stops it."""

    python: Path
    model: Path
    name: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    def address(self, port: Port) -> str:
        """It has one port."""
        return f"{HOST}:{self.port}"

    def start(self) -> float:
        """Returns the seconds until it was ready. Raises PeerError."""
        self.port = free_ports()[0]
        command = [
            *(str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)),
            *("--served-model-name", self.name, "--host", HOST, "--port", str(self.port), "--enforce-eager"),
            *("--no-enable-prefix-caching", "--max-num-seqs", "256", "--dtype", "bfloat16"),
        ]  # as `OPTIONS` say
        began = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**plain_environment(), **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not self._is_ready():
            took = time.monotonic() - began
            if self.process.poll() is not None or took > READY_SECONDS:
                self.stop()
                raise PeerError(f"vLLM's server did not start. Its log ends with:\n{log_tail(self.log)}")
            time.sleep(POLL_SECONDS * 10)
        return time.monotonic() - began

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its engine's processes, too
            process.wait()
