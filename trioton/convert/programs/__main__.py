"""Runs one step in this process: limits first, then its module, then `result.json` beside its arguments."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from trioton.convert.packages import how_to_install
from trioton.convert.processes import OWNED, RESULT

# What decides about results, with pip's name; those that a step has imported are told.
_PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "onnx": "onnx",
    "onnxscript": "onnxscript",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "nncf": "nncf",
    "tensorrt": "tensorrt",
    "sklearn": "scikit-learn",
    "skl2onnx": "skl2onnx",
    "onnxmltools": "onnxmltools",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "treelite": "treelite",
    "tensorflow": "tensorflow",
    "numpy": "numpy",
    "trioton": "trioton",
}


def main(path: Path, *, is_owned: bool) -> int:
    if is_owned:
        _be_killed_with_owner()
        threading.Thread(target=_end_with_owner, daemon=True).start()
    given = json.loads(path.read_text())
    _limit_memory(given["memory_bytes"])
    # Usage data of openvino and nncf, which is sent by default: without this package they send none.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    started = time.monotonic()
    try:
        program = importlib.import_module(f"trioton.convert.programs.{given['program']}")
        result = program.run(given["arguments"])
    except BaseException as error:
        traceback.print_exc()
        result = {"error": _words(error)}
    about = {"seconds": round(time.monotonic() - started, 3), "versions": _versions()}
    path.with_name(RESULT).write_text(json.dumps({**about, **result}, indent=2))
    return 1 if "error" in result else 0


def _be_killed_with_owner() -> None:
    """On Linux the system itself kills this process group when standard input closes: a library that converts may hold
    the interpreter for minutes, in which no thread hears of it."""
    if sys.platform != "linux" or os.getpgrp() != os.getpid():
        return
    import fcntl

    fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def _end_with_owner() -> None:
    """The owner holds the other end of standard input, whatever becomes of it. Compilers that a step has started end,
    too."""
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _limit_memory(byte_size: int) -> None:
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    # Not the address space: frameworks reserve much more than they use.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = byte_size if hard == resource.RLIM_INFINITY else min(byte_size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ModuleNotFoundError):
        return how_to_install([error.name or "a package"])
    if isinstance(error, MemoryError):
        return "out of memory, by the limit of --step-memory-mb"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _versions() -> dict[str, str]:
    found: dict[str, Any] = {"python": sys.version.split()[0]}
    for name, package in _PACKAGES.items():
        if name in sys.modules:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                found[package] = getattr(sys.modules[name], "__version__", "unknown")
    return found


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), is_owned=OWNED in sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of frameworks are not waited for
